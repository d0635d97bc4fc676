"""What a text may name: built-in names from anywhere, a function of the user's only where the user says it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from mdl.config import Config, RoundSection
from mdl.data import load_data
from mdl.data.sources import names_built_in
from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.files.export import ModelDescription, export_model, import_model
from mdl.learning.models import build_model
from mdl.own import own_data, own_model, own_policy
from mdl.peers.colla.model.model_kinds import WindowKind
from mdl.peers.edge.relearner import choose_policy

LENET = ModelDescription("lenet", 3, 32, ("sit", "stand"), "motion", "home", 5)
# Importing it leaves a mark; calling it leaves another.
CANARY = """
from pathlib import Path
Path("imported").touch()
def make(**options):
    Path("called").touch()
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(96, 2))
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "canary_of_this_test.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "canary_of_this_test", raising=False)
    return tmp_path


def is_untouched(folder: Path) -> bool:
    return not (folder / "imported").exists() and "canary_of_this_test" not in sys.modules


@pytest.mark.parametrize("name", ["canary_of_this_test:make", "canary_of_this_test:make?a=1", "os:abort"])
def test_a_text_is_never_imported(canary: Path, name: str) -> None:
    for attempt in (
        lambda: build_model(name, 3, 32, 2, seed=0),
        lambda: WindowKind(name, "lenet", 3, 32, ("a", "b")),
        lambda: WindowKind("lenet", name, 3, 32, ("a", "b")).build_large(0),
    ):
        with pytest.raises(ConfigError, match="nothing is imported unless you say so with --model"):
            attempt()
    with pytest.raises(ConfigError, match="nothing is imported unless you say so with --data"):
        load_data(name, canary)
    assert is_untouched(canary)


def test_what_the_user_names_is_imported(canary: Path) -> None:
    module = build_model(own_model("canary_of_this_test:make"), 3, 32, 2, seed=0)
    assert module(torch.zeros(1, 3, 32)).shape == (1, 2)
    assert own_model("lenet") == "lenet"
    assert own_data("csv:walk.csv?label=a") == "csv:walk.csv?label=a"
    assert str(own_data("canary_of_this_test:make?n=3")) == "canary_of_this_test:make?n=3"


def test_a_policy_is_imported_for_the_command_line_alone(canary: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is imported unless you say so with --policy"):
        choose_policy(Config(round=RoundSection(policy="canary_of_this_test:make")))
    assert own_policy("./canary_of_this_test:make") == "./canary_of_this_test:make"
    assert is_untouched(canary)
    own = own_policy("canary_of_this_test:make")
    with pytest.raises(ConfigError, match="policy 'canary_of_this_test:make' returned Sequential, not an object with"):
        choose_policy(Config(), own)
    assert (canary / "called").exists()


def test_a_model_file_that_names_a_function_is_not_followed(canary: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(96, 2))
    path = canary / "global.safetensors"
    export_model(path, own, msgspec.structs.replace(LENET, model="canary_of_this_test:make"))
    with pytest.raises(ConfigError, match=r"mdl imports nothing because a file says so.*--model module:function"):
        import_model(path)
    assert is_untouched(canary)
    module, _ = import_model(path, own_model("canary_of_this_test:make"))
    assert torch.equal(module[1].weight, own[1].weight)


@pytest.mark.parametrize("spec", ["motion", "motion?people=3", "uci-har", "semg?window=32"])
def test_built_in_data_may_be_named_by_a_file(spec: str) -> None:
    assert names_built_in(spec)
    assert msgspec.structs.replace(LENET, data=spec).built_in_data == spec


@pytest.mark.parametrize(
    "spec",
    [
        "csv:/etc/passwd?label=x",
        "npz:a.npz",
        "places:/dev/zero",
        "uci-har:/dev/zero",
        "semg:pipe",
        "os:system",
        "",
        "?",
    ],
)
def test_a_path_or_a_function_may_not_be_named_by_a_file(spec: str) -> None:
    assert not names_built_in(spec)
    assert msgspec.structs.replace(LENET, data=spec).built_in_data == ""


@pytest.mark.parametrize("change", [{"time": 1 << 24}, {"channels": 1 << 20}, {"class_names": ("c",) * 100_000}])
@pytest.mark.parametrize("model", ["lenet", "fcn", "alexnet", "cnn-lstm"])
def test_a_description_of_a_huge_model_takes_no_memory(tmp_path: Path, model: str, change: dict[str, object]) -> None:
    small = build_model(model, 3, 32, 2, seed=0)
    path = tmp_path / "global.safetensors"
    export_model(path, small, msgspec.structs.replace(LENET, model=model, **change))
    if model in ("fcn", "cnn-lstm") and "time" in change:  # no tensor of these depends on the window's length
        import_model(path)
        return
    with pytest.raises(DataError, match="does not fit model"):
        import_model(path)


@pytest.mark.parametrize("change", [{"time": 0}, {"channels": -1}, {"seed": -1}, {"time": 10**30}, {"seed": 1 << 64}])
def test_a_description_with_impossible_numbers_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    path = tmp_path / "global.safetensors"
    export_model(path, build_model("lenet", 3, 32, 2, seed=0), LENET)
    arrays, metadata = read_safetensors(path)
    described = msgspec.json.decode(metadata["mdl"]) | change
    write_safetensors(path, arrays, {"mdl": msgspec.json.encode(described).decode() if change else ""})
    with pytest.raises(DataError, match="no model description"):
        import_model(path)


def test_a_pipe_in_the_place_of_data_is_not_opened_because_a_file_says_so(tmp_path: Path) -> None:
    from mdl.peers.use.inference import evaluate_model

    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "global.safetensors"
    data = f"csv:{tmp_path}/pipe?label=a"
    export_model(path, build_model("lenet", 3, 32, 2, seed=0), msgspec.structs.replace(LENET, data=data))
    with pytest.raises(DataError, match="Give the data: --data SPEC"):
        evaluate_model(path, None)
