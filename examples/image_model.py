"""An image model: `python examples/image_model.py DEVICE` on two devices or more, each with pictures of its own.

The pictures are drawn here: lines that lie, stand or cross, 16 x 16 with noise. Any module will do: batches go to the
device that it is on; here its forward pass is in bfloat16, and two batches make one step.
"""

import sys

import torch
from torch import nn

import mdl
from mdl.errors import MdlError

device = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 1
place = "cuda" if torch.cuda.is_available() else "cpu"


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 (count, 1, 16, 16) and what is on them: 0 lies, 1 stands, 2 crosses."""
    dice = torch.Generator().manual_seed(seed)
    kinds, where = torch.randint(3, (count,), generator=dice), torch.randint(2, 14, (count,), generator=dice)
    pictures = torch.randn(count, 1, 16, 16, generator=dice) / 2
    for picture, kind, line in zip(pictures, kinds.tolist(), where.tolist(), strict=True):
        picture[0, line, :] += kind != 1
        picture[0, :, line] += kind != 0
    return pictures, kinds


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(128, 3)
).to(place)
x, y = draw(480, device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
mesh = mdl.join(
    model=model,
    optimizer=optimizer,
    scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
    data=list(zip(x.split(20), y.split(20), strict=True)),
    loss=nn.functional.cross_entropy,
    accumulate=2,
    precision="bfloat16",
    rounds=5,
    name=f"image-{device}",
    loopback="--loopback" in sys.argv,
)
try:
    mesh.run()
except MdlError as problem:
    sys.exit(f"image_model: {problem}")
pictures, kinds = draw(300, 0)  # the same on all devices
right = (model.eval()(pictures.to(place)).argmax(1).cpu() == kinds).float().mean()
print(f"{right:.1%} of 300 new pictures after round {mesh.round_id}")
