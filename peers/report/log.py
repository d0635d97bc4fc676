"""The rounds of a run for other programs that draw curves: TensorBoard, or Weights & Biases without a network.

They are written from metrics.jsonl, by a command of its own: no peer holds these libraries while it trains.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mdl.errors import ConfigError, MdlError
from mdl.files.round_lines import read_rounds
from mdl.protocol.status_messages import RoundSummary
from mdl.writing import make_private_folder

FORMS = ("tensorboard", "wandb")


def write_log(out: Path, form: str, into: Path | None = None) -> Path:
    """The run directory's rounds in a folder, `out`/FORM by default; returns it.

    Raises ConfigError if there are no rounds, the package is missing, or the folder has a log already.
    """
    rounds = read_rounds(out / "metrics.jsonl")
    if not rounds:
        raise ConfigError(f"{out} has no rounds (metrics.jsonl)")
    if find_spec(form) is None:
        raise ConfigError(f"{form} is not installed: pip install 'mdl[{form}]'")
    folder = into or out / form
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: curves of two runs would be one; --out takes another folder")
    try:
        _WRITERS[form](rounds, folder, out.resolve().name)
    except OSError as error:
        raise MdlError(f"{folder}: {error.strerror or error}") from None
    return folder


def scalars(rounds: Iterable[RoundSummary]) -> Iterator[tuple[int, dict[str, float]]]:
    """Of each round its number and what is known of it: mesh/accuracy, seconds/train, device/NAME/loss, ..."""
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


def _write_tensorboard(rounds: list[RoundSummary], folder: Path, name: str) -> None:
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
    for number, values in scalars(rounds):
        for tag, value in values.items():
            writer.add_scalar(tag, value, number)
    writer.close()


def _write_wandb(rounds: list[RoundSummary], folder: Path, name: str) -> None:
    """`wandb sync FOLDER/wandb/offline-run-...` sends it, if its owner wants that; nothing is sent here."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it tells its makers of errors, offline or not
    wandb: Any = import_module("wandb")
    make_private_folder(folder)
    settings = wandb.Settings(mode="offline", silent=True, console="off", disable_git=True)
    run = wandb.init(project="mdl", name=name, dir=str(folder), settings=settings)
    for number, values in scalars(rounds):
        run.log(values, step=number)
    run.finish()
    wandb.teardown()


_WRITERS = {"tensorboard": _write_tensorboard, "wandb": _write_wandb}
