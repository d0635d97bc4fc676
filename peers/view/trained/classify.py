"""`mdl predict` on unlabelled recordings: files, folders, a file that grows, or a pipe.

The model's file gives the channels, the number of samples and the rate of its windows; the options of the recording
give its particulars. Windows follow one another without overlap unless ?step= is given.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import nn

from mdl.data import default_cache_dir
from mdl.data.readers.images import iterate_images
from mdl.data.readers.unlabelled import read_unlabelled
from mdl.data.sources import parse_spec
from mdl.data.spec import describe_choices, read_options
from mdl.data.tables.live import live_windows
from mdl.data.tables.options import CsvOptions
from mdl.errors import ConfigError, DataError
from mdl.files.export import ModelDescription
from mdl.learning.evaluation import predict_logits
from mdl.peers.view.tail import LineTail
from mdl.peers.view.trained.answers import Answer, read_outputs
from mdl.reading import open_regular

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
