"""Every number that a user can give has a range, and what is out of it is one line before anything else happens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
import typer

from mdl.config import Config, Section, load_config, ranges_of
from mdl.data.readers.arrays import ArrayOptions
from mdl.data.readers.csv_streams import CsvOptions
from mdl.data.readers.motion import MotionOptions
from mdl.data.readers.places import PlaceOptions
from mdl.data.readers.semg import SemgOptions
from mdl.data.spec import Spec, read_options
from mdl.data.split import parse_shard, split_windows
from mdl.data.windows import Windows
from mdl.errors import ConfigError
from mdl.peers.cli.main import add_groups, app, main
from mdl.peers.colla.model.recurrent import parse_size
from mdl.transport.discovery.directory import parse_address

# What a command needs besides the number.
NEEDED = {
    "predict": ["model.safetensors"],
    "replay": ["story.jsonl"],
    "schedule replay": ["run"],
    "scheduler eval": ["greedy"],
    "data cluster": ["places:gps"],
    "data inspect": ["motion"],
    "learn": ["--cloud", "127.0.0.1:1"],
    "personal join": ["text.txt"],
    "data accept": ["--mesh", "home", "--from", "phone"],
    "data share": ["motion", "--mesh", "home", "--with", "watch"],
    "data unshare": ["--mesh", "home"],
}
# An option that is kept under another key.
KEYS = {"--peers": "-n ", "--donors": "cloud.people", "--patience": "patience_s"}
FAR = ["-1", str(10**30), "9" * 5000, "nan", "inf", "1e300", "many"]


def _numbers() -> list[tuple[str, str]]:
    """(command, option) of every number of every command."""
    add_groups()

    def walk(group: typer.Typer, path: str) -> Iterator[tuple[str, str]]:
        for child in group.registered_groups:
            assert child.typer_instance is not None
            yield from walk(child.typer_instance, f"{child.name} ")
        for command in group.registered_commands:
            assert command.callback is not None
            for name, hint in get_type_hints(command.callback, include_extras=True).items():
                kinds = {hint.__origin__, *get_args(hint.__origin__)} if hasattr(hint, "__metadata__") else set()
                if kinds & {int, float}:
                    options = [text for text in hint.__metadata__[0].param_decls or () if text.startswith("--")]
                    yield (
                        path + (command.name or command.callback.__name__),
                        (options or [f"--{name}"])[0].replace("_", "-"),
                    )

    return sorted(set(walk(app, "")))


def test_the_numbers_are_found() -> None:
    found = _numbers()
    assert {("up", "--peers"), ("peer", "--port"), ("peers", "--wait"), ("scheduler train", "--minutes")} <= set(found)
    assert len(found) > 40


@pytest.mark.parametrize(("command", "option"), _numbers())
def test_a_number_out_of_its_range_is_one_line(
    command: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for value in FAR:
        monkeypatch.setattr(sys, "argv", ["mdl", *command.split(), *NEEDED.get(command, []), f"{option}={value}"])
        with pytest.raises(SystemExit) as ended:
            main()
        (line,) = capsys.readouterr().err.splitlines()
        assert ended.value.code == 2, (value, line)
        assert line.startswith("mdl: ")
        assert option in line or KEYS.get(option, option.strip("-").replace("-", "_")) in line
        assert len(line) < 300


def _sections(
    section: type[Section], prefix: str = ""
) -> Iterator[tuple[str, type[Section], msgspec.structs.FieldInfo]]:
    for field in msgspec.structs.fields(section):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _sections(field.type, f"{field.name}.")
        else:
            yield prefix + field.name, section, field


def test_every_number_of_the_configuration_has_a_range_that_is_kept() -> None:
    numbers = 0
    for key, section, field in _sections(Config):
        if not isinstance(field.default, int | float) or isinstance(field.default, bool):
            continue
        numbers += 1
        valid = ranges_of(section)[field.name]
        assert valid.holds(field.default), key
        for value in ("-1", str(10**30), "nan", "inf", "true", "'many'"):
            with pytest.raises(ConfigError, match=key.replace(".", r"\.")) as raised:
                load_config(None, {}, [f"{key}={value}"])
            assert len(str(raised.value)) < 200
    assert numbers > 25


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("mesh.port", 80000, "mesh.port is 80000: it must be at least 0, at most 65535 (0: any free one)"),
        ("training.momentum", 1.0, "training.momentum is 1.0: it must be at least 0, below 1"),
        ("round.eta", 0.0, "round.eta is 0.0: it must be above 0, at most 2"),
    ],
)
def test_a_value_out_of_range_is_told_with_what_is_valid(key: str, value: float, valid: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, {key: value})
    assert str(raised.value) == valid


@pytest.mark.parametrize("port", ["0", "80000", "-1", "9" * 5000, "٣٣٣", "x", ""])
def test_a_port_of_an_address_is_one(port: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        parse_address(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "shard", ["0/2", "3/2", "1", "1/", "-1/2", "1/1e3", "1/" + "9" * 5000, "1/999999999", "x/y", "²/³"]
)
def test_a_shard_is_one_of_a_mesh(shard: str) -> None:
    with pytest.raises(ConfigError, match="expected I/N"):
        parse_shard(shard)


@pytest.mark.parametrize("alpha", ["0", "-1", "nan", "inf", "1e300", "1e-300", "", "x"])
def test_an_alpha_is_one_that_shares_can_be_drawn_with(alpha: str) -> None:
    import numpy as np

    many = np.arange(40)
    windows = Windows(np.zeros((40, 1, 2), np.float32), many % 2, many, many)
    with pytest.raises(ConfigError, match="split"):
        split_windows(windows, f"dirichlet:{alpha}", 2, 0)


@pytest.mark.parametrize("size", ["0-16", "4-0", "99999-4", "4-" + "9" * 5000, "-4-16"])
def test_a_size_of_a_model_is_one_that_fits(size: str) -> None:
    with pytest.raises(ConfigError, match="model size"):
        parse_size(size)


@pytest.mark.parametrize("options", [ArrayOptions, CsvOptions, MotionOptions, PlaceOptions, SemgOptions])
def test_every_number_of_a_data_spec_has_a_range(options: type[msgspec.Struct]) -> None:
    for name, hint in get_type_hints(options).items():
        if {hint, *get_args(hint)} & {int, float}:
            for value in ("-20", "-1e300", str(10**30), "9" * 5000, "nan", "inf", "many"):
                spec = Spec("data", "csv", "", {name: value})
                with pytest.raises(ConfigError, match=f"option {name}=") as raised:
                    read_options(spec, options)
                assert len(str(raised.value)) < 300, name


@pytest.mark.parametrize("command", ["peer", "agent", "cloud"])
def test_where_to_listen_is_checked_before_a_code_or_data_are_asked_for(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["mdl", command, "--listen", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("mdl: mesh.listen: 'nonsense' is no address or interface of this machine; there is ")
    assert not list(tmp_path.iterdir())
