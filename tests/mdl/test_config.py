"""The user's words become a configuration, or one line that says what would be valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.config import Config, RoundSection, TrainingSettings, load_config, save_config, show_config
from mdl.errors import ConfigError


def _file(folder: Path, text: str) -> Path:
    path = folder / "mesh.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_default() -> None:
    assert load_config(None, {}) == Config()


def test_the_file_is_overridden_by_assignments_and_those_by_options(tmp_path: Path) -> None:
    path = _file(tmp_path, "seed = 1\n[training]\nbatch_size = 8\nlearning_rate = 0.5\n[round]\nrounds = 3\n")
    config = load_config(
        path, {"training.batch_size": 64, "seed": None}, ["training.batch_size=16", "round.policy=tree"]
    )
    assert (config.seed, config.training.batch_size, config.training.learning_rate) == (1, 64, 0.5)
    assert (config.round.rounds, config.round.policy) == (3, "tree")


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    config = load_config(None, {"seed": 7, "mesh.join": ["host:1"], "data.spec": 'npz:a "b".npz', "round.eta": 0.5})
    save_config(config, tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml", {}) == config
    assert 'policy = "dqn"' in show_config(config)


@given(text=st.text(max_size=20))
def test_any_data_spec_survives_being_saved(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    config = load_config(None, {"data.spec": text})
    path.write_text(show_config(config), encoding="utf-8", newline="")
    assert load_config(path, {}) == config


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sede = 1", ["mesh.toml", "unknown key sede", "did you mean seed?"]),
        ("[round]\npolcy = 'tree'", ["unknown key round.polcy", "did you mean round.policy?", "rounds, min_peers"]),
        ("round = 3", ["round is a table, got 3"]),
        ("[round]\nrounds = 'three'", ["mesh.toml", "round.rounds", "Expected `int`, got `str`"]),
        ("[round]\nrounds = 1.5", ["round.rounds", "Expected `int`"]),
        ("[round]\ntheta = 'size'", ["round.theta", "'size'"]),
        ("[mesh]\njoin = ['a', 1]", ["mesh.join", "Expected `str`"]),
        ("[training]\nbatch_size = 0", ["training.batch_size is 0", "at least 1"]),
        ("[training]\nlearning_rate = 0", ["training.learning_rate is 0", "above 0"]),
        ("[training]\nlearning_rate = nan", ["training.learning_rate is nan"]),
        ("[training]\nlearning_rate = inf", ["training.learning_rate is inf"]),
        ("[training]\nmomentum = 1.0", ["training.momentum is 1.0", "below 1"]),
        ("[round]\neta = 2.5", ["round.eta is 2.5", "above 0, at most 2"]),
        ("[round]\nmin_peers = 0", ["round.min_peers is 0"]),
        ("seed = -1", ["seed is -1"]),
        ("seed = ", ["mesh.toml", "Invalid value"]),
        ("seed = 1\nseed = 2", ["mesh.toml", "overwrite"]),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text: str, parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(_file(tmp_path, text), {})
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("content", [b"\xff\xfe", b"seed = \x00"])
def test_a_file_that_is_no_text_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"mesh\.toml"):
        load_config(tmp_path / "mesh.toml", {})


@pytest.mark.parametrize("missing", ["no-such.toml", "."])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(missing: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / missing, {})


@pytest.mark.parametrize(
    ("assignment", "part"),
    [
        ("training.learning_rate", "expected key=value"),
        ("seed.x=1", "seed: Expected `int`"),
        ("training.batch=1", "did you mean training.batch_size"),
        ("round=tree", "round is a table"),
        ("round.rounds=many", "round.rounds"),
        ("round.exchange=ring", r"valid: chain, shares, auto"),
        ("faults.on_partition=x", r"valid: continue, wait"),
    ],
)
def test_a_wrong_assignment_is_named(assignment: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        load_config(None, {}, [assignment])


def test_an_assignment_into_a_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed\.x: seed is a value, not a table"):
        load_config(_file(tmp_path, "seed = 1"), {}, ["seed.x=2"])


def test_assigned_values_are_toml_and_names_need_no_quotes() -> None:
    config = load_config(None, {}, ["training.learning_rate=1e-3", "mesh.loopback=true", "model.name=cnn-lstm"])
    assert (config.training.learning_rate, config.mesh.loopback, config.model.name) == (0.001, True, "cnn-lstm")


def test_settings_cannot_be_changed_once_made() -> None:
    with pytest.raises(AttributeError):
        TrainingSettings().batch_size = 1  # type: ignore[misc]
    assert RoundSection(theta="samples").theta == "samples"


def test_a_path_that_is_no_utf_8_is_kept(tmp_path):
    spec = "csv:caf\udce9/walk.csv?label=activity"
    save_config(load_config(None, {"data.spec": spec}), tmp_path / "config.toml")
    assert b"caf\xe9/walk.csv" in (tmp_path / "config.toml").read_bytes()
    assert load_config(tmp_path / "config.toml", {}).data.spec == spec
