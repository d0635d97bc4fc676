"""`--when`: the grammar, and what forbids training in words."""

from __future__ import annotations

import pytest

from mdl.devices.gate import Hours, PauseConditions, SensorReading, parse_when
from mdl.errors import ConfigError

NOON, MIDNIGHT = 12 * 60, 0
AT_REST = SensorReading(idle=True, charging=True, battery_percent=80.0, wifi=True)


def test_all_conditions_of_the_issue_are_read() -> None:
    gate = parse_when("idle,charging,wifi,battery>50,hours=22-6")
    assert gate == PauseConditions(True, True, True, 50.0, Hours(22 * 60, 6 * 60))
    assert parse_when(" charging , file:/run/s.json") == PauseConditions(charging=True, file="/run/s.json")
    assert parse_when("battery>42.5 %, hours=9:30-24").hours == Hours(9 * 60 + 30, 24 * 60)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("idel", "'idel' is no condition; did you mean 'idle'?"),
        ("", "'' is no condition; expected idle, charging"),
        ("idle,,wifi", "'' is no condition"),
        ("idle,idle", "idle is given twice"),
        ("battery", "'battery' is no condition: write it like battery>50"),
        ("battery<50", "write it like battery>50"),
        ("battery>=50", "'battery>=50': expected a number of percent from 0 to 99"),
        ("battery>nan", "expected a number of percent"),
        ("battery>100", "expected a number of percent from 0 to 99"),
        ("battery>half", "expected a number of percent"),
        ("hours", "write it like hours=22-6"),
        ("hours=22", "expected two times of day, like hours=22-6"),
        ("hours=22-25", "expected two times of day"),
        ("hours=22:60-6", "expected two times of day"),
        ("hours=-1-6", "expected two times of day"),
        ("hours=²-6", "expected two times of day"),
        ("hours=6-6", "leave it out for all day"),
        ("hours=0-24", "leave it out for all day"),
        ("hours=1-2,hours=3-4", "hours is given twice"),
        ("file:", "write it like file:/run/sensors.json"),
        ("chargin g", "did you mean 'charging'?"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_valid(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_when(text)
    assert told in str(raised.value)
    assert str(raised.value).startswith("--when")
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_each_condition_forbids_in_words_and_all_of_them_are_told() -> None:
    gate = parse_when("idle,charging,wifi,battery>50,hours=22-6")
    assert gate.forbids(AT_REST, MIDNIGHT) == ""
    assert gate.forbids(AT_REST, NOON) == "outside 22:00-6:00"
    away = SensorReading(idle=False, charging=False, battery_percent=42.0, wifi=False)
    assert gate.forbids(away, NOON) == "in use, on battery (42 % < 50 %), not on Wi-Fi, outside 22:00-6:00"
    assert parse_when("charging").forbids(away, NOON) == "on battery (42 %)"
    assert parse_when("charging").forbids(SensorReading(charging=False), NOON) == "on battery"
    assert parse_when("battery>50").forbids(away, NOON) == "on battery (42 % < 50 %)"
    assert parse_when("battery>50").forbids(SensorReading(charging=True, battery_percent=50), NOON) == (
        "charging (50 % is not above 50 %)"
    )


def test_what_no_condition_asks_for_does_not_forbid() -> None:
    away = SensorReading(idle=False, charging=False, battery_percent=1.0, wifi=False)
    assert parse_when("hours=9-17").forbids(away, NOON) == ""
    assert PauseConditions().forbids(away, NOON) == ""


def test_hours_may_go_over_midnight_and_end_before_their_last_minute() -> None:
    night, day = Hours(22 * 60, 6 * 60), Hours(6 * 60, 22 * 60)
    for minute in range(24 * 60):
        assert night.holds(minute) is not day.holds(minute)
    assert [night.holds(minute) for minute in (22 * 60, 5 * 60 + 59.9, 6 * 60)] == [True, True, False]
    assert Hours(18 * 60, 24 * 60).holds(24 * 60 - 1)


def test_a_device_without_a_battery_counts_as_charging_and_says_so() -> None:
    gate = parse_when("idle,charging,wifi,battery>50")
    server = SensorReading()
    assert gate.forbids(server, NOON) == ""
    assert gate.lacks(server) == [
        "nothing here tells whether somebody uses this device: it counts as idle",
        "nothing here tells of a battery: it counts as charging",
        "nothing here tells of a network: it counts as on Wi-Fi",
        "nothing here tells how full a battery is: it counts as full",
    ]
    assert gate.lacks(AT_REST) == parse_when("hours=1-2").lacks(server) == []


def test_a_sensor_that_does_not_answer_forbids_what_depends_on_it() -> None:
    broken = SensorReading(failed={"charging": "termux-battery-status did not answer"})
    assert parse_when("charging").forbids(broken, NOON) == "charging is not known: termux-battery-status did not answer"
    assert parse_when("charging").lacks(broken) == []
    assert parse_when("idle").forbids(broken, NOON) == ""
