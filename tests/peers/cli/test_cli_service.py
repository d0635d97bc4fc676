"""`mdl service install --print` on the command line: what it shows, and what must not stand in a unit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mdl.peers import service as systemd
from mdl.peers.cli import service
from mdl.peers.cli.main import main
from mdl.peers.edge.identity import remember_code

STORE = "postgresql://ann:s3cret@db.example/shop"


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.delenv("MDL_CODE", raising=False)
    from mdl.transport.trust.keys import new_join_code

    code = new_join_code("home", bytes(range(19)))
    remember_code(code)

    def run(*words: str, root: bool = False, options: tuple[str, ...] = ("--print",)) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(systemd, "is_system", lambda: root)
        monkeypatch.setattr(sys, "argv", ["mdl", "service", "install", *options, "--json", "--", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert code not in str(told)
        return int(ended.value.code or 0), told

    return run


def _start(told: dict[str, Any]) -> str:
    return next(line for line in told["text"].splitlines() if line.startswith("ExecStart="))


def test_a_command_becomes_a_service_with_its_own_options(shown: Any) -> None:
    code, told = shown("peer", "--mesh", "home", "--data", "motion", "--when", "idle,charging")
    assert (code, told["unit"]) == (0, "mdl-peer-home.service")
    assert _start(told).endswith('"peer" "--mesh" "home" "--data" "motion" "--when" "idle,charging"')


def test_the_code_of_a_service_of_the_machine_is_handed_over_and_not_named(shown: Any, tmp_path: Path) -> None:
    file = next((tmp_path / "CONFIG" / "mdl" / "meshes").glob("*.code"))
    for given in (("--code", f"@{file}"), (f"--code=@{file}",), ()):
        code, told = shown("agent", "--mesh", "home", *given, "--rounds", "5", root=True)
        assert code == 0
        assert _start(told).endswith('"agent" "--mesh" "home" "--rounds" "5" --code @%d/join-code')


@pytest.mark.parametrize("given", [("--store", STORE), (f"--store={STORE}",)])
def test_the_address_of_a_database_is_handed_over_and_not_named(
    shown: Any, tmp_path: Path, given: tuple[str, ...]
) -> None:
    cloud = ("cloud", "--mesh", "home", "--task", "recommend")
    kept = tmp_path / "CONFIG" / "mdl" / "services" / "cloud-home.store"
    for root, named in ((True, "--store @%d/store"), (False, f'"--store" "@{kept}"')):
        code, told = shown(*cloud, *given, root=root)
        assert code == 0, told
        assert "s3cret" not in told["text"]
        assert _start(told).endswith(f" {named}")
    assert ("LoadCredential=store:/etc/mdl/cloud-home.store" in shown(*cloud, *given, root=True)[1]["text"]) is True
    own = tmp_path / "own.store"
    own.write_text(STORE)
    assert f'"--store" "@{own}"' in _start(shown(*cloud, "--store", f"@{own}")[1])
    assert _start(shown(*cloud, "--store", f"@{own}", root=True)[1]).endswith(" --store @%d/store")


def test_a_working_directory_with_a_line_break_is_refused(
    shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a\nExecStartPre=touch b", "a\x1b[2J", "a ", "a\\"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        code, told = shown("agent", "--mesh", "home")
        assert (code, "cannot stand in a unit" in told["error"]) == (2, True), told


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["peer", "--mesh", "home", "--data", "motion", "--speed"], "No such option"),
        (["peer", "--code", "home:abcd", "--data", "motion"], "give --code @FILE"),
        (["peer", "--invite", "maple otter violin", "--data", "motion"], "good once"),
        (["peer", "--mesh", "home", "--data", "csv:walk.csv"], "give the whole path"),
        (["peer", "--mesh", "nosuch", "--data", "motion"], "no code is known"),
        (["up"], "does not run on its own"),
        (["cloud", "--mesh", "home", "--set", f"cloud.store={STORE}"], "holds a password"),
        (["cloud", "--mesh", "home", "--set", "cloud.store=host=db password=s3cret"], "holds a password"),
        (["cloud", "--mesh", "home", "--task", "recommend", "--store", "@store"], "whole path of the file"),
    ],
)
def test_what_would_not_run_or_tell_a_secret_is_refused(shown: Any, words: list[str], complaint: str) -> None:
    code, told = shown(*words)
    assert (code, complaint in told["error"]) == (2, True), told
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    ("platform", "begins"), [("darwin", "<!DOCTYPE plist"), ("win32", "<Task "), ("linux", "[Unit]")]
)
def test_a_machine_is_shown_what_its_own_service_manager_reads(
    shown: Any, monkeypatch: pytest.MonkeyPatch, platform: str, begins: str
) -> None:
    monkeypatch.setattr(service, "sys", SimpleNamespace(platform=platform))
    code, told = shown("peer", "--mesh", "home", "--data", "motion", root=True)
    assert (code, begins in told["text"]) == (0, True), told
    assert "/etc/mdl" not in told["text"] or platform == "linux"


@pytest.mark.parametrize("system", ["launchd", "windows"])
@pytest.mark.parametrize("given", [("--store", STORE), ("--set", f"cloud.store={STORE}"), ("--code", "home:abcd")])
def test_no_service_managers_file_holds_a_secret(shown: Any, system: str, given: tuple[str, ...]) -> None:
    words = ("cloud", "--mesh", "home", "--task", "recommend", *given)
    code, told = shown(*words, options=("--print", "--system", system))
    assert code == 2
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--print", "--system", "upstart"), "'upstart': expected one of systemd, launchd, windows"),
        (("--system", "launchd"), "--system goes with --print"),
        (("--print", "--system", "launchd", "--memory", "500"), "--memory is for systemd"),
        (("--print", "--system", "windows", "--as", "ann"), "--as is for systemd"),
    ],
)
def test_what_a_service_manager_cannot_do_is_refused(shown: Any, options: tuple[str, ...], complaint: str) -> None:
    code, told = shown("peer", "--mesh", "home", "--data", "motion", options=options)
    assert (code, complaint in told["error"]) == (2, True), told
