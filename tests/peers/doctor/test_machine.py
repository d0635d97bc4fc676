"""What the doctor says of a machine; torn from real ones where one can be had (tests/integration/test_doctor.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mdl.config import MeshSection
from mdl.errors import ConfigError
from mdl.peers.doctor.device import (
    check_battery,
    check_clock,
    check_descriptors,
    check_disk,
    check_memory,
    check_power,
    check_torch,
    exit_code,
)
from mdl.peers.doctor.mesh import DOCTOR_PORT, with_peers
from mdl.peers.doctor.network import Finding, Severity, fail, note, ok


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (check_descriptors(60), Severity.FAIL),
        (check_descriptors(100), Severity.NOTE),
        (check_descriptors(1024), Severity.OK),
        (check_memory(100), Severity.FAIL),
        (check_memory(300), Severity.NOTE),
        (check_memory(2000), Severity.OK),
        (check_memory(2000, 3000), Severity.OK),
        (check_memory(2000, 100), Severity.FAIL),
        (check_clock(1970), Severity.NOTE),
        (check_clock(2026), Severity.OK),
    ],
)
def test_what_there_is_is_judged_and_what_is_too_little_says_what_to_do(finding: Finding, verdict: Severity) -> None:
    assert finding.verdict is verdict
    assert bool(finding.do) is (verdict is not Severity.OK)


def test_a_disk_is_judged_by_the_nearest_directory_there_is(tmp_path: Path) -> None:
    assert check_disk(tmp_path / "not" / "yet").verdict is Severity.OK
    assert not [*tmp_path.iterdir()], "nothing is left of the try"
    (tmp_path / "file").write_text("")
    assert "cannot be written" in check_disk(tmp_path / "file" / "below").told


@pytest.mark.parametrize(
    ("bits", "alarm", "verdicts"),
    [
        ("50005", None, [Severity.NOTE]),
        ("0x50000", None, [Severity.NOTE]),
        ("0", None, [Severity.OK]),
        (None, "1", [Severity.NOTE]),
        (None, "0", [Severity.OK]),
        (None, None, []),
        ("nonsense", None, []),
    ],
)
def test_under_voltage_of_a_raspberry_pi_is_told(
    bits: str | None, alarm: str | None, verdicts: list[Severity], tmp_path: Path
) -> None:
    if bits:
        firmware = tmp_path / "sys/devices/platform/soc/soc:firmware"
        firmware.mkdir(parents=True)
        (firmware / "get_throttled").write_text(f"{bits}\n")
    if alarm:
        sensor = tmp_path / "sys/class/hwmon/hwmon1"
        sensor.mkdir(parents=True)
        (sensor / "in0_lcrit_alarm").write_text(f"{alarm}\n")
    assert [finding.verdict for finding in check_power(tmp_path)] == verdicts


@pytest.mark.parametrize(
    ("sensors", "told"),
    [
        ({"type": "Battery", "capacity": "9", "status": "Discharging"}, ["the battery has 9 %, and is not charged"]),
        ({"type": "Battery", "capacity": "9", "status": "Charging"}, []),
        ({"type": "Battery", "capacity": "60", "status": "Discharging"}, []),
        ({"type": "Battery", "capacity": "9", "status": "Discharging", "scope": "Device"}, []),
        ({"type": "Mains", "online": "1"}, []),
        ({"type": "Battery", "status": "Discharging"}, []),
    ],
)
def test_a_battery_that_is_nearly_empty_is_told(sensors: dict[str, str], told: list[str], tmp_path: Path) -> None:
    supply = tmp_path / "sys/class/power_supply/BAT0"
    supply.mkdir(parents=True)
    for name, text in sensors.items():
        (supply / name).write_text(f"{text}\n")
    assert [finding.told for finding in check_battery(tmp_path)] == told


@pytest.mark.slow
def test_a_torch_that_ends_its_process_or_is_not_there_is_told_with_the_signal(tmp_path: Path) -> None:
    assert check_torch().verdict is Severity.OK
    broken = tmp_path / "python"
    for script, told in (("kill -ILL $$", "SIGILL"), ("echo 'No module named torch' >&2; exit 1", "No module named")):
        broken.write_text(f"#!/bin/sh\n{script}\n")
        broken.chmod(0o755)
        finding = check_torch(str(broken), "x86_64")
        assert (finding.verdict, told in finding.told) == (Severity.FAIL, True)
        assert "apt" not in finding.do
        assert "sudo apt install python3-torch" in (do := check_torch(str(broken), "aarch64").do)
        assert "--system-site-packages" in do
    assert sys.executable


def test_the_exit_code_is_0_only_if_a_mesh_would_work_and_3_if_only_the_others_lack() -> None:
    assert exit_code([ok("a", ""), note("b", "")]) == 0
    assert exit_code([ok("a", ""), fail("members", "", "")]) == 3
    assert exit_code([fail("disk", "", ""), fail("members", "", "")]) == 4


def test_a_host_alone_is_another_doctor_and_an_address_is_a_peer() -> None:
    section = with_peers(MeshSection(), ["10.0.0.7"])
    assert (section.join, section.port) == ((f"10.0.0.7:{DOCTOR_PORT}",), DOCTOR_PORT)
    section = with_peers(MeshSection(join=("10.0.0.1:5",)), ["10.0.0.7:5750"])
    assert (section.join, section.port) == (("10.0.0.1:5", "10.0.0.7:5750"), 0)
    with pytest.raises(ConfigError, match="--peer"):
        with_peers(MeshSection(), ["10.0.0.7:99999"])
