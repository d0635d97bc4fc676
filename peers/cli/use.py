"""`mdl eval`, `mdl predict`, `mdl export` and `mdl log`: use the results of a run."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from mdl.config import MANY
from mdl.peers.command.options import DATA, AsJson, DataSpec, OwnModel, print_json, tell

# Rounds take longer; a look opens a few files.
_LOOK_S = 0.5
ModelFile = Annotated[
    Path, typer.Argument(help="Read global.safetensors, or the run directory that holds it.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands, in this order."""
    app.command("eval", rich_help_panel=DATA)(evaluate)
    app.command(rich_help_panel=DATA)(predict)
    app.command(rich_help_panel=DATA)(export)
    app.command(rich_help_panel=DATA)(log)


def evaluate(model: ModelFile, data: DataSpec = None, own: OwnModel = None, as_json: AsJson = False) -> None:
    """Test a trained model on a data set's test windows."""
    from mdl.own import own_data, own_model
    from mdl.peers.use.inference import evaluate_model, show_evaluation

    result = evaluate_model(model, own_data(data) if data else None, own_model(own) if own else None)
    if as_json:
        print_json(result)
    else:
        show_evaluation(result)


def predict(
    model: ModelFile,
    recordings: Annotated[
        list[str] | None,
        typer.Argument(help="Classify files or folders without labels, csv:PATH?..., or -.", metavar="[FILE]..."),
    ] = None,
    data: DataSpec = None,
    own: OwnModel = None,
    classes: Annotated[str, typer.Option(help="Choose among these classes of the model alone: a,b.")] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Go on as FILE grows, until Ctrl-C.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="Show so many windows; by default 20 of --data, all of FILE.", min=1, max=MANY)
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Predict the place at this time, 9:00 or 2026-05-04T09:00; for places.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Classify windows with a trained model.

    With --at it tells the place of a person at that moment.
    """
    if at is not None:
        from mdl.peers.use.inference import predict_places, show_places

        where = predict_places(model, data, at, limit or 20)
        print_json(where) if as_json else show_places(where)
        return
    if recordings:
        _classify(model, own, recordings, classes, follow, limit, as_json)
        return
    from mdl.own import own_data, own_model
    from mdl.peers.use.inference import predict_windows, show_predictions

    result = predict_windows(model, own_data(data) if data else None, limit or 20, own_model(own) if own else None)
    if as_json:
        print_json(result)
    else:
        show_predictions(result)


def export(
    model: ModelFile,
    form: Annotated[
        Literal["safetensors", "onnx", "torch"],
        typer.Option("--format", help="Write safetensors (the parameters), onnx, or torch (torch.export, a .pt2)."),
    ] = "onnx",
    out: Annotated[Path | None, typer.Option(help="Write to this file; by default beside the model.")] = None,
    own: OwnModel = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model for other programs, and check it.

    The result has to answer as the model does. A card beside it describes it.
    """
    from mdl.own import own_model
    from mdl.peers.use.portable import export_portable

    result = export_portable(model, form, out, own_model(own) if own else None)
    if as_json:
        print_json(result)
        return
    print(f"{result['file']}: {form}, {result['size_bytes']:,} bytes; {result['checked']}")
    print(f"{result['card']} describes it")


def log(
    run: Annotated[Path, typer.Argument(help="Read this run directory.", show_default=False)],
    form: Annotated[
        Literal["tensorboard", "wandb"], typer.Option("--to", help="Write for this program; wandb offline.")
    ] = "tensorboard",
    out: Annotated[
        Path | None, typer.Option(help="Write to this empty folder; by default one in the run directory.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write each round as it ends, until the run ends or Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's rounds for TensorBoard or Weights & Biases.

    Nothing is sent over a network.
    """
    from mdl.peers.interrupts import handled, interrupt
    from mdl.peers.view.report import follow_log, write_log

    def tell_folder(folder: Path) -> None:
        shown = "tensorboard --logdir shows it" if form == "tensorboard" else "wandb sync sends it"
        (tell if as_json else print)(f"{folder}: {shown}")

    if not follow:
        folder = write_log(run, form, out)
        if as_json:
            print_json({"format": form, "folder": str(folder)})
        else:
            tell_folder(folder)
        return
    with handled(interrupt):
        written = follow_log(run, form, out, tell_folder, lambda: time.sleep(_LOOK_S))
    if as_json:
        print_json({"format": form, "folder": str(out or run / form), "rounds": written})


def _classify(
    model: Path, own: str | None, recordings: list[str], classes: str, follow: bool, limit: int | None, as_json: bool
) -> None:
    from mdl.data.spec import split_names
    from mdl.errors import ConfigError
    from mdl.own import own_model
    from mdl.peers.use.inference import classify, describe_prediction, load_model, show_prediction

    if follow and len(recordings) != 1:
        raise ConfigError(f"--follow goes on with one file; {len(recordings)} are given")
    module, description = load_model(model, own_model(own) if own else None)
    counts: dict[str, int] = {}
    windows = 0
    rows = itertools.chain.from_iterable(
        classify(module, description, each, split_names(classes), follow=follow) for each in recordings
    )
    for row in itertools.islice(rows, limit):
        windows += 1
        predicted = row.answer.predicted
        for name in [predicted] if isinstance(predicted, str) else predicted:
            counts[name] = counts.get(name, 0) + 1
        print(json.dumps(describe_prediction(row)) if as_json else show_prediction(row, description.units), flush=True)
    if as_json:
        by = {"classes": {"windows_by_class": counts}, "labels": {"windows_by_label": counts}}
        print_json({"model": description.model, "windows": windows, **by.get(description.targets, {})})
