"""`--when` keeps training to its conditions: on a made-up day in the form of recorded ones, and held up by hand."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import threading
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from benchmarks.allowed_hours import Session, allowed_hours, play, read_sessions, train_on
from mdl.config import BusySection, Config, TrainingSettings
from mdl.devices.gate import PauseConditions, SensorReading, parse_when
from mdl.errors import ConfigError
from mdl.peers.edge.gatekeeper import LOOK_EVERY_S, Gatekeeper, Sensors, make_gatekeeper

_HEADER = (
    "device,Timestamp,level,status,usage,RAM,isInteractive,temperature,voltage,WiFi,Cellular,Hotspot,GPS,Bluetooth,"
    "Brightness,SampleFreq,availCapacityPercentage,health"
)
WHEN = "idle,charging,battery>50"
_CHARGING, _DISCHARGING, _FULL = 2, 3, 5
# An evening in ten minutes: (from second, battery %, status, in use).
EVENING = (
    (0, 40, _DISCHARGING, True),
    (60, 40, _CHARGING, True),
    (120, 40, _CHARGING, False),  # not above 50 yet
    (180, 51, _CHARGING, False),  # allowed
    (243, 60, _CHARGING, True),
    (300, 100, _FULL, False),  # allowed
    (333, 100, _FULL, True),
    (339, 100, _FULL, False),  # allowed
    (540, 99, _DISCHARGING, False),
    (600, 99, _DISCHARGING, False),
)


def write_evening(path: Path, every_s: int = 3) -> Path:
    """The evening as the app that recorded the phones would have written it."""
    with gzip.open(path, "wt", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(_HEADER.split(","))
        for second in range(0, 600, every_s):
            _, level, status, in_use = [row for row in EVENING if row[0] <= second][-1]
            state = (level, status, 20, 30.0, str(in_use).lower(), 30.0, 4.1)
            rest = ("true", "false", "false", "false", "false", 100, every_s, 92, 2)
            writer.writerow(("d99", 1_593_961_659_589 + 1000 * second, *state, *rest))
    return path


def evening(tmp_path: Path) -> Session:
    (sessions,) = read_sessions(write_evening(tmp_path / "phone_traces.csv.gz")).values()
    (session,) = sessions
    return session


def test_on_a_recorded_evening_training_runs_in_allowed_minutes_alone_and_pauses_within_one_batch(
    tmp_path: Path,
) -> None:
    session, path = evening(tmp_path), tmp_path / "sensors.json"

    def written() -> SensorReading:
        """A script writes what the phone's sensors say at this moment; mdl reads it."""
        reading = session.reading_at(session.now_s)
        path.write_text(json.dumps({name: getattr(reading, name) for name in ("idle", "charging", "battery_percent")}))
        return sensors()

    path.write_text("{}")
    sensors = Sensors(parse_when(f"{WHEN},file:{path}"))
    batch_s = 0.5
    x, y = np.zeros((64, 2, 4), np.float32), np.zeros(64, np.int64)
    training = train_on(nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), x, y, TrainingSettings(batch_size=16))
    played = play(session, parse_when(WHEN), batch_s, training, written)
    begun = [at_s - session.at_s[0] for at_s in played.begun_s]
    allowed = [(180.0, 243.0), (300.0, 333.0), (339.0, 540.0)]
    grace_s = LOOK_EVERY_S + batch_s
    assert all(any(start <= at_s < end + grace_s for start, end in allowed) for at_s in begun)
    for start, end in allowed:
        held_s = len([at_s for at_s in begun if start <= at_s < end]) * batch_s
        assert held_s >= end - start - 2 * grace_s, (start, begun)
    assert batch_s < played.late_s <= grace_s
    recorded_h, allowed_h = allowed_hours([session], parse_when(WHEN))
    assert (recorded_h * 3600, allowed_h * 3600) == (pytest.approx(597), pytest.approx(297))


def test_a_gate_that_is_always_open_lets_everything_through(tmp_path: Path) -> None:
    session = evening(tmp_path)
    assert len(play(session, PauseConditions(), 100.0, lambda is_over: [*iter(is_over, True)] and None).begun_s) == 6


def keeper_of(readings: list[SensorReading], when: str = "charging,battery>50") -> Gatekeeper:
    """Each look takes the next one; the last stays."""
    return Gatekeeper(parse_when(when), lambda: readings.pop(0) if len(readings) > 1 else readings[0], lambda: 0.0)


def test_a_pause_is_said_once_and_a_percent_less_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    at = [
        SensorReading(charging=True, battery_percent=80),
        *(SensorReading(charging=False, battery_percent=n) for n in (42, 41)),
    ]
    keeper = keeper_of([*at, SensorReading(charging=True, battery_percent=41), at[0]])
    assert [keeper.look() for _ in range(4)] == [True, False, False, True]
    assert caplog.messages == [
        "paused: on battery (42 % < 50 %)",
        "paused: charging (41 % < 50 %)",
        "going on: all conditions hold",
    ]


def test_what_a_machine_lacks_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    keeper = keeper_of([SensorReading()], "charging")
    assert caplog.messages == ["--when: nothing here tells of a battery: it counts as charging"]
    assert not keeper.forbidden_by


@pytest.mark.parametrize("ends", ["stop", "going on"])
def test_who_is_held_up_hears_at_once_that_it_is_over(ends: str) -> None:
    keeper = keeper_of([SensorReading(charging=False), SensorReading(charging=True)], "charging")
    held: list[bool] = []
    thread = threading.Thread(target=lambda: held.append(keeper.hold()))
    thread.start()
    keeper.stop() if ends == "stop" else keeper.look()
    thread.join(10.0)
    assert held == [ends == "stop"]


def test_a_thread_looks_and_tells_what_is_so_at_the_start() -> None:
    keeper = keeper_of([SensorReading(charging=False)], "charging")
    told: list[str] = []
    with keeper.looking(told.append):
        assert told == ["on battery"]
    assert keeper.hold(), "after it nobody waits for a look that does not come"


def test_no_condition_needs_no_thread_and_a_wrong_one_is_told() -> None:
    before = threading.active_count()
    with make_gatekeeper("", Config(busy=BusySection(battery_percent=0.0))).looking(lambda reason: None):
        assert threading.active_count() == before
    with pytest.raises(ConfigError, match="did you mean 'charging'"):
        make_gatekeeper("chargin")


def test_a_battery_below_its_floor_pauses_a_device_without_conditions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    low, charging = (SensorReading(charging=on, battery_percent=4.0) for on in (False, True))
    readings = [low, charging, low, SensorReading(charging=False, battery_percent=5.0)]
    keeper = Gatekeeper(PauseConditions(floor_percent=5.0), lambda: readings.pop(0), lambda: 0.0)
    said = "on battery (4 % < 5 %)"
    assert [(keeper.look(), keeper.forbidden_by) for _ in range(4)] == [
        (True, said),
        (True, ""),
        (True, said),
        (True, ""),
    ]
    assert not any("nothing here tells" in line for line in caplog.messages)


def test_a_device_starts_while_a_slow_sensor_answers_for_the_floor() -> None:
    answers, told = threading.Event(), threading.Event()

    def ask() -> SensorReading:
        answers.wait(10.0)
        return SensorReading(charging=False, battery_percent=4.0)

    keeper = Gatekeeper(PauseConditions(floor_percent=5.0), ask, lambda: 0.0)
    with keeper.looking(lambda reason: told.set()):
        assert not keeper.forbidden_by
        answers.set()
        assert told.wait(10.0)
        assert keeper.forbidden_by == "on battery (4 % < 5 %)"


def test_the_floor_is_looked_at_once_where_no_battery_is() -> None:
    asked = threading.Event()
    before = {*threading.enumerate()}

    def ask() -> SensorReading:
        assert not asked.is_set()
        asked.set()
        return SensorReading()

    with Gatekeeper(PauseConditions(floor_percent=5.0), ask, lambda: 0.0).looking(lambda reason: None):
        for thread in {*threading.enumerate()} - before:
            thread.join(10.0)
            assert not thread.is_alive()
    assert asked.is_set()
    assert not PauseConditions(floor_percent=5.0).forbids(SensorReading(failed={"battery": "no answer"}), 0.0)
