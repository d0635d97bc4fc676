"""Your own CSV: `python examples/own_csv.py FILE DEVICE` on two devices or more, each with a file of its own.

FILE has columns time (s), ax, ay, az and activity, at some 50 Hz; `mdl data inspect` says what is read of it.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import mdl
from mdl.data import default_cache_dir, load_data
from mdl.errors import MdlError
from mdl.learning.models import build_model

file, device = Path(sys.argv[1]), int(sys.argv[2])
try:
    data = load_data(
        f"csv:{file}?label=activity&columns=ax,ay,az&time=time&window=64&step=32", default_cache_dir(), seed=0
    )
    channels, length = data.shape
    model = build_model("lenet", channels, length, len(data.classes), seed=0)
    x, y = torch.tensor(data.train.x), torch.tensor(data.train.y)
    mesh = mdl.join(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.002),
        data=list(zip(x.split(16), y.split(16), strict=True)),
        loss=nn.functional.cross_entropy,
        rounds=5,
        classes=data.classes,  # devices with other classes are refused
        name=f"csv-{device}",
        loopback="--loopback" in sys.argv,
    )
    mesh.run()
except MdlError as problem:
    sys.exit(f"own_csv: {problem}")
with torch.no_grad():
    right = (model.eval()(torch.tensor(data.test.x)).argmax(1) == torch.tensor(data.test.y)).float().mean()
told = f"{right:.1%} of {len(data.test)} windows of the last part after round {mesh.round_id}"
print(f"{', '.join(data.classes)}: {told}")
