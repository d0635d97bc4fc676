"""The same in one call: model, optimizer, data and loss; the mesh does the rounds, on two devices or more."""

import logging
import sys

import torch
from safetensors.torch import save_file
from torch import nn

import mdl
from mdl.errors import MdlError

logging.basicConfig(level=logging.INFO, format="%(message)s")  # what run() does, and what it waits for
x = torch.randn(512, 10)
batches = list(zip(x.split(32), (x.sum(1) > 0).long().split(32), strict=True))
model = nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = nn.functional.cross_entropy
exit_code = 0
try:
    mesh = mdl.join(model=model, optimizer=optimizer, data=batches, loss=loss, loopback="--loopback" in sys.argv)
    mesh.run()
except KeyboardInterrupt:
    exit_code = 130
except MdlError as problem:
    sys.exit(f"ready_loop: {problem}")
save_file(model.state_dict(), f"{mesh.name}.safetensors")  # the mesh's parameters, Ctrl-C or not
print(f"the result of round {mesh.round_id} is in {mesh.name}.safetensors")
sys.exit(exit_code)
