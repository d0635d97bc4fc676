"""Hugging Face: `Trainer(..., callbacks=[MeshCallback("home", steps=50)])`.

So many steps of the optimizer make a round of the mesh. Frozen parameters are neither sent nor merged, so only adapters
(LoRA) travel. Tested against Transformers 5.21 to 5.23 (`pip install 'mdl[transformers]'`); one process.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mdl.errors import ConfigError
from mdl.learning.flat import unwrap
from mdl.peers.api import SteppedLoop


class MeshCallback(TrainerCallback):
    """A Hugging Face training as a member of the mesh `mesh`.

    steps: of the optimizer in a round. options: of `mdl.join` (rounds, name, code, loopback, quiet, ...). The training
    ends with the mesh, or by max_steps and num_train_epochs as ever, whichever is first. Transformers does not report a
    Ctrl-C: in a program that goes on after one, call `leave`.
    """

    def __init__(self, mesh: str | None = None, *, steps: int = 50, **options: Any) -> None:
        self._loop = SteppedLoop(mesh, steps, options)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.world_size != 1:
            raise ConfigError(f"this training has {args.world_size} processes: a device of a mesh is one")
        model: nn.Module = unwrap(kwargs["model"])
        known = {"optimizer": kwargs.get("optimizer"), "scheduler": kwargs.get("lr_scheduler")}
        if not self._loop.begin(model, **{name: part for name, part in known.items() if part is not None}):
            control.should_training_stop = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
        if not self._loop.step(_last_loss(state), samples):
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave the mesh; the model holds the last round's result."""
        self._loop.end()


def _last_loss(state: TrainerState) -> float:
    """Return the loss as last logged (`logging_steps`), as the trainer does not hand it over; 0 before."""
    return next((float(entry["loss"]) for entry in reversed(state.log_history) if "loss" in entry), 0.0)
