"""What programs may rely on: the names and signatures that `import mdl` gives. Everything else may change."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mdl
from mdl.files.export import export_model
from mdl.learning.models import build_model

CALLS = {
    "join": "mesh *model *optimizer *scheduler *scaler *data *loss *accumulate *precision *proximal *batch_norm "
    "*overlap *rounds *until *every *code *run *name *theta *out *addresses *port *interface *loopback *fresh "
    "*classes *progress *quiet *check",
    "load": "path model",
    "Replay": "source *capacity *batch_size *seed",
    "Round": "round_id planned_rounds loss samples given_up",
    "RoundDone": "round_id planned_rounds devices loss samples seconds sent_bytes received_bytes",
    "ModelDescription": "model channels time class_names data mesh round_id seed channel_names rate_hz height "
    "own_batch_norm targets units channel_units",
}
ERRORS = {
    "MdlError": Exception,
    "ConfigError": mdl.MdlError,
    "DataError": mdl.MdlError,
    "LocalProtocolError": mdl.MdlError,
    "RemoteProtocolError": mdl.MdlError,
}


def _parameters(call: object) -> str:
    assert callable(call)
    given = inspect.signature(call).parameters.values()
    return " ".join(("*" if each.kind is each.KEYWORD_ONLY else "") + each.name for each in given)


def test_the_face_has_these_names_and_no_others() -> None:
    assert set(mdl.__all__) == {*CALLS, *ERRORS, "Member"}
    with pytest.raises(AttributeError, match="module 'mdl' has no attribute 'leave'"):
        mdl.leave  # noqa: B018


def test_what_the_face_offers_late_has_no_module_of_its_name() -> None:
    """Importing such a module, from anywhere, would put it in the function's place."""
    assert not {path.stem for path in Path(mdl.__file__).parent.iterdir()} & set(mdl.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_what_it_took(name: str) -> None:
    assert _parameters(getattr(mdl, name)) == CALLS[name]


def test_a_member_and_the_errors_are_what_they_were() -> None:
    assert {"run", "__iter__", "__enter__", "__exit__"} <= set(vars(mdl.Member))
    assert all(issubclass(getattr(mdl, name), base) for name, base in ERRORS.items())


def test_to_import_it_loads_nothing_heavy_and_none_of_the_four_folders() -> None:
    code = "import sys, mdl; print(*sorted({'torch', 'numpy', 'zmq', 'mdl.peers', 'mdl.transport'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_the_environments_are_registered_by_one_import() -> None:
    pytest.importorskip("gymnasium")
    ids = ["mdl/Chain-v0", "mdl/ChainPaper-v0", "mdl/Rounds-v0"]
    code = f"import gymnasium, mdl.gym; print(*(gymnasium.spec(name).id for name in {ids}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ids


DESCRIPTION = mdl.ModelDescription("lenet", 3, 32, ("sit", "walk"), "motion", channel_units=("m/s2",) * 3, rate_hz=50.0)


@pytest.mark.parametrize("place", ["run", "run/global.safetensors"])
def test_a_trained_model_is_loaded_with_the_meaning_of_its_windows(tmp_path: Path, place: str) -> None:
    (tmp_path / "run").mkdir()
    trained = build_model("lenet", 3, 32, 2, seed=7)
    export_model(tmp_path / "run" / "global.safetensors", trained, DESCRIPTION)
    module, description = mdl.load(tmp_path / place)
    assert description == DESCRIPTION
    assert not module.training
    x = torch.randn(4, 3, 32)
    assert torch.equal(module(x), trained.eval()(x))
    own = build_model("lenet", 3, 32, 2, seed=8)
    assert mdl.load(str(tmp_path / place), own)[0] is own
    assert torch.equal(own(x), module(x))


def test_a_file_that_is_not_one_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(mdl.DataError, match=r"nowhere\.safetensors"):
        mdl.load(tmp_path / "nowhere.safetensors")
    export_model(tmp_path / "x.safetensors", build_model("lenet", 3, 32, 2, seed=7), DESCRIPTION)
    with pytest.raises(mdl.DataError, match="does not fit model 'Linear'"):
        mdl.load(tmp_path / "x.safetensors", torch.nn.Linear(3, 2))
