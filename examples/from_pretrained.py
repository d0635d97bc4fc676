"""Go on from a model that is there: `python examples/from_pretrained.py FILE DEVICE`, on two devices or more.

FILE: a safetensors file of `own_loop.py`. Its first layer stays as it is and is not sent; a new last layer learns
another task, with three classes.
"""

import sys

import torch
from safetensors.torch import load_file
from torch import nn

import mdl
from mdl.errors import MdlError

file, device = sys.argv[1], int(sys.argv[2])
x = torch.randn(512, 10, generator=torch.Generator().manual_seed(10 + device))
y = torch.bucketize(x @ torch.linspace(-1, 1, 10), torch.tensor([-1.0, 1.0]))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
known = {name: tensor for name, tensor in load_file(file).items() if name.startswith("0.")}
model.load_state_dict(known, strict=False)
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.02)
batches = list(zip(x.split(32), y.split(32), strict=True))
loss = nn.functional.cross_entropy
try:
    mesh = mdl.join(model=model, optimizer=optimizer, data=batches, loss=loss, rounds=5, name=f"tuned-{device}",
                      loopback="--loopback" in sys.argv)  # fmt: skip
    mesh.run()
except MdlError as problem:
    sys.exit(f"from_pretrained: {problem}")
x = torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
y = torch.bucketize(x @ torch.linspace(-1, 1, 10), torch.tensor([-1.0, 1.0]))
right = (model(x).argmax(1) == y).float().mean()
trained, whole = model[2].weight.numel() + model[2].bias.numel(), sum(p.numel() for p in model.parameters())
print(f"{right:.1%} of 500 after round {mesh.round_id}; {trained} of {whole} values sent")
