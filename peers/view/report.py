"""The report of a run beside its model: a card in Markdown, and its rounds for programs that draw curves.

A card is made from a run's files: what the model is, how well it does, how to load it. It names no device, no person
and no path: the card goes with the model. No torch is imported. A report can never make a run fail.

Pictures are drawn by `mdl.peers.view.pictures`, in a process of its own.

`mdl log` writes the rounds for TensorBoard, or for Weights & Biases without a network, from metrics.jsonl, afterwards
or while the run goes on: no peer holds these libraries while it trains.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mdl.channels import describe_units
from mdl.data.sources import SOURCES, names_built_in
from mdl.errors import ConfigError, MdlError
from mdl.files.checkpoint import read_metadata
from mdl.files.figures import RoundReader, read_rounds
from mdl.protocol.counts import Confusion
from mdl.protocol.status_messages import RoundSummary
from mdl.reading import decode_json
from mdl.writing import make_private_folder, write_bytes

CARD = "model-card.md"


class Described(msgspec.Struct, frozen=True):
    """The part of a model file's description for a card; fields as in ModelDescription (`mdl/files/export.py`)."""

    model: str
    channels: int
    time: int
    class_names: tuple[str, ...]
    data: str
    round_id: int = 0
    channel_names: tuple[str, ...] = ()
    rate_hz: float | None = None
    channel_units: tuple[str, ...] = ()
    height: int | None = None
    own_batch_norm: bool = False


def read_described(model: Path) -> Described:
    """Read the description. Raises DataError if mdl has not exported the file."""
    return decode_json(read_metadata(model).get("mdl", ""), Described, f"{model} has no model description of mdl")


def write_card(model: Path, rounds: Sequence[RoundSummary]) -> Path:
    """Write the card beside the model. Raises MdlError if the file is none of mdl's, or the disk refuses."""
    path = model.with_name(CARD)
    write_bytes(path, make_card(read_described(model), rounds, model.stat().st_size, model.name).encode())
    return path


def make_card(told: Described, rounds: Sequence[RoundSummary], size_bytes: int, file: str) -> str:
    """Make the card. rounds: the known ones; without any it says nothing about how well the model does."""
    done = next((each for each in reversed(rounds) if each.round == told.round_id), None)
    parts = [_head(told, size_bytes), _training(told, rounds), _quality(told, done), _use(told, file)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(told: Described, size_bytes: int) -> str:
    rate = "" if told.rate_hz is None else f", {told.rate_hz:g} samples a second"
    window = f"images of {told.channels} x {told.height} x {told.time} values"
    if told.height is None:
        window = f"windows of {told.time} samples in {told.channels} channels{rate}"
    channels = told.channel_names or tuple(f"channel {number}" for number in range(1, told.channels + 1))
    if len(told.channel_units) == len(channels) and any(told.channel_units):
        names = f" ({_plain(describe_units(channels, told.channel_units))})"
    else:
        names = f" ({', '.join(map(_plain, told.channel_names))})" if told.channel_names else ""
    model = "a model of its owner's" if ":" in told.model else told.model
    return "\n".join(
        [
            f"# {_plain(model)}: {len(told.class_names)} classes",
            "",
            "Trained by several devices together with mdl: each on its own data, which no device has shown to another.",
            "",
            "| | |",
            "|---|---|",
            f"| goes in | {window}{names} |",
            f"| comes out | {', '.join(map(_plain, told.class_names))} |",
            f"| data | {_data(told.data)} |",
            f"| file | {size_bytes / 1e6:.2f} MB, safetensors |",
        ]
    )


def _training(told: Described, rounds: Sequence[RoundSummary]) -> str:
    lines = ["## How it was trained", "", f"- {told.round_id} rounds"]
    if rounds:
        counts = [len(each.contributors) for each in rounds]
        many = f"{counts[-1]}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        lines.append(f"- {many} devices in each round")
        lines.append(f"- {_tell_weights(rounds[-1])}")
    if told.own_batch_norm:
        lines.append("- batch norms are those of one device (FedBN): fit it to another sensor before you use it there")
    return "\n".join(lines)


def _tell_weights(last: RoundSummary) -> str:
    if last.theta == len(last.contributors):
        return "each device weighed the same, however many windows it holds"
    return f"a device weighed as many windows as it holds, {last.theta:,.0f} in all"


def _quality(told: Described, done: RoundSummary | None) -> str:
    if done is None or done.accuracy is None:
        return "## How well it does\n\nNot tested: no device of the run has told an accuracy of this round."
    lines = [
        "## How well it does",
        "",
        "On test windows of the devices that trained it, which were kept apart:",
        "",
    ]
    macro = "" if done.macro_f1 is None else f", macro F1 {done.macro_f1:.3f}"
    lines.append(f"accuracy {done.accuracy:.1%}{macro}")
    if len(done.confusion) == len(told.class_names):
        lines += ["", "| class | windows | found (recall) | right if told (precision) |", "|---|---|---|---|"]
        lines += [_row(told.class_names[index], done.confusion, index) for index in range(len(done.confusion))]
    return "\n".join(lines)


def _row(name: str, confusion: Confusion, index: int) -> str:
    hits, windows, said = confusion[index][index], sum(confusion[index]), sum(row[index] for row in confusion)
    return f"| {_plain(name)} | {windows} | {_share(hits, windows)} | {_share(hits, said)} |"


def _use(told: Described, file: str) -> str:
    own = " --model module:factory" if ":" in told.model else ""
    return "\n".join(
        [
            "## How to load it",
            "",
            f"    mdl predict {file} recording.csv{own}",
            f"    mdl export {file} --format onnx{own}",
            "",
            "In Python `mdl.files.export.import_model(path)` gives the torch module and its description, and",
            "`safetensors.torch.load_file(path)` the tensors alone.",
        ]
    )


def _data(spec: str) -> str:
    """Describe the data without its path and options: they hold names of people and folders."""
    if names_built_in(spec):
        return f"`{_plain(spec)}`"
    source = spec.partition(":")[0]
    return "recordings of the devices' owners" + (f" ({source})" if source in SOURCES else "")


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if of else "-"


def _plain(text: str) -> str:
    """Escape the letters that have a meaning in a Markdown table."""
    return "".join(f"\\{letter}" if letter in "|`*<>[]\\" else letter for letter in text if letter.isprintable())


def model_in(path: Path) -> Path:
    """Return a model file, or the global model of a run directory. Raises ConfigError if there is none."""
    model = path / "global.safetensors" if path.is_dir() else path
    if not model.exists():
        raise ConfigError(f"{path} has no model")
    return model


# Drawing takes some seconds on a small computer.
_DRAWN_S = 60.0


def report_on(out: Path) -> list[str]:
    """Write the card and the pictures; return lines for people: the files, or why they are missing."""
    try:
        rounds = read_rounds(out / "metrics.jsonl")
        card = write_card(model_in(out), rounds)
    except MdlError as error:
        return [f"no model card: {error}"]
    return [f"the model's card is {card}", *([_draw(out)] if rounds else [])]


def _draw(out: Path, command: Sequence[str] = (sys.executable, "-P", "-m", "mdl.peers.view.pictures")) -> str:
    if find_spec("matplotlib") is None:
        return "no pictures of the run: pip install 'mdl[plot]' has them drawn"
    try:
        done = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=_DRAWN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no pictures of the run: {type(error).__name__}"
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"no pictures of the run: {why[:200]}"
    return f"pictures of the run are in {out / 'pictures'}"


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
