"""The Python API behind `mdl.join`: a program gives its model, its loop, and the mesh it belongs to.

`SteppedLoop` makes rounds of a mesh for a loop of another program, which calls back after each step of its optimizer. A
round ends after so many steps. It knows no trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from mdl.config import Config, DefenceSection, MeshSection, load_config, parse_period, until_settings
from mdl.errors import ConfigError
from mdl.files.export import ModelDescription, find_model_file, import_model
from mdl.learning.loop import Batches, Loop, Loss, Precision, Replay
from mdl.peers.edge.identity import find_code
from mdl.peers.loops import Member, Place, Progress, Round, RoundDone, Saying
from mdl.transport.trust.keys import Mesh

__all__ = ["Member", "ModelDescription", "Replay", "Round", "RoundDone", "join", "load"]


def load(path: str | Path, model: nn.Module | None = None) -> tuple[nn.Module, ModelDescription]:
    """Return a trained model in evaluation mode, on the processor, and the description of its inputs and outputs.

    path: a run directory, or a file that `mdl peer` or `mdl up` wrote (`global.safetensors`). model: the module to
    fill, if it is one of your own; a built-in one is built as the file describes it. The module takes float32 (windows,
    channels, time), or (images, channels, height, width), in `description.channel_units`, at `description.rate_hz`. It
    gives a column for each of `description.class_names`. Raises DataError, which names the file, if it is missing,
    damaged or of another model. Raises ConfigError if only the caller can say what the model is.
    """
    return import_model(find_model_file(Path(path)), model)


def join(
    mesh: str | None = None,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    scaler: torch.amp.GradScaler | None = None,
    data: Batches | None = None,
    loss: Loss | None = None,
    accumulate: int = 1,
    precision: Precision = "float32",
    proximal: float = 0.0,
    batch_norm: str = "shared",
    overlap: bool = False,
    rounds: int = 0,
    until: str = "",
    every: str = "",
    code: str | None = None,
    run: str = "",
    name: str | None = None,
    theta: float = 1.0,
    out: Path | None = None,
    addresses: Sequence[str] = (),
    port: int = 0,
    interface: str = "",
    loopback: bool = False,
    fresh: bool = False,
    classes: Iterable[str] = (),
    progress: Progress | None = None,
    quiet: bool = False,
    check: bool = False,
) -> Member:
    """Join the mesh `mesh` as a member; its join code is given, in MDL_CODE, or known to `mdl mesh list`.

    run: of that mesh, beside others, as `--run`; `mesh` may be NAME/RUN, too.

    model: float32 in its trained parts, the same on every device. Frozen parameters (requires_grad is False) are
    neither sent nor merged, and must be equal on all devices. optimizer, scheduler, scaler: objects with `state_dict`;
    their state is kept with the file cache, and a restart goes on with it. data, loss, accumulate (batches a step),
    precision (of the forward pass: float32, bfloat16, float16), proximal (mu of FedProx): for `run()` only, which steps
    the scheduler once a round. batch_norm: "own" leaves them on each device (FedBN). overlap: the next round is trained
    while the deltas of one travel. rounds: after so many this device leaves; 0: until the mesh ends. until, every: when
    the mesh ends and rounds begin, if this device leads: "minutes=30,no-better=5", "10m". theta: its weight (3.2.2).
    addresses: HOST:PORT of members, where multicast is blocked. port: to listen on; 0: any. interface: the only one to
    use, by name. classes: names of the outputs; devices with other names are refused, by a hash of them. fresh: sets
    aside the files of an earlier run of this device. progress: called in the loop's thread with a `RoundDone` for each
    finished round. quiet: only warnings. check: judge others' deltas. Raises ConfigError.
    """
    section = MeshSection(join=tuple(addresses), port=port, listen=interface, loopback=loopback)
    config = _configure(section, rounds, until, every, check, batch_norm, overlap)
    loop = Loop(optimizer, data, loss, scheduler, scaler, accumulate, precision, proximal)
    place, saying = Place(name, out, theta, fresh, tuple(classes)), Saying(progress, quiet)
    plain, _, of_name = (mesh or "").partition("/")
    return Member(Mesh.from_code(find_code(plain or None, code), run or of_name), model, loop, place, saying, config)


def _configure(
    section: MeshSection, rounds: int, until: str, every: str, check: bool, batch_norm: str, overlap: bool
) -> Config:
    wanted: dict[str, object] = {"round.rounds": rounds, "training.batch_norm": batch_norm, "training.overlap": overlap}
    wanted["round.every_s"] = parse_period(every) if every else None
    settings = load_config(None, wanted | until_settings([until]))
    section = msgspec.structs.replace(section, interfaces=(section.listen,) if section.listen else ())
    return msgspec.structs.replace(settings, mesh=section, defence=DefenceSection(check=check))


class SteppedLoop:
    """One member for one training. steps: of the optimizer in a round. options: of `join`, but model and loop."""

    def __init__(self, mesh: str | None, steps: int, options: dict[str, Any]) -> None:
        if steps < 1:
            raise ConfigError(f"steps is {steps}: a round needs at least one")
        self._mesh, self._steps, self._options = mesh, steps, options
        self.member: Member | None = None
        self._rounds: Iterator[Round] = iter(())
        self._round: Round | None = None
        self._done, self._loss = 0, 0.0

    def begin(self, model: nn.Module, **state: Any) -> bool:
        """Join, and wait for the first round; return True if there is one.

        state: optimizer, scheduler, scaler, if known.
        """
        self.member = join(self._mesh, model=model, **{**state, **self._options})
        self.member.__enter__()
        self._rounds = iter(self.member)
        return self._next()

    def step(self, loss: float, samples: int) -> bool:
        """Count a step of the optimizer; return True if training goes on. loss: mean over those samples, in nats."""
        if self._round is None:
            return False
        self._done += 1
        self._round.samples += samples
        self._loss += loss * samples
        if self._done < self._steps:
            return True
        self._round.loss = self._loss / max(1, self._round.samples)
        return self._next()

    def end(self, problem: BaseException | None = None) -> None:
        """Leave the mesh; safe to call twice. The model holds the last round's result."""
        member, self.member, self._round = self.member, None, None
        if member is not None:
            member.__exit__(type(problem) if problem else None, problem, None)

    def _next(self) -> bool:
        self._done, self._loss = 0, 0.0
        self._round = next(self._rounds, None)
        return self._round is not None


def first_or_none(values: Any) -> Any:
    """Return the only one of a list; None if there are several or none."""
    return values[0] if isinstance(values, list | tuple) and len(values) == 1 else None
