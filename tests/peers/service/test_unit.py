"""A unit says what its service is for, keeps it in bounds, and systemd reads it as it was meant."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mdl.errors import ConfigError
from mdl.peers.service import Service, quote, write_unit

WORDS = ("peer", "--mesh", "home", "--data", 'csv:/srv/a b.csv?label="x"&columns=a%20b$HOME\\d', "--when", "idle")
SYSTEM = Service("peer-home", ("/usr/bin/env",), WORDS, 3, 600, "", code_file=Path("/etc/mdl/peer-home.code"))
OWN = Service("peer-home", ("/usr/bin/env",), WORDS, 3, 600, None, (Path("/home/pi/.state"),), Path("/home/pi/a b%"))


def _lines(service: Service) -> list[str]:
    return write_unit(service).splitlines()


@pytest.mark.parametrize("service", [SYSTEM, OWN, replace(SYSTEM, user="pi"), replace(SYSTEM, code_file=None)])
def test_every_service_is_in_bounds_and_has_no_right_to_spare(service: Service) -> None:
    lines = _lines(service)
    assert {"CPUQuota=300%", "MemoryHigh=540M", "MemoryMax=600M", "Nice=10", "Environment=OMP_NUM_THREADS=3"} <= {
        *lines
    }
    assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "UMask=0077"} <= {*lines}
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK" in lines
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "SuccessExitStatus=130"} <= {*lines}
    assert not any(line.startswith(("WatchdogSec", "MemoryDenyWriteExecute")) for line in lines)


def test_a_service_of_the_machine_runs_as_nobody_else_and_is_handed_its_code() -> None:
    lines = _lines(SYSTEM)
    assert {"DynamicUser=yes", "StateDirectory=mdl/peer-home", "WantedBy=multi-user.target"} <= {*lines}
    assert "LoadCredential=join-code:/etc/mdl/peer-home.code" in lines
    assert next(line for line in lines if line.startswith("ExecStart")).endswith(" --code @%d/join-code")
    as_pi = _lines(replace(SYSTEM, user="pi"))
    assert "User=pi" in as_pi
    assert "DynamicUser=yes" not in as_pi


def test_a_users_own_service_writes_where_its_user_keeps_things() -> None:
    lines = _lines(OWN)
    assert 'ReadWritePaths="-/home/pi/.state"' in lines
    assert "WorkingDirectory=/home/pi/a b%%" in lines
    assert "WantedBy=default.target" in lines
    assert not any("User=" in line or "--code" in line for line in lines)


def test_training_on_a_gpu_may_see_devices() -> None:
    assert "PrivateDevices=yes" in _lines(SYSTEM)
    cuda = replace(SYSTEM, words=("peer", "--set", "training.device=cuda"))
    assert "PrivateDevices=no" in _lines(cuda)


@pytest.mark.parametrize("word", ["two\nlines", "bell\a", "\x1b[2J", "\u202e"])
def test_a_word_that_would_begin_another_line_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="no service's file can"):
        quote(word)


def test_specifiers_variables_and_quotes_stay_what_they_are() -> None:
    assert quote('50% of "$HOME" \\n') == '"50%% of \\"$$HOME\\" \\\\n"'


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("service", [SYSTEM, OWN])
def test_systemd_reads_it_without_a_complaint(service: Service, tmp_path: Path) -> None:
    file = tmp_path / service.unit

    def verify(text: str) -> subprocess.CompletedProcess[str]:
        file.write_text(text)
        words = ["systemd-analyze", "verify", *([] if service.is_system else ["--user"]), str(file)]
        environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)

    unit = write_unit(service)
    asked = verify(unit)
    assert (asked.returncode, asked.stderr.strip()) == (0, "")
    assert "nonsense" in verify(unit.replace("ProtectSystem=strict", "ProtectSystem=nonsense")).stderr  # it does look


def test_no_word_makes_a_line_go_on_in_the_next_one() -> None:
    lines = _lines(replace(OWN, words=("peer", "--when", "idle\\")))
    assert not [line for line in lines if line.endswith("\\")]
