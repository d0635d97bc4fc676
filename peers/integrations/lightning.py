"""Lightning: `Trainer(callbacks=[MeshCallback("home", steps=50)])`, or the same as a strategy, `MeshStrategy("home")`.

Both make a round of the mesh of so many steps of the optimizer. The module holds the mesh's parameters at its start;
their change by Lightning is this device's contribution. Tested against Lightning 2.6 (`pip install 'mdl[lightning]'`);
one device a process.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy

from mdl.errors import ConfigError
from mdl.peers.api import SteppedLoop, first_or_none


class MeshCallback(Callback):
    """A Lightning training as a member of the mesh `mesh`.

    steps: of the optimizer in a round. options: of `mdl.join` (rounds, name, code, loopback, quiet, ...). The training
    ends with the mesh, or by max_steps and max_epochs as ever, whichever is first.
    """

    def __init__(self, mesh: str | None = None, *, steps: int = 50, **options: Any) -> None:
        self._loop = SteppedLoop(mesh, steps, options)
        self._steps_seen, self._loss, self._samples, self._batches = 0, 0.0, 0, 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise ConfigError if there are several processes: each device of a mesh is one."""
        if trainer.world_size != 1:
            raise ConfigError(
                f"this training has {trainer.world_size} processes: a device of a mesh is one (devices=1)"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps_seen = trainer.global_step
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        state = {"optimizer": first_or_none(trainer.optimizers), "scheduler": first_or_none(schedules)}
        if not self._loop.begin(pl_module, **{name: part for name, part in state.items() if part is not None}):
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loss += loss_of(outputs)
        self._batches += 1
        self._samples += size_of(batch)
        if trainer.global_step == self._steps_seen:
            return  # gradients are accumulated
        self._steps_seen = trainer.global_step
        goes_on = self._loop.step(self._loss / self._batches, self._samples)
        self._loss, self._samples, self._batches = 0.0, 0, 0
        if not goes_on:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._loop.end(exception)


class MeshStrategy(SingleDeviceStrategy):
    """The same as a strategy: `Trainer(strategy=MeshStrategy("home", steps=50))`. device: "cpu", "cuda:0", "mps"."""

    strategy_name = "mesh"

    def __init__(self, mesh: str | None = None, *, steps: int = 50, device: str = "cpu", **options: Any) -> None:
        super().__init__(device=torch.device(device))
        self._callback = MeshCallback(mesh, steps=steps, **options)

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if self._callback not in trainer.callbacks:
            trainer.callbacks.append(self._callback)


def loss_of(outputs: Any) -> float:
    """Return the loss that training_step gave, alone or in a dict; 0 if it gave none."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return float(loss.detach()) if isinstance(loss, torch.Tensor) else 0.0


def size_of(batch: Any) -> int:
    """Return the samples of a batch: the length of the first tensor in it; 1 if there is none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((size_of(part) for part in parts), 1)
