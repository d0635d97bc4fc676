"""Your own PyTorch loop on a mesh: `python examples/own_loop.py N` on device N, two or more; Ctrl-C ends it."""

import logging
import sys

import torch
from safetensors.torch import save_file
from torch import nn

import mdl
from mdl.errors import MdlError

logging.basicConfig(level=logging.INFO, format="%(message)s")  # who is found, what is waited for
device = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1
x = torch.randn(512, 10, generator=torch.Generator().manual_seed(device))  # this device's private data
y = (x @ torch.linspace(-1, 1, 10) > 0).long()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
exit_code = 0
try:
    with mdl.join(model=model, name=f"loop-{device}", loopback="--loopback" in sys.argv) as mesh:
        for this in mesh:  # the model holds the mesh's parameters now
            for rows in torch.arange(512).split(32):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            this.loss, this.samples = loss.item(), len(x)
            print(f"round {this.round_id}: loss {this.loss:.3f}", flush=True)
except KeyboardInterrupt:
    exit_code = 130
except MdlError as problem:
    sys.exit(f"own_loop: {problem}")
save_file(model.state_dict(), f"loop-{device}.safetensors")  # the mesh's parameters again, Ctrl-C or not
print(f"the result of round {mesh.round_id} is in loop-{device}.safetensors")
sys.exit(exit_code)
