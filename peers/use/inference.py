"""`mdl eval` and `mdl predict`: use a trained model on windows of a data set, or on unlabelled recordings.

spec, model: the user's data and model; None leaves them to the file, which may name built-in ones. An answer for one
window is a class, numbers, or the labels that hold.

Recordings are files, folders, a file that grows, or a pipe. The model's file gives the channels, the number of samples
and the rate of their windows; the options of the recording give its particulars. Windows follow one another without
overlap unless ?step= is given.

`mdl predict --at` predicts the places of people in a log at a moment (Colla 2.1), by a device's own M-RNN.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch
from msgspec import to_builtins
from numpy.typing import NDArray
from rich.table import Table
from safetensors.torch import save
from torch import Tensor, nn

from mdl.channels import convert_channels
from mdl.data import DataSet, default_cache_dir, load_data
from mdl.data.readers.images import iterate_images
from mdl.data.readers.places import PlaceLog, PlaceOptions, read_stays
from mdl.data.readers.unlabelled import live_windows, read_unlabelled
from mdl.data.readers.visits import WINDOW_S, WINDOWS_A_DAY, WINDOWS_AN_HOUR, Stays, ask_next
from mdl.data.sources import parse_spec
from mdl.data.spec import describe_choices, read_options
from mdl.data.tables.dialect import CsvOptions
from mdl.errors import ConfigError, DataError, RemoteProtocolError
from mdl.files.checkpoint import read_safetensors
from mdl.files.export import ModelDescription, find_model_file, import_model
from mdl.files.figures import LineTail
from mdl.learning.evaluation import evaluate, predict_logits
from mdl.own import Own
from mdl.peers.colla.files import PERSONAL
from mdl.peers.colla.model.distillation import predict_probabilities
from mdl.peers.colla.model.model_kinds import RecurrentKind
from mdl.peers.colla.model.recurrent import RecurrentModel, recurrent_shapes
from mdl.peers.view.terminal import PlainConsole
from mdl.protocol.counts import Evaluation
from mdl.reading import open_regular
from mdl.task import channels_difference, rates_difference, unit_runs

# A class; the labels that hold; or numbers by name, in their units.
Predicted: TypeAlias = str | list[str] | dict[str, float]

# A label holds if its probability is above this.
HOLDS = 0.5
_NONE = "none"


class Answer(NamedTuple):
    """The answer for one window. shares: the probability of the class, or of each label by name; empty for numbers."""

    predicted: Predicted
    shares: dict[str, float]

    def describe(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        if isinstance(self.predicted, str):
            return {"predicted": self.predicted, "probability": self.shares[self.predicted]}
        return {"predicted": self.predicted} | ({"probabilities": self.shares} if self.shares else {})

    def show(self, units: Sequence[str] = ()) -> str:
        """Return the answer in one line. units: of numbers."""
        if isinstance(self.predicted, str):
            return f"{self.predicted:<20} {self.shares[self.predicted]:.1%}"
        if isinstance(self.predicted, list):
            return ", ".join(f"{name} {self.shares[name]:.1%}" for name in self.predicted) or _NONE
        return show_predicted(self.predicted, units)


def read_outputs(
    outputs: NDArray[np.float32], description: ModelDescription, chosen: Sequence[int] | None = None
) -> Iterator[Answer]:
    """Yield one answer a row.

    outputs: float32 (n, outputs), as the module gives them. chosen: classes that are possible here.
    """
    names, values = description.class_names, outputs.astype(np.float64)
    if description.targets == "numbers":
        for row in values.tolist():
            yield Answer({name: float(f"{value:.6g}") for name, value in zip(names, row, strict=True)}, {})
    elif description.targets == "labels":
        for row in (1 / (1 + np.exp(-values.clip(-700, 700)))).tolist():
            shares = {name: round(share, 4) for name, share in zip(names, row, strict=True)}
            yield Answer([name for name, share in zip(names, row, strict=True) if share > HOLDS], shares)
    else:
        places = np.arange(len(names)) if chosen is None else np.array(chosen)
        kept = np.exp(values[:, places] - values[:, places].max(axis=1, keepdims=True))
        for shares_of in kept / kept.sum(axis=1, keepdims=True):
            name = names[int(places[shares_of.argmax()])]
            yield Answer(name, {name: round(float(shares_of.max()), 4)})


def true_answer(known: Any, description: ModelDescription) -> Predicted:
    """Return the known answer of a window: from a class's number, a row of numbers, or a row of 0 and 1."""
    names = description.class_names
    if description.targets == "classes":
        return names[int(known)]
    if description.targets == "labels":
        return [name for name, holds in zip(names, known.tolist(), strict=True) if holds]
    return {name: float(f"{value:.6g}") for name, value in zip(names, known.tolist(), strict=True)}


def show_predicted(predicted: Predicted, units: Sequence[str] = ()) -> str:
    """Return a prediction in one line, without probabilities."""
    if isinstance(predicted, str):
        return predicted
    if isinstance(predicted, list):
        return ", ".join(predicted) or _NONE
    told = zip(predicted.items(), units or [""] * len(predicted), strict=True)
    return ", ".join(f"{name} {value:.4g} {unit}".rstrip() for (name, value), unit in told)


def load_model(path: Path, model: str | Own | None) -> tuple[nn.Module, ModelDescription]:
    """Load a model as `import_model` does, from a file or a run directory."""
    return import_model(find_model_file(path), model)


def evaluate_model(path: Path, spec: str | Own | None, model: str | Own | None = None) -> dict[str, Any]:
    """Return how good it is on the test windows, by measures of its targets.

    Raises DataError if the data does not fit.
    """
    module, description, data = _load(path, spec, model)
    counts = evaluate(module, data.test.x, data.test.y, len(data.classes))
    return {
        "model": description.model,
        "round": description.round_id,
        "data": data.name,
        "synthetic": data.synthetic,
        "windows": counts.n,
        "targets": counts.targets,
        **_measures(counts, data),
        "loss": counts.loss,
    }


def _measures(counts: Evaluation, data: DataSet) -> dict[str, Any]:
    """Return the measures by their names."""
    if counts.targets == "numbers":
        units = data.units or ("",) * len(data.classes)
        named = zip(data.classes, counts.fits, units, strict=True)
        return {"r2": counts.score, "numbers": {name: {**to_builtins(fit), "unit": unit} for name, fit, unit in named}}
    sides = (counts.true_positive, counts.false_positive, counts.false_negative)
    found = {name: each for name, *each in zip(data.classes, *sides, strict=True)}
    if counts.targets == "labels":
        labels = {name: _describe_label(*each) for name, each in found.items()}
        return {**to_builtins(counts.labelling), "macro_f1": counts.macro_f1, "labels": labels}
    recall = {name: hit / (hit + missed) if hit + missed else None for name, (hit, _, missed) in found.items()}
    return {"accuracy": counts.accuracy, "macro_f1": counts.macro_f1, "recall": recall}


def _describe_label(hit: int, wrong: int, missed: int) -> dict[str, float | None]:
    """Return the measures of a label; None if one is undefined: no window has it, or the model never predicts it."""
    return {
        "f1": 2 * hit / (2 * hit + wrong + missed) if hit + wrong + missed else None,
        "precision": hit / (hit + wrong) if hit + wrong else None,
        "recall": hit / (hit + missed) if hit + missed else None,
    }


def predict_windows(path: Path, spec: str | Own | None, limit: int, model: str | Own | None = None) -> dict[str, Any]:
    """Return predictions for the first `limit` test windows, with their true labels."""
    module, description, data = _load(path, spec, model)
    outputs = predict_logits(module, np.ascontiguousarray(data.test.x[:limit]))
    rows = []
    for row, answer in enumerate(read_outputs(outputs, description)):
        rows.append({"window": row, **answer.describe(), "label": true_answer(data.test.y[row], description)})
    told = {"model": description.model, "targets": data.targets, "units": list(description.units), "data": data.name}
    return {**told, "predictions": rows}


def show_evaluation(result: dict[str, Any]) -> None:
    console = PlainConsole()
    synthetic = " (synthetic data)" if result["synthetic"] else ""
    console.print(
        f"{result['model']}, round {result['round']}, on {result['windows']} windows of {result['data']}{synthetic}"
    )
    console.print(_tell_measures(result))
    if result["targets"] == "numbers":
        table = Table("number", "RMSE", "MAE", "R²", box=None)
        for name, fit in result["numbers"].items():
            errors = (f"{fit[key]:.4g} {fit['unit']}".rstrip() for key in ("rmse", "mae"))
            table.add_row(name, *errors, _show_r2(fit["r2"]))
    elif result["targets"] == "labels":
        table = Table("label", "F1", "precision", "recall", box=None)
        for name, each in result["labels"].items():
            table.add_row(name, *map(_show_share, each.values()))
    else:
        table = Table("class", "recall", box=None)
        for name, recall in result["recall"].items():
            table.add_row(name, _show_share(recall))
    console.print(table)


def _tell_measures(result: dict[str, Any]) -> str:
    loss = f"loss {result['loss']:.3f}"
    if result["targets"] == "numbers":
        return f"R² {_show_r2(result['r2'])}, {loss}"
    if result["targets"] == "labels":
        found = f"micro F1 {result['micro_f1']:.3f}, macro F1 {result['macro_f1']:.3f}"
        return f"{found}, {result['exact']:.1%} of windows all right, {loss}"
    return f"accuracy {result['accuracy']:.2%}, macro F1 {result['macro_f1']:.3f}, {loss}"


def _show_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _show_r2(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def show_predictions(result: dict[str, Any]) -> None:
    if result["targets"] == "classes":
        table = Table("window", "predicted", "probability", "label", box=None)
        for row in result["predictions"]:
            style = "" if row["predicted"] == row["label"] else "red"
            table.add_row(str(row["window"]), row["predicted"], f"{row['probability']:.1%}", row["label"], style=style)
    else:
        table = Table("window", "predicted", "truth", box=None)
        for row in result["predictions"]:
            table.add_row(
                str(row["window"]), *(show_predicted(row[key], result["units"]) for key in ("predicted", "label"))
            )
    PlainConsole().print(table)


def describe_shape(shape: tuple[int, ...]) -> str:
    """Describe one example's shape in words."""
    axes = "windows of {} (channels, time)" if len(shape) == 2 else "images of {} (channels, height, width)"
    return axes.format(shape)


def _load(path: Path, spec: str | Own | None, model: str | Own | None) -> tuple[nn.Module, ModelDescription, DataSet]:
    file = find_model_file(path)
    module, description = load_model(path, model)
    chosen = spec or description.built_in_data
    if not chosen:
        raise DataError(
            f"{file} was trained on {description.data[:200]!r}, and a file may name built-in data only: mdl opens and "
            "imports nothing because a file says so. Give the data: --data SPEC"
        )
    data = load_data(chosen, default_cache_dir(), description.seed)
    if data.shape != description.shape:
        raise DataError(f"the model takes {describe_shape(description.shape)}, {chosen} has {data.shape}")
    if (data.targets, data.classes) != (description.targets, description.class_names):
        raise DataError(
            f"the model knows {description.targets} {description.class_names}, "
            f"the data has {data.targets} {data.classes}"
        )
    if data.units and description.units and data.units != description.units:
        raise DataError(
            f"the model gives {', '.join(description.outputs)}; the data has them in {', '.join(data.units)}"
        )
    if difference := channels_difference(description.channel_names, data.channels):
        raise DataError(f"the data's channels are not the model's: {difference} (here: {file}, there: {chosen})")
    if difference := rates_difference(description.rate_hz, data.rate_hz):
        raise DataError(f"the data's sampling rate is not the model's: {difference} (here: {file}, there: {chosen})")
    return module, description, _in_units_of(description, data, f"{chosen}")


def _in_units_of(description: ModelDescription, data: DataSet, where: str) -> DataSet:
    """Bring the test windows to the model's units. Raises DataError if their channels measure something else."""
    if not description.channel_units or description.channel_units == data.channel_units:
        return data
    x = convert_channels(data.test.x, data.channel_units, description.channel_units)
    if x is None:
        here, there = (
            ", ".join(unit_runs(units)) or "unknown units" for units in (data.channel_units, description.channel_units)
        )
        raise DataError(f"{where}: channels in {here}, the model takes them in {there}; ?units= says what they are in")
    return replace(data, test=replace(data.test, x=x), channel_units=description.channel_units)


STDIN = "-"
# Windows classified together: 256 of 9 x 128 in float32 are 1.2 MB.
_AT_ONCE = 256
# Pictures likewise: 32 of 3 x 224 x 224 in float32 are 19 MB.
_IMAGES_AT_ONCE = 32
# The time between two looks at a file that grows: short for a user, and little work.
_LOOK_S = 0.2


@dataclass(frozen=True)
class Prediction:
    """One window or picture.

    began: in seconds since the recording's first row, or its first row from 0 if is_timed is False; of a picture None.
    """

    recording: str
    began: float | None
    is_timed: bool
    answer: Answer


def classify(
    module: nn.Module, description: ModelDescription, said: str, classes: Sequence[str] = (), *, follow: bool = False
) -> Iterator[Prediction]:
    """Yield the predictions for `said`: a path, csv:PATH?options, or - for stdin.

    classes: the model's classes that are possible here.
    follow: goes on as the file grows, until interrupted. Raises ConfigError or DataError naming the file and the row.
    """
    chosen = _choose_classes(description, classes)
    if description.height is not None:
        yield from _classify_images(module, description, said, chosen, follow)
        return
    text = said.partition("?")[0]
    # A path does not tell its kind; a folder, or any ending, is read as tables here.
    is_named = text == STDIN or text.startswith("csv:")
    spec = parse_spec(said if is_named and text != STDIN else f"csv:{said}")
    options = _complete(read_options(spec, CsvOptions), description)
    if spec.path == STDIN or follow:
        lines = sys.stdin if spec.path == STDIN else _follow(Path(spec.path))
        for number, x in live_windows(lines, spec.path, options, _model_units(description)):
            [answer] = read_outputs(predict_logits(module, x[None]), description, chosen)
            yield Prediction(spec.path, float(number - options.window), False, answer)
        return
    units = _model_units(description)
    with read_unlabelled(spec.path, options, description.rate_hz, default_cache_dir(), units) as windows:
        if windows.x.shape[1] != description.channels:
            raise DataError(
                f"{spec.path}: {windows.x.shape[1]} channels, the model takes {description.channels}; choose them with "
                f"?columns="
            )
        for first in range(0, len(windows.x), _AT_ONCE):
            outputs = predict_logits(module, np.ascontiguousarray(windows.x[first : first + _AT_ONCE]))
            for row, answer in enumerate(read_outputs(outputs, description, chosen), first):
                recording = str(windows.files[int(windows.recording[row])])
                yield Prediction(recording, round(float(windows.began[row]), 3), windows.is_timed, answer)


def _classify_images(
    module: nn.Module, description: ModelDescription, said: str, chosen: Sequence[int], follow: bool
) -> Iterator[Prediction]:
    """Yield the predictions for a picture, or for a folder of them."""
    if follow or said == STDIN:
        raise ConfigError("the model takes images: name a picture or a folder")
    pictures = iterate_images(said.removeprefix("images:"), description.shape)
    while some := list(itertools.islice(pictures, _IMAGES_AT_ONCE)):
        outputs = predict_logits(module, np.stack([pixels for _, pixels in some]))
        for (file, _), answer in zip(some, read_outputs(outputs, description, chosen), strict=True):
            yield Prediction(str(file), None, False, answer)


def show_prediction(row: Prediction, units: Sequence[str] = ()) -> str:
    """Return a prediction in one line. units: of numbers."""
    at = "" if row.began is None else f"{row.began:10.2f} s  " if row.is_timed else f"row {row.began + 1:8.0f}  "
    return f"{row.recording}  {at}{row.answer.show(units)}"


def describe_prediction(row: Prediction) -> dict[str, Any]:
    """Return a prediction for --json."""
    began: dict[str, float] = {}
    if row.began is not None:
        began = {"began_s": row.began} if row.is_timed else {"first_row": int(row.began) + 1}
    return {"recording": row.recording, **began, **row.answer.describe()}


def _choose_classes(description: ModelDescription, classes: Sequence[str]) -> list[int]:
    names = description.class_names
    if classes and description.targets != "classes":
        raise ConfigError(f"--classes is for models of classes; this one gives {description.targets}")
    for name in classes:
        if name not in names:
            raise ConfigError(f"--classes {name}: the model does not know it; {describe_choices(name, names)}")
    return [place for place, name in enumerate(names) if not classes or name in classes]


def _complete(options: CsvOptions, description: ModelDescription) -> CsvOptions:
    """Complete the user's options from the model. A label that the user names is a column, and no channel."""
    named = options.channels or options.columns or ",".join(description.channel_names)
    changes: dict[str, Any] = {"columns": named, "channels": "", "window": description.time}
    if options.step is None:
        changes["step"] = description.time
    return msgspec.structs.replace(options, **changes)


def _model_units(description: ModelDescription) -> tuple[str, ...]:
    """Return the unit that the model takes each channel in, "" if its file does not say."""
    return description.channel_units or ("",) * description.channels


def _follow(file: Path) -> Iterator[str]:
    open_regular(file, "a file that grows").close()
    tail = LineTail(file)
    while True:
        lines = tail.new()
        yield from (line.decode("utf-8-sig", "replace") for line in lines)
        if not lines:
            time.sleep(_LOOK_S)


_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def predict_places(path: Path, spec: str | None, at: str, limit: int) -> dict[str, Any]:
    """Return the likeliest place of the first `limit` people, after their log. at: see `parse_moment`.

    Raises ConfigError for an invalid moment or data without places, DataError for a model that does not fit.
    """
    source = parse_spec(spec or "places:")
    if source.source != "places" or not source.path:
        raise ConfigError("--at asks for a person's place: it needs --data places:PATH, the record up to now")
    options = read_options(source, PlaceOptions)
    parse_moment(at, 0)
    log = read_stays(source.path, options)
    kind, model = _load_places(path / PERSONAL if path.is_dir() else path, log)
    rows = []
    for name, stays in [(name, stays) for name, stays in log.stays.items() if len(stays)][:limit]:
        asked = parse_moment(at, _end(stays))
        if asked < _end(stays):
            raise ConfigError(f"--at {at}: {name}'s record goes on to {_tell(_end(stays))}; ask about a later moment")
        shares = predict_probabilities(model, torch.from_numpy(ask_next(stays, asked, options.steps)))[0]
        best = int(shares.argmax())
        place = log.places[int(kind.class_ids(model)[best])]
        rows.append({"person": name, "at": _tell(asked), "place": place, "probability": round(float(shares[best]), 4)})
    return {"model": str(path), "predictions": rows}


def show_places(result: dict[str, Any]) -> None:
    table = Table("person", "at", "place", "probability", box=None)
    for row in result["predictions"]:
        table.add_row(row["person"], row["at"], row["place"], f"{row['probability']:.1%}")
    PlainConsole().print(table)


def parse_moment(text: str, after: int) -> int:
    """Return the window of 10 minutes of a local date and time, or of a clock (9:00) after window `after`.

    Raises ConfigError that says what would be valid.
    """
    if found := _CLOCK.fullmatch(text):
        of_day = int(found[1]) * WINDOWS_AN_HOUR + int(found[2]) * 60 // WINDOW_S
        return after + (of_day - after) % WINDOWS_A_DAY
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // WINDOW_S
    except ValueError:
        raise ConfigError(f"--at {text[:40]!r}: expected a time, as in 9:00, or 2026-05-04T09:00") from None


def _load_places(file: Path, log: PlaceLog) -> tuple[RecurrentKind, RecurrentModel]:
    arrays, metadata = read_safetensors(file)
    try:
        embedding, hidden = arrays["embed.0.weight"].shape[1], arrays["lstm.weight_hh_l0"].shape[1]
        # Check this before memory is taken: a tensor without a row may claim any width.
        for name, shape in recurrent_shapes(f"{embedding}-{hidden}", len(log.places), arrays["class_ids"].size).items():
            if arrays[name].shape != shape:
                raise DataError(f"{file} is no model of these {len(log.places)} places ({name} has another shape)")
        tensors: dict[str, Tensor] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        kind = RecurrentKind(log.places, f"{embedding}-{hidden}", f"{embedding}-{hidden}")
        model = kind.unpack(save(tensors))
    except (KeyError, IndexError, RemoteProtocolError) as error:
        raise DataError(f"{file} is no model of these {len(log.places)} places ({error})") from None
    if (theirs := metadata.get("summary", "").partition(" -> ")[2]) and theirs != kind.summary.partition(" -> ")[2]:
        raise DataError(f"{file} knows other places ({theirs}): give the same file, or the same centre and cell")
    return kind, model


def _end(stays: Stays) -> int:
    return int(stays.start[-1] + stays.duration[-1])


def _tell(window: int) -> str:
    return datetime.fromtimestamp(window * WINDOW_S, UTC).strftime("%Y-%m-%d %H:%M")
