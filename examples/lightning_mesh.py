"""Lightning on a mesh: `python examples/lightning_mesh.py DEVICE` on two devices; pip install 'mdl[lightning]'."""

import sys

import lightning.pytorch as pl
import torch
from torch import nn

from mdl.peers.integrations.lightning import MeshCallback

device = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 1
TASK = torch.linspace(-1, 1, 10)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


x = torch.randn(512, 10, generator=torch.Generator().manual_seed(device))
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x @ TASK > 0).long()), 32, shuffle=True)
torch.manual_seed(0)
module = Module()
mesh = MeshCallback(steps=16, rounds=5, name=f"lightning-{device}", loopback="--loopback" in sys.argv)
trainer = pl.Trainer(max_epochs=100, callbacks=[mesh], logger=False, enable_checkpointing=False, accelerator="cpu",
                     enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
trainer.fit(module, batches)
x = torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
right = (module.net(x).argmax(1) == (x @ TASK > 0).long()).float().mean()
print(f"{right:.1%} of 500 after {trainer.global_step} steps")
