"""Sensors of a device as `--when` reads them: made-up trees of sysfs, answers of commands, a script's file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mdl.devices.gate import SensorReading, parse_when
from mdl.errors import ConfigError, DataError
from mdl.peers.edge.gatekeeper import Run, Sensors, read_sensors_file

EVERYTHING = "idle,charging,battery>50,wifi"
_ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
_LOCAL = "wwan9\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"


def no_commands(command: Sequence[str]) -> str:
    raise FileNotFoundError(command[0])


def answers(**told: str) -> Run:
    """Commands by their names, with _ for -."""

    def run(command: Sequence[str]) -> str:
        if (name := command[0].replace("-", "_")) not in told:
            raise FileNotFoundError(name)
        return told[name]

    return run


def put(root: Path, **files: str) -> Path:
    """Files of sysfs in a folder; keys: their names."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).write_text(text + "\n")
    return root


def laptop(root: Path, status: str, plugged: bool) -> Path:
    supplies = root / "sys/class/power_supply"
    put(supplies / "AC", type="Mains", online=str(int(plugged)))
    put(supplies / "BAT0", type="Battery", present="1", status=status, capacity="40")
    put(supplies / "BAT1", type="Battery", present="1", status="Unknown", capacity="80")
    put(supplies / "hidpp_battery_0", type="Battery", scope="Device", status="Discharging", capacity="3")
    return root


def read(when: str, root: Path, run: Run = no_commands, in_use_file: str = "") -> SensorReading:
    return Sensors(parse_when(when), in_use_file, root, run)()


def route(root: Path, *ways: tuple[str, int], wireless: tuple[str, ...] = (), down: tuple[str, ...] = ()) -> Path:
    """Default routes (interface, metric), and interfaces."""
    put(root / "proc/net")
    rows = [f"{name}\t00000000\t0102A8C0\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0\n" for name, metric in ways]
    (root / "proc/net/route").write_text(_ROUTES + _LOCAL + "".join(rows))
    for name in {*(name for name, _ in ways), *wireless, "lo"}:
        put(root / "sys/class/net" / name, operstate="down" if name in down else "up")
    for name in wireless:
        put(root / "sys/class/net" / name / "wireless")
    return root


@pytest.mark.parametrize(
    ("status", "plugged", "charging"),
    [
        ("Charging", True, True),
        ("Full", False, True),
        ("Not charging", True, True),  # held below its limit, on a charger
        ("Not charging", False, False),
        ("Discharging", False, False),
    ],
)
def test_a_laptop_in_sysfs(tmp_path: Path, status: str, plugged: bool, charging: bool) -> None:
    reading = read("charging,battery>50", laptop(tmp_path, status, plugged))
    assert (reading.charging, reading.battery_percent) == (charging, 60.0)


def test_a_machine_without_a_battery_has_no_such_sensor(tmp_path: Path) -> None:
    put(tmp_path / "sys/class/power_supply/hidpp_battery_0", type="Battery", scope="Device", capacity="3")
    assert read("charging,battery>50", tmp_path) == SensorReading()


def test_termux_goes_before_sysfs_and_a_command_that_is_not_there_is_looked_for_once(tmp_path: Path) -> None:
    told = {"percentage": 85, "plugged": "UNPLUGGED", "status": "DISCHARGING", "health": "GOOD"}
    root = laptop(tmp_path, "Charging", True)
    reading = read("charging,battery>50", root, answers(termux_battery_status=json.dumps(told)))
    assert (reading.charging, reading.battery_percent) == (False, 85.0)
    asked: list[str] = []

    def run(command: Sequence[str]) -> str:
        asked.append(command[0])
        return no_commands(command)

    sensors = Sensors(parse_when("charging"), "", root, run)
    assert sensors().charging
    assert sensors().charging
    assert asked == ["termux-battery-status"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("", ""),
        ("no JSON", "Expecting value"),
        ("{}", "plugged"),
        ("[]", "list indices"),
        ('{"plugged": "PLUGGED_AC", "status": "FULL", "percentage": null}', "NoneType"),
    ],
)
def test_a_command_that_answers_nonsense_forbids_what_it_is_asked_for(tmp_path: Path, told: str, why: str) -> None:
    reading = read(
        "charging,idle,file:" + str(put_file(tmp_path, idle=True)), tmp_path, answers(termux_battery_status=told)
    )
    assert reading.idle
    assert why in reading.failed.get("charging", "")
    assert bool(reading.failed) is bool(why)


def test_a_command_that_does_not_answer_is_named(tmp_path: Path) -> None:
    def hangs(command: Sequence[str]) -> str:
        raise subprocess.TimeoutExpired(list(command), 15.0)

    reading = read("charging,battery>50", tmp_path, hangs)
    assert reading.failed["charging"] == reading.failed["battery"] == "termux-battery-status did not answer within 15 s"
    assert "charging is not known" in parse_when("charging").forbids(reading, 0.0)


@pytest.mark.parametrize(("hint", "idle"), [("yes", True), ("no", False)])
def test_logind_says_whether_somebody_is_there(tmp_path: Path, hint: str, idle: bool) -> None:
    put(tmp_path / "run/systemd/seats")
    assert read("idle", tmp_path, answers(loginctl=f"IdleHint={hint}\n")).idle is idle


def test_a_file_of_the_configuration_says_that_the_device_is_in_use(tmp_path: Path) -> None:
    flag = tmp_path / "busy"
    assert read("idle", tmp_path, in_use_file=str(flag)).idle
    flag.touch()
    assert read("idle", tmp_path, in_use_file=str(flag)).idle is False


@pytest.mark.parametrize(
    ("ways", "wireless", "down", "wifi"),
    [
        ([("wlan0", 600)], ("wlan0",), (), True),
        ([("eth0", 100)], (), (), True),  # a cable costs as little
        ([("wwan0", 100), ("wlan0", 600)], ("wlan0",), (), False),
        ([("rmnet_data0", 0)], ("wlan0",), ("wlan0",), False),
        ([("wlan0", 600)], ("wlan0",), ("wlan0",), False),
        ([], ("wlan0",), (), True),  # IPv6 alone
        ([], (), (), False),
    ],
)
def test_the_default_route_says_whether_the_network_costs(
    tmp_path: Path, ways: list[tuple[str, int]], wireless: tuple[str, ...], down: tuple[str, ...], wifi: bool
) -> None:
    assert read("wifi", route(tmp_path, *ways, wireless=wireless, down=down)).wifi is wifi


def test_where_nothing_tells_of_a_network_there_is_no_such_sensor(tmp_path: Path) -> None:
    assert read("wifi", tmp_path) == SensorReading()
    told = answers(termux_wifi_connectioninfo='{"supplicant_state": "DISCONNECTED"}')
    assert read("wifi", tmp_path, told).wifi is False


def put_file(folder: Path, **told: object) -> Path:
    path = folder / "sensors.json"
    path.write_text(json.dumps(told))
    return path


def test_a_file_goes_before_the_sensors_and_what_it_leaves_out_is_read(tmp_path: Path) -> None:
    path = put_file(tmp_path, charging=False, wifi=True)
    reading = read(f"charging,battery>50,wifi,file:{path}", laptop(tmp_path, "Charging", True))
    assert (reading.charging, reading.battery_percent, reading.wifi) == (False, 60.0, True)


def test_what_no_condition_asks_for_is_not_read(tmp_path: Path) -> None:
    def must_not_run(command: Sequence[str]) -> str:
        raise AssertionError(command)

    assert read("hours=1-2", laptop(tmp_path, "Charging", True), must_not_run) == SensorReading()
    path = put_file(tmp_path, idle=True, charging=True, battery_percent=80.5, wifi=True)
    assert read(f"{EVERYTHING},file:{path}", tmp_path, must_not_run) == SensorReading(True, True, 80.5, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ('{"charging": "yes"}', "charging"),
        ('{"battery_percent": 101}', "battery_percent"),
        ('{"battery": 50}', "unknown sensor 'battery'; did you mean 'battery_percent'?"),
        ('{"failed": {"idle": "x"}}', "unknown sensor 'failed'"),
        ('{"idle": ' + "[" * 100_000, "sensors.json"),
    ],
)
def test_a_broken_file_is_one_line_at_the_start_and_forbids_later(tmp_path: Path, text: str, told: str) -> None:
    path = put_file(tmp_path, charging=True)
    sensors = Sensors(parse_when(f"charging,idle,file:{path}"), "", tmp_path, no_commands)
    assert sensors().charging
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        read_sensors_file(path)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
    assert set(sensors().failed) == {"charging", "idle"}
    path.unlink()
    assert "No such file" in sensors().failed["charging"]
    put_file(tmp_path, charging=True)
    assert sensors().charging


@pytest.mark.parametrize(
    ("age_min", "told"),
    [
        (29.0, ""),
        (31.0, "was not written for 31 minutes, 30 minutes at most"),
        (-31.0, "was not written within 30 minutes of this clock"),
    ],
)
def test_what_an_old_file_says_is_not_known_and_what_it_leaves_out_is_read(
    tmp_path: Path, age_min: float, told: str
) -> None:
    """Its script is gone: a device that was idle on its charger then need not be so now."""
    path = put_file(tmp_path, charging=True, wifi=True)
    gate = parse_when(f"charging,battery>50,file:{path}")
    written_s = path.stat().st_mtime
    now_s = written_s
    sensors = Sensors(gate, "", laptop(tmp_path, "Charging", True), no_commands, lambda: now_s)
    assert (sensors().charging, sensors().failed) == (True, {})
    now_s = written_s + 60 * age_min
    reading = sensors()
    assert reading.battery_percent == 60.0
    assert (reading.charging, reading.failed) == ((None, {"charging": f"{path} {told}"}) if told else (True, {}))
    assert bool(gate.forbids(reading, 0)) is bool(told)
    put_file(tmp_path, charging=True)
    os.utime(path, (now_s, now_s))
    assert sensors().charging, "it is written again"


def test_a_file_that_is_none_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file or directory; expected JSON like"):
        Sensors(parse_when(f"charging,file:{tmp_path / 'none.json'}"))
