"""`mdl eval` and `mdl predict`: use a trained model on windows of a data set.

spec, model: what the user says of the data and the model; None leaves it to the file, which may name built-in ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from torch import nn

from mdl.data import DataSet, default_cache_dir, load_data
from mdl.errors import DataError
from mdl.files.export import ModelDescription, import_model
from mdl.learning.evaluation import evaluate, predict_logits
from mdl.own import Own
from mdl.task import channels_difference, rates_difference
from peers.view.console import PlainConsole


def find_model_file(path: Path) -> Path:
    """The file itself, or the one in a run directory."""
    return path / "global.safetensors" if path.is_dir() else path


def load_model(path: Path, model: str | Own | None) -> tuple[nn.Module, ModelDescription]:
    """As `import_model`, of a file or a run directory."""
    return import_model(find_model_file(path), model)


def evaluate_model(path: Path, spec: str | Own | None, model: str | Own | None = None) -> dict[str, Any]:
    """Accuracy, macro F1 and per-class recall on the test windows. Raises DataError if the data does not fit."""
    module, description, data = _load(path, spec, model)
    counts = evaluate(module, data.test.x, data.test.y, len(data.classes))
    recalls = {
        name: hit / (hit + missed) if hit + missed else None
        for name, hit, missed in zip(data.classes, counts.true_positive, counts.false_negative, strict=True)
    }
    return {
        "model": description.model,
        "round": description.round_id,
        "data": data.name,
        "synthetic": data.synthetic,
        "windows": counts.n,
        "accuracy": counts.accuracy,
        "macro_f1": counts.macro_f1,
        "loss": counts.loss,
        "recall": recalls,
    }


def predict_windows(path: Path, spec: str | Own | None, limit: int, model: str | Own | None = None) -> dict[str, Any]:
    """Class and probability of the first `limit` test windows, with the label they carry."""
    module, description, data = _load(path, spec, model)
    logits = predict_logits(module, np.ascontiguousarray(data.test.x[:limit])).astype(np.float64)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = [
        {
            "window": row,
            "predicted": data.classes[int(share.argmax())],
            "probability": round(float(share.max()), 4),
            "label": data.classes[int(data.test.y[row])],
        }
        for row, share in enumerate(shares)
    ]
    return {"model": description.model, "data": data.name, "predictions": rows}


def show_evaluation(result: dict[str, Any]) -> None:
    console = PlainConsole()
    synthetic = " (synthetic data)" if result["synthetic"] else ""
    console.print(
        f"{result['model']}, round {result['round']}, on {result['windows']} windows of {result['data']}{synthetic}"
    )
    console.print(f"accuracy {result['accuracy']:.2%}, macro F1 {result['macro_f1']:.3f}, loss {result['loss']:.3f}")
    table = Table("class", "recall", box=None)
    for name, recall in result["recall"].items():
        table.add_row(name, "-" if recall is None else f"{recall:.1%}")
    console.print(table)


def show_predictions(result: dict[str, Any]) -> None:
    table = Table("window", "predicted", "probability", "label", box=None)
    for row in result["predictions"]:
        style = "" if row["predicted"] == row["label"] else "red"
        table.add_row(str(row["window"]), row["predicted"], f"{row['probability']:.1%}", row["label"], style=style)
    PlainConsole().print(table)


def describe_shape(shape: tuple[int, ...]) -> str:
    """What one example is, in words."""
    axes = "windows of {} (channels, time)" if len(shape) == 2 else "images of {} (channels, height, width)"
    return axes.format(shape)


def _load(path: Path, spec: str | Own | None, model: str | Own | None) -> tuple[nn.Module, ModelDescription, DataSet]:
    file = find_model_file(path)
    module, description = load_model(path, model)
    chosen = spec or description.built_in_data
    if not chosen:
        raise DataError(
            f"{file} was trained on {description.data[:200]!r}; a file may name built-in data only, since nothing is "
            "opened or imported because a file says so: say which data, --data SPEC"
        )
    data = load_data(chosen, default_cache_dir(), description.seed)
    if data.shape != description.shape:
        raise DataError(f"the model takes {describe_shape(description.shape)}, {chosen} has {data.shape}")
    if data.classes != description.class_names:
        raise DataError(f"the model knows classes {description.class_names}, the data has {data.classes}")
    if difference := channels_difference(description.channel_names, data.channels):
        raise DataError(f"the data's channels are not the model's: {difference} (here: {file}, there: {chosen})")
    if difference := rates_difference(description.rate_hz, data.rate_hz):
        raise DataError(f"the data's sampling rate is not the model's: {difference} (here: {file}, there: {chosen})")
    return module, description, data
