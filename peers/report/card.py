"""A model card in Markdown, from a run's files: what the model is, how well it does, how to load it.

It names no device, no person and no path: the card goes with the model. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mdl.data.quantities import describe_units
from mdl.data.sources import SOURCES, names_built_in
from mdl.errors import ConfigError
from mdl.files.checkpoint import read_metadata
from mdl.protocol.counts import Confusion
from mdl.protocol.status_messages import RoundSummary
from mdl.reading import decode_json
from mdl.writing import write_bytes

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
