"""What is written and asked of systemd when a service is installed, looked at and removed; without systemd, nothing."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mdl.errors import ConfigError, MdlError
from mdl.peers import service as systemd
from mdl.peers.service import Service

WORDS = ("peer", "--mesh", "home", "--data", "motion")
CODE = "home:k7q2-9xvd-k7q2-9xvd-k7q2"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine whose systemd says yes to everything."""
    said: list[list[str]] = []

    def run(command: list[str]) -> str:
        said.append(command)
        return "ActiveState=active\nNRestarts=2\nnonsense\n" if "show" in command else "one\ntwo\n"

    for name, value in (("_SYSTEM_UNITS", tmp_path / "units"), ("_CODES", tmp_path / "codes"), ("_run", run)):
        monkeypatch.setattr(systemd, name, value)
    monkeypatch.setattr(systemd, "is_system", lambda: True)
    return said


def test_a_service_of_the_machine_is_written_enabled_and_taken_away(asked: list[list[str]], tmp_path: Path) -> None:
    service, secret = systemd.plan("peer-home", WORDS, CODE, "", 500)
    file = systemd.install(service, secret)
    assert file == tmp_path / "units" / "mdl-peer-home.service"
    assert CODE not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    code = tmp_path / "codes" / "peer-home.code"
    assert (code.read_text().strip(), stat.S_IMODE(code.stat().st_mode)) == (CODE, 0o600)
    assert asked == [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", "mdl-peer-home.service"]]
    assert systemd.find_unit(None) == systemd.find_unit("peer-home") == "mdl-peer-home.service"
    assert systemd.state("mdl-peer-home.service") == {"ActiveState": "active", "NRestarts": "2"}
    assert systemd.read_log("mdl-peer-home.service", 5) == ["one", "two"]
    assert "--unit=mdl-peer-home.service" in asked[-1]
    systemd.remove("mdl-peer-home.service")
    assert ["systemctl", "disable", "--now", "mdl-peer-home.service"] in asked
    assert not file.exists()
    assert not code.exists()
    with pytest.raises(ConfigError, match="name a service"):
        systemd.find_unit(None)


def test_a_users_own_service_asks_that_users_systemd(
    asked: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "is_system", lambda: False)
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    service, secret = systemd.plan("peer-home", WORDS, None, "", None)
    assert not secret
    assert systemd.install(service, secret) == tmp_path / "CONFIG" / "systemd" / "user" / "mdl-peer-home.service"
    assert (tmp_path / "STATE" / "mdl").is_dir()
    assert all(command[:2] == ["systemctl", "--user"] for command in asked)
    systemd.read_log("mdl-peer-home.service", 5)
    assert "--user-unit=mdl-peer-home.service" in asked[-1]
    with pytest.raises(ConfigError, match="only root"):
        systemd.plan("peer-home", WORDS, None, "pi", None)


@pytest.mark.parametrize(("user", "memory", "complaint"), [("no\nbody", 500, "no such user"), ("", 10, "--memory 10")])
def test_what_cannot_be_is_refused_first(asked: list[list[str]], user: str, memory: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        systemd.plan("peer-home", WORDS, CODE, user, memory)
    assert not asked


def test_without_systemd_the_way_round_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "_RUNNING", tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"systemd does not run on this machine\. mdl service install --print"):
        systemd.need_systemd()


def test_what_systemd_complains_of_is_one_line() -> None:
    with pytest.raises(MdlError, match=r"sh -c .*: second"):
        systemd._run(["sh", "-c", "echo first >&2; echo second >&2; exit 3"])
    with pytest.raises(MdlError, match="no-such-command"):
        systemd._run(["no-such-command"])


def test_a_service_is_frozen_until_it_is_written() -> None:
    service = Service("peer-home", ("mdl",), WORDS, 1, 500)
    assert (service.unit, service.is_system) == ("mdl-peer-home.service", False)


@pytest.mark.parametrize("root", [True, False])
def test_a_databases_address_is_kept_for_the_service_alone_and_taken_away_with_it(
    asked: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    monkeypatch.setattr(systemd, "is_system", lambda: root)
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    store = "postgresql://ann:s3cret@db/shop"
    service, secret = systemd.plan("cloud-home", ("cloud",), None, "", 500, store=store)
    file = systemd.install(service, secret, store)
    assert "s3cret" not in file.read_text()
    kept = service.store_file
    assert kept is not None
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == (f"{store}\n", 0o600)
    systemd.remove("mdl-cloud-home.service")
    assert not kept.exists()
