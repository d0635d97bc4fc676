"""Every command that finds the state of an earlier run goes on from it, or says what it would overwrite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from torch import nn

from mdl.config import CloudSection, Config, DataSection, ModelSection
from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import ModelCache, write_safetensors
from mdl.peers.api import join
from mdl.peers.cli.main import main
from mdl.peers.colla.edge import PERSONAL, LearnerRecord, Student
from mdl.peers.colla.files import Catalogue, CloudFiles
from mdl.peers.colla.model.model_kinds import WindowKind
from mdl.peers.edge.device import Device
from mdl.peers.edge.identity import known_meshes, remember_code
from mdl.peers.edge.resume import Origin, describe_state
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import SaveModel
from mdl.transport.trust.keys import new_join_code

SMALL = "motion?people=3&test_people=1&windows=12"
ME = Contributor("me", 1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("MDL_CODE", raising=False)
    return tmp_path


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def settings(model: str = "lenet", seed: int = 0) -> Config:
    return Config(data=DataSection(spec=SMALL), model=ModelSection(name=model), seed=seed)


def mdl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and the last line on stderr."""
    monkeypatch.setattr(sys, "argv", ["mdl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err.splitlines()[-1]


def train(out: Path) -> Device:
    """What `mdl peer` leaves after seven rounds."""
    device = Device(settings(), ME, "home", out)
    device.work()[SaveModel](SaveModel(7, device.model.values().copy() + 1, b""))
    return device


@pytest.mark.parametrize(
    ("options", "both"),
    [
        (["--model", "alexnet"], "round 7 of lenet 9x128 at 50 Hz in g, rad/s, g [body_acc_x, "),
        (["--model", "alexnet"], "this is alexnet 9x128 at 50 Hz in g, rad/s, g [body_acc_x, "),
        (["--seed", "5"], "round 7 of seed 0, and this is seed 5"),
    ],
)
def test_mdl_peer_does_not_overwrite_another_model_or_seed(
    home: Path, options: list[str], both: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(home / "phone")
    before = (home / "phone" / "model.safetensors").read_bytes()
    words = ("peer", "--code", new_join_code("home"), "--loopback", "--data", SMALL, "--out", str(home / "phone"))
    code, said = mdl(monkeypatch, capsys, *words, *options)
    assert code == 2
    assert both in said
    assert "--fresh sets that aside and starts anew" in said
    assert (home / "phone" / "model.safetensors").read_bytes() == before


def test_a_fresh_start_keeps_what_there_was(home: Path) -> None:
    train(home / "phone")
    other = Device(settings("alexnet", seed=5), ME, "home", home / "phone")
    state = other.restore(fresh=True)
    assert state.round_id == 0
    other.work()[SaveModel](SaveModel(1, state.parameters, b""))
    kept = train(home / "other")
    kept_cache = ModelCache(home / "phone" / "before-1").load()
    assert kept_cache is not None
    assert (kept_cache.round_id, kept_cache.schema_hash) == (7, kept.schema_hash)
    assert other.restore().round_id == 1


def test_an_own_loop_does_not_overwrite_another_model(home: Path) -> None:
    code, out = new_join_code("home"), home / "loop"
    model = nn.Linear(3, 2)
    origin = Origin("home", "another schema", "Sequential")
    ModelCache(out).save(describe_state(SaveModel(7, np.ones(8, np.float32), b""), origin))
    with pytest.raises(ConfigError, match=r"round 7 of Sequential, and this is Linear: .*fresh=True in mdl\.join"):
        join(model=model, code=code, out=out, loopback=True)
    assert not (out / "pid").exists(), "and lets the name go"
    member = join(model=model, code=code, out=out, loopback=True, fresh=True)
    with member:
        assert member.round_id == 0
    assert (out / "before-1" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_program_may_join_more_than_once() -> None:
    twice = "import mdl; first = mdl.join; assert mdl.join is first and callable(first)"
    subprocess.run([sys.executable, "-c", twice], check=True)


@pytest.mark.parametrize(("large", "seed"), [("alexnet", 0), ("lenet", 5)])
def test_a_cloud_does_not_go_on_with_another_large_model_or_seed(home: Path, large: str, seed: int) -> None:
    def kind(name: str) -> WindowKind:
        return WindowKind("lenet", name, 2, 32, ("a", "b"))

    classroom: Any = SimpleNamespace()
    files = CloudFiles(home, kind("lenet"), classroom, 0)
    (home / "cloud.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(files.catalogue, version=3)))
    assert CloudFiles(home, kind("lenet"), classroom, 0).catalogue.version == 3
    with pytest.raises(ConfigError, match=r"has version 3 of a cloud of .*, and this is .*--fresh"):
        CloudFiles(home, kind(large), classroom, seed)
    assert CloudFiles(home, kind(large), classroom, seed, fresh=True).catalogue.version == 0
    assert (home / "before-1" / "cloud.json").exists()


def test_a_cloud_of_an_older_version_goes_on(home: Path) -> None:
    kind = WindowKind("lenet", "lenet", 2, 32, ("a", "b"), channel_names=("x", "y"))
    old = Catalogue(kind.older_hashes[-1], "lenet of lenet 2x32 -> a, b", 3)
    (home / "cloud.json").write_bytes(msgspec.json.encode(old))
    found = CloudFiles(home, kind, SimpleNamespace(), 7).catalogue  # type: ignore[arg-type]
    assert (found.version, found.schema_hash, found.seed) == (3, kind.schema_hash, 7)


def test_what_a_cloud_kept_when_its_bytes_were_called_float32_is_what_it_says_now(home: Path) -> None:
    kind = WindowKind("lenet", "lenet", 2, 32, ("a", "b"))
    packed = kind.pack(kind.build_small(0))
    former = digest_of(np.frombuffer(packed, "<f4"))
    (home / "cloud.json").write_bytes(msgspec.json.encode(Catalogue(kind.schema_hash, kind.summary, 1)))
    of_the_cloud = [(f"lessons/00001/{size}-base", {}) for size in ("large", "small")]
    for path, metadata in (*of_the_cloud, ("pupils/ann", {"digest": former.hex()})):
        write_safetensors(home / f"{path}.safetensors", {"model": np.frombuffer(packed, np.uint8)}, metadata)
    state = CloudFiles(home, kind, SimpleNamespace()).state()  # type: ignore[arg-type]
    assert state.taught is not None
    assert state.taught.lessons == {"-1": packed}
    assert state.stored == {"ann": digest_of(state.taught.lessons["-1"])}


def test_a_learner_does_not_overwrite_its_model_with_another_one(home: Path) -> None:
    config = settings()
    first = Student(config, home)
    origin = first.kind.schema_hash, first.kind.summary, 0
    (home / "learner.json").write_bytes(msgspec.json.encode(LearnerRecord(4, 2, 0.5, *origin)))
    (home / PERSONAL).write_bytes(b"mine")
    assert Student(config, home).record.number == 4
    for other in (settings("cnn-lstm"), settings(seed=5)):
        with pytest.raises(ConfigError, match=r"has lesson 2 of .*, and this is .*--fresh"):
            Student(other, home)
    assert Student(settings("cnn-lstm"), home, fresh=True).record == LearnerRecord(4), (
        "the cloud has counted its updates"
    )
    assert (home / "before-1" / PERSONAL).read_bytes() == b"mine"


def test_a_learner_of_an_older_version_goes_on(home: Path) -> None:
    (home / "learner.json").write_bytes(b'{"number":4,"version":2,"accuracy":null}')
    assert Student(msgspec.structs.replace(settings(), cloud=CloudSection()), home).record.number == 4


def test_a_trained_policy_is_not_overwritten(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = home / "policy.safetensors"
    out.write_bytes(b"hours of work")
    code, said = mdl(monkeypatch, capsys, "scheduler", "train", "--steps", "1", "--out", str(out))
    assert code == 2
    assert f"--out {out} exists: --resume goes on from it, --fresh sets it aside" in said
    code, said = mdl(
        monkeypatch, capsys, "scheduler", "train", "--steps", "1", "--resume", "--fresh", "--out", str(out)
    )
    assert (code, "give one of them" in said) == (2, True)
    assert out.read_bytes() == b"hours of work"


def test_the_code_of_a_mesh_is_not_overwritten_by_another_one_of_its_name(home: Path) -> None:
    first, other = new_join_code("home"), new_join_code("home")
    remember_code(first)
    remember_code(first)
    with pytest.raises(ConfigError, match=r"mesh 'home' is known here with another code, .*remove .*home\.code"):
        remember_code(other)
    assert known_meshes() == {"home": first}


def test_a_run_may_begin_with_an_earlier_runs_model(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = train(home / "phone")
    values = first.model.values().copy() + 1
    first.export(home / "phone" / "global.safetensors", 7, values)
    second = Device(settings(seed=5), ME, "home", home / "other")
    state = second.restore(init=home / "phone")
    assert state.round_id == 0
    assert np.array_equal(state.parameters, values)
    assert "beginning with" in caplog.text
    before = (home / "phone" / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"has round 7, and --init begins a run: --fresh .* --run NAME keeps both"):
        Device(settings(), ME, "home", home / "phone").restore(init=home / "phone")
    assert (home / "phone" / "model.safetensors").read_bytes() == before


def test_what_a_model_has_of_another_stays_new_and_is_told(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    device = Device(settings(), ME, "home", home / "phone")
    (name, shape), *_ = device.model.schema
    tensors = {name: np.full(shape, 3, np.float32), "another": np.ones(4, np.float32)}
    write_safetensors(home / "some.safetensors", tensors, {})
    state = device.restore(init=home / "some.safetensors")
    assert (state.parameters == 3).sum() >= np.prod(shape)
    assert "1 of" in caplog.text
    assert "begun anew" in caplog.text
    write_safetensors(home / "none.safetensors", {"another": np.ones(4, np.float32)}, {})
    with pytest.raises(DataError, match="has no tensor of this model's names and shapes"):
        device.restore(init=home / "none.safetensors")
    write_safetensors(home / "nan.safetensors", {name: np.full(shape, np.nan, np.float32)}, {})
    with pytest.raises(DataError, match="not finite"):
        device.restore(init=home / "nan.safetensors")
