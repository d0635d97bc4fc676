"""A column of times: which unit, which rate, and what contradicts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.data.tables.dialect import is_time_name
from mdl.data.tables.times import UNITS_S, find_clock
from mdl.errors import DataError


def steady(rate: float, unit: str, begin_s: float = 0.0, rows: int = 400) -> np.ndarray:
    return (begin_s + np.arange(rows) / rate) / UNITS_S[unit]


def shaken(rate: float, unit: str, seed: int, begin_s: float = 0.0) -> np.ndarray:
    """Steps off by a third, one row in ten lost, a pause of 20 s, whole numbers except in seconds."""
    rng = np.random.default_rng(seed)
    steps_s = np.abs(rng.normal(1, 0.33, 1000)) / rate
    steps_s[500] = 20.0
    times = (begin_s + np.cumsum(steps_s))[rng.random(1000) > 0.1] / UNITS_S[unit]
    return times if unit == "s" else np.round(times)


@pytest.mark.parametrize("begin_s", [0.0, 3.3e5, 1.7e9], ids=["since start", "since boot", "UNIX"])
@pytest.mark.parametrize("unit", UNITS_S)
@given(rate=st.floats(3, 150), seed=st.integers(0, 9))
def test_unit_and_rate_are_found_in_spite_of_jitter_lost_rows_and_a_pause(
    unit: str, begin_s: float, rate: float, seed: int
) -> None:
    clock = find_clock(shaken(rate, unit, seed, begin_s), "t", "a.csv")
    assert clock.unit == unit
    assert clock.rate_hz == pytest.approx(rate, rel=0.2)


def test_rows_that_were_logged_together_count() -> None:
    """A bracelet hands over five rows every 50 ms: 100 rows a second, not 20."""
    times = np.repeat(np.arange(200) * 50.0, 5)
    assert find_clock(times, "t", "a.csv").rate_hz == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("column", "unit"), [("time_ms", "ms"), ("timestamp (us)", "us"), ("secondsElapsed", "s"), ("ElapsedNanos", "ns")]
)
def test_the_name_of_the_column_may_tell_the_unit(column: str, unit: str) -> None:
    assert find_clock(steady(1.2, unit), column, "a.csv").unit == unit


def test_a_step_that_fits_two_units_is_asked_about() -> None:
    with pytest.raises(DataError) as caught:
        find_clock(np.arange(300.0), "t", "a.csv")
    assert str(caught.value) == (
        "a.csv: the steps of column 't' (1 on average): 1 Hz if they are s, 1,000 Hz if they are ms; "
        "say which with ?time_unit="
    )
    assert find_clock(np.arange(300.0), "t", "a.csv", unit="ms").rate_hz == pytest.approx(1000)
    assert find_clock(np.arange(300.0), "t", "a.csv", rate=100).unit == "ms"
    assert find_clock(np.arange(300.0) + 1.7e9, "t", "a.csv").unit == "s"


def test_a_row_every_ten_seconds_in_unix_milliseconds_is_asked_about_and_can_be_said() -> None:
    times = steady(0.1, "ms", 1.7e9)
    with pytest.raises(DataError, match=r"0\.1 Hz if they are ms, 100 Hz if they are us; say which"):
        find_clock(times, "t", "a.csv")
    assert find_clock(times, "t", "a.csv", unit="ms", max_gap_s=30).rate_hz == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("rate", "said", "words"),
    [
        (200, None, ["20 on average", "fit rate=200 in no unit", "50 Hz if they are ms"]),
        (200, "ms", ["50 Hz with time_unit=ms", "rate=200 would invent what lies between them"]),
        (50, "s", ["0.05 Hz with time_unit=s", "rate=50 would invent", "time_unit=ms would make it 50 Hz"]),
        (
            50,
            "us",
            ["50,000 Hz with time_unit=us", "rate=50 would leave less than one row in 100", "=ms would make it"],
        ),
        (None, "s", ["0.05 Hz with time_unit=s", "every step is a gap (max_gap=1 s)", "time_unit=ms would make it"]),
        (None, "ns", ["50,000,000 Hz with time_unit=ns", "no sensor is so fast", "time_unit=ms would make it"]),
        (1e300, None, ["fit rate=1e+300 in no unit"]),
    ],
)
def test_what_contradicts_the_steps_is_refused_and_both_are_named(
    rate: float | None, said: str | None, words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        find_clock(steady(50, "ms"), "t", "a.csv", unit=said, rate=rate)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_fewer_rows_may_be_asked_for_and_a_third_of_them_may_be_missing() -> None:
    for rate in (5, 25, 50, 70):
        assert find_clock(steady(50, "ms"), "t", "a.csv", rate=rate).rate_hz == pytest.approx(50)


def test_times_that_stand_still_are_refused() -> None:
    with pytest.raises(DataError, match="column 't' never advances"):
        find_clock(np.full(9, 3.0), "t", "a.csv")


@pytest.mark.parametrize(
    ("column", "is_time"),
    [
        *((name, True) for name in ("time", "Timestamp_MS", "timeStamp", "seconds_elapsed", "date")),
        *((name, False) for name in ("ax", "temperature", "lifetime", "t")),
    ],
)
def test_a_time_is_told_by_its_name(column: str, is_time: bool) -> None:
    assert is_time_name(column) is is_time
