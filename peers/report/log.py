"""The rounds of a run for programs that draw curves: TensorBoard, or Weights & Biases without a network.

A command of its own writes them from metrics.jsonl, afterwards or while the run goes on: no peer holds these libraries
while it trains.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mdl.errors import ConfigError, MdlError
from mdl.files.figures import read_rounds
from mdl.peers.view.tail import RoundReader
from mdl.protocol.status_messages import RoundSummary
from mdl.writing import make_private_folder


class Writer(Protocol):
    """add: writes a round's number and its values; they are on their way to the disk when it returns."""

    def add(self, number: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def write_log(out: Path, form: str, into: Path | None = None) -> Path:
    """Write the run directory's rounds into a folder, `out`/FORM by default; return it.

    Raises ConfigError if there are no rounds, the package is missing, or the folder has a log already.
    """
    rounds = read_rounds(out / "metrics.jsonl")
    if not rounds:
        raise ConfigError(f"{out} has no rounds (metrics.jsonl)")
    with _opened(out, form, into) as (folder, writer):
        for number, values in scalars(rounds):
            writer.add(number, values)
    return folder


def follow_log(
    out: Path, form: str, into: Path | None, on_begin: Callable[[Path], None], pause: Callable[[], None]
) -> int:
    """Write each round as soon as it is there; return how many, once `mdl up` has written its result.

    Without a result, as in a peer's own folder, it goes on until KeyboardInterrupt. on_begin: is given the folder.
    pause: waits between two looks.
    """
    if not out.is_dir():
        raise ConfigError(f"{out}: no such directory; expected the run directory of `mdl up`, or a peer's --out")
    reader, last = RoundReader(out), 0
    with _opened(out, form, into) as (folder, writer):
        on_begin(folder)
        written = 0
        with suppress(KeyboardInterrupt):
            is_over = False
            while not is_over:
                is_over = (out / "result.json").exists()  # looked at first: all rounds were there before it
                # A round that a fork writes again under an earlier number is no step of these curves.
                for number, values in scalars(one for one in reader.new() if one.round > last):
                    writer.add(number, values)
                    written, last = written + 1, number
                if not is_over:
                    pause()
    return written


@contextmanager
def _opened(out: Path, form: str, into: Path | None) -> Iterator[tuple[Path, Writer]]:
    if find_spec(form) is None:
        raise ConfigError(f"{form} is not installed: pip install 'mdl[{form}]'")
    folder = into or out / form
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: curves of two runs would be one; --out takes another folder")
    try:
        writer = _WRITERS[form](folder, out.resolve().name)
        try:
            yield folder, writer
        finally:
            writer.close()
    except OSError as error:
        raise MdlError(f"{folder}: {error.strerror or error}") from None


def scalars(rounds: Iterable[RoundSummary]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the known values of each round: mesh/accuracy, seconds/train, device/NAME/loss, ..."""
    for one in rounds:
        known: dict[str, float | None] = {
            "mesh/accuracy": one.accuracy,
            "mesh/macro_f1": one.macro_f1,
            "mesh/loss": one.loss,
            "mesh/contributors": len(one.contributors),
            "mesh/bytes": one.bytes,
        }
        known |= {f"seconds/{phase}": value for phase, value in one.seconds.items()}
        for device in one.devices:
            known[f"device/{device.peer_id}/accuracy"] = device.accuracy
            known[f"device/{device.peer_id}/loss"] = device.loss
        yield one.round, {name: float(value) for name, value in known.items() if value is not None}


class TensorBoard:
    def __init__(self, folder: Path, name: str) -> None:
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def add(self, number: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Writes offline runs; nothing is sent here. `wandb sync FOLDER/wandb/offline-run-...` sends one later."""

    def __init__(self, folder: Path, name: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it reports errors to its makers, offline or not
        self._wandb: Any = import_module("wandb")
        make_private_folder(folder)
        settings = self._wandb.Settings(mode="offline", silent=True, console="off", disable_git=True)
        self._run = self._wandb.init(project="mdl", name=name, dir=str(folder), settings=settings)

    def add(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(values, step=number, commit=True)

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()


_WRITERS: dict[str, Callable[[Path, str], Writer]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
