"""`mdl eval` and `mdl predict`: use a trained model on windows of a data set.

spec, model: the user's data and model; None leaves them to the file, which may name built-in ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins
from rich.table import Table
from torch import nn

from mdl.data import DataSet, default_cache_dir, load_data
from mdl.data.quantities import convert_channels
from mdl.errors import DataError
from mdl.files.export import ModelDescription, find_model_file, import_model
from mdl.learning.evaluation import evaluate, predict_logits
from mdl.own import Own
from mdl.peers.view.console import PlainConsole
from mdl.peers.view.trained.answers import read_outputs, show_predicted, true_answer
from mdl.protocol.counts import Evaluation
from mdl.task import channels_difference, rates_difference, unit_runs


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
