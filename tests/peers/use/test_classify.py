"""`mdl predict` on recordings without labels, and `mdl export`: what a trained model is for."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from mdl.data.readers.unlabelled import live_windows
from mdl.data.tables.dialect import CsvOptions
from mdl.files.export import ModelDescription, export_model, import_model
from mdl.learning.evaluation import predict_logits
from mdl.learning.models import build_model
from mdl.peers.cli.main import main

CLASSES = ("run", "sit", "walk")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = build_model("lenet", 3, 16, 3, 0)
    torch.manual_seed(0)
    module(torch.randn(64, 3, 16))  # batch norm has seen something
    description = ModelDescription("lenet", 3, 16, CLASSES, "csv:x.csv", "home", 7, 0, ("ax", "ay", "az"), 50.0)
    export_model(tmp_path / "m.safetensors", module, description)
    return tmp_path / "m.safetensors"


def walk(rows: int, rate: float = 50.0) -> tuple[str, np.ndarray]:
    values = np.random.default_rng(1).normal(size=(rows, 3)).round(4)
    lines = [f"{row / rate:.3f},{z},{y},{x}" for row, (x, y, z) in enumerate(values.tolist())]
    return "\n".join(["time,AZ,AY,AX (g)", *lines]) + "\n", values.astype(np.float32)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["mdl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def predict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[list[dict[str, object]], dict[str, object]]:
    assert run(monkeypatch, "predict", *arguments, "--json") == 0, capsys.readouterr().err
    *rows, last = map(json.loads, capsys.readouterr().out.strip().split("\n"))
    return rows, last


def expected(model: Path, values: np.ndarray) -> list[str]:
    module, _ = import_model(model)
    x = values[: len(values) // 16 * 16].reshape(-1, 16, 3).transpose(0, 2, 1)
    return [CLASSES[place] for place in predict_logits(module, np.ascontiguousarray(x)).argmax(axis=1)]


@pytest.mark.parametrize("form", ["walk.csv", "csv:walk.csv", ".", "-"])
def test_all_windows_of_a_recording_without_labels_are_classified_in_order(
    model: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns are in another order, and by another spelling, than the model's channels."""
    text, values = walk(100)
    Path("walk.csv").write_text(text)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    rows, last = predict(monkeypatch, capsys, str(model), form)
    assert [row["predicted"] for row in rows] == expected(model, values)
    assert last["windows"] == 6
    if form != "-":
        assert [row["began_s"] for row in rows] == [round(0.32 * window, 3) for window in range(6)]
    else:
        assert [row["first_row"] for row in rows] == [1 + 16 * window for window in range(6)]


@pytest.mark.parametrize(
    "options", ["names=ax,ay,az", "map=acc_x:ax,Acceleration y:ay,acc_z:az", "names=t,ax,ay,az,all"]
)
def test_a_file_of_another_app_is_named_by_the_user(
    model: Path, options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a header, decimal commas and semicolons; the refusal says the option."""
    _, values = walk(100)
    lines = [f"{row / 50:.3f};{x};{y};{z};1".replace(".", ",") for row, (x, y, z) in enumerate(values.tolist())]
    names = [f"Acceleration {axis} (m/s^2)" for axis in "xyz"]
    Path("Raw Data.csv").write_text("\n".join([";".join(["Time (s)", *names, "Absolute (m/s^2)"]), *lines]) + "\n")
    rows, _ = predict(monkeypatch, capsys, str(model), f"csv:Raw Data.csv?{options}")
    assert [row["predicted"] for row in rows] == expected(model, values)
    assert run(monkeypatch, "predict", str(model), "Raw Data.csv") == 2
    assert "no column 'ax'; say ?map=Acceleration x:ax,Acceleration y:ay,Acceleration z:az" in capsys.readouterr().err


def test_only_possible_classes_are_said(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("walk.csv").write_text(walk(200)[0])
    rows, _ = predict(monkeypatch, capsys, str(model), "walk.csv", "--classes", "sit,walk")
    assert {row["predicted"] for row in rows} <= {"sit", "walk"}
    assert all(float(str(row["probability"])) >= 0.5 for row in rows)
    assert run(monkeypatch, "predict", str(model), "walk.csv", "--classes", "wlak") == 2
    assert "did you mean walk?" in capsys.readouterr().err


def test_a_faster_recording_is_brought_to_the_models_rate(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fast.csv").write_text(walk(400, 100.0)[0])
    rows, _ = predict(monkeypatch, capsys, str(model), "fast.csv")
    assert len(rows) == 12
    assert rows[1]["began_s"] == 0.32
    Path("slow.csv").write_text(walk(400, 10.0)[0])
    assert run(monkeypatch, "predict", str(model), "slow.csv") == 2
    assert "rate=50" in capsys.readouterr().err


def test_other_channels_are_refused_by_name(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("gyro.csv").write_text(walk(100)[0].replace("AZ", "gz"))
    assert run(monkeypatch, "predict", str(model), "gyro.csv") == 2
    assert "no column 'az'" in capsys.readouterr().err


def test_a_gap_or_a_missing_value_in_what_comes_begins_a_new_window() -> None:
    times = np.concatenate([np.arange(30), 500 + np.arange(40)])
    lines = ["# a logger", "t_ms,time,v", *(f"0,{time},{'' if row == 55 else row}" for row, time in enumerate(times))]
    found = list(live_windows(lines, "-", CsvOptions(columns="v", window=10, step=5)))
    assert [number for number, _ in found] == [10, 15, 20, 25, 30, 40, 45, 50, 55, 66]
    for number, x in found:
        assert x[0].tolist() == list(range(number - 10, number))


def test_a_time_with_a_mark_between_thousands_is_as_good_as_none() -> None:
    lines = ["time;v", *(f"{1_234.5 + row:,.1f};{row}" for row in range(12))]
    assert lines[1].startswith("1,234.5;")
    [(number, x)] = live_windows(lines, "-", CsvOptions(columns="v", window=10))
    assert (number, x[0].tolist()) == (10, list(range(10)))


ENDINGS = {"torch": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}


@pytest.mark.parametrize(("form", "name"), [("lenet", "torch"), ("lenet", "onnx"), ("lenet", "safetensors")])
def test_what_is_exported_gives_what_the_model_gives(
    model: Path, form: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "onnx" and any(importlib.util.find_spec(each) is None for each in ("onnx", "onnxscript")):
        assert run(monkeypatch, "export", str(model)) == 2
        assert "pip install 'mdl[onnx]'" in capsys.readouterr().err
        assert not model.with_suffix(".onnx").exists()
        return
    target = model.with_name(f"shared{ENDINGS[name]}")
    assert run(monkeypatch, "export", str(model), "--format", name, "--out", str(target.with_suffix("")), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert "within" in result["checked"] or "equal" in result["checked"] or "not installed" in result["checked"]
    assert target.stat().st_size == result["size_bytes"]
    card = Path(result["card"]).read_text()
    assert "| channels, in this order | ax, ay, az |" in card
    assert "run, sit, walk" in card
    assert sorted(path.name for path in model.parent.iterdir() if path.name.startswith(".")) == []


def test_a_model_is_not_exported_over_itself(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    assert run(monkeypatch, "export", str(model), "--format", "safetensors") == 2
    assert "--out" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_a_recording_in_another_unit_is_brought_to_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    """A file in g and one in m/s2 are the same to a model that says what it takes; to one that does not, as before."""
    text, values = walk(160)
    Path("ms2.csv").write_text(text.replace("AX (g)", "AX"))
    module, description = import_model(model)
    knowing = msgspec.structs.replace(description, channel_units=("m/s2",) * 3)
    export_model(tmp_path / "units.safetensors", module, knowing)
    answers = {}
    for unit, scale in (("m/s^2", 1.0), ("g", 1 / 9.80665)):
        rows = [f"{n / 50:.3f},{z},{y},{x}" for n, (x, y, z) in enumerate((values * scale).tolist())]
        Path("one.csv").write_text("\n".join([f"time,AZ ({unit}),AY ({unit}),AX ({unit})", *rows]))
        answers[unit], _ = predict(monkeypatch, capsys, "units.safetensors", "one.csv")
    assert [row["predicted"] for row in answers["g"]] == [row["predicted"] for row in answers["m/s^2"]]
    assert [row["predicted"] for row in answers["g"]] == expected(model, values)
    Path("turns.csv").write_text(text.replace("AX (g)", "AX").replace("AZ", "AZ (deg/s)"))
    assert run(monkeypatch, "predict", "units.safetensors", "turns.csv") == 2
    assert "channel 'ax' has no unit, but the model has it in m/s2" in capsys.readouterr().err
