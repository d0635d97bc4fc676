"""Units of channels: what headers spell, what is converted to what, and what two devices are told that differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.channels import QUANTITIES, conversion, convert_channels, describe_units, find_unit, kept_unit
from mdl.task import describe_task, task_difference

UNITS = [unit for quantity in QUANTITIES for unit in (quantity.unit, *quantity.others)]


@pytest.mark.parametrize(
    ("spelled", "unit"),
    [
        *(("m/s^2", "m/s2"), ("m/s²", "m/s2"), ("m/(s^2)", "m/s2"), ("m*s^-2", "m/s2"), ("G", "g"), ("[g]", "g")),
        *(("°/s", "deg/s"), ("dps", "deg/s"), ("Deg/Sec", "deg/s"), ("rad s-1", "rad/s"), ("µT", "uT"), ("μT", "uT")),
        *(("°C", "degC"), ("K", "K"), ("mbar", "hPa"), ("mV", "mV"), ("V", "V"), ("mT", "mT"), ("°", "deg")),
        *(("left", ""), ("", ""), ("counts", ""), ("m/s2" * 100, "")),
    ],
)
def test_a_unit_is_known_in_the_spellings_of_apps(spelled: str, unit: str) -> None:
    assert find_unit(spelled) == unit


def test_every_unit_is_found_by_its_own_name_and_brought_to_one_of_its_quantity() -> None:
    assert len(set(UNITS)) == len(UNITS)
    for unit in UNITS:
        assert find_unit(unit) == unit
        assert kept_unit(kept_unit(unit)) == kept_unit(unit)
        assert conversion(unit, kept_unit(unit))


@pytest.mark.parametrize(
    ("value", "here", "there", "expected"),
    [
        *((1.0, "g", "m/s2", 9.80665), (180.0, "deg/s", "rad/s", math.pi), (1.0, "gauss", "uT", 100.0)),
        *((25.0, "degC", "K", 298.15), (212.0, "degF", "degC", 100.0), (300.0, "K", "degF", 80.33)),
        *((1013.25, "hPa", "Pa", 101325.0), (1.0, "mV", "uV", 1000.0), (60.0, "rpm", "deg/s", 360.0)),
    ],
)
def test_values_are_converted_as_physics_has_it(value: float, here: str, there: str, expected: float) -> None:
    pair = conversion(here, there)
    assert pair
    assert pair[0] * value + pair[1] == pytest.approx(expected, rel=1e-6)


@given(st.sampled_from(UNITS), st.sampled_from(UNITS), st.floats(-1e4, 1e4))
def test_a_conversion_comes_back_or_there_is_none(here: str, there: str, value: float) -> None:
    one, back = conversion(here, there), conversion(there, here)
    assert (one is None) == (back is None) == (kept_unit(here) != kept_unit(there))
    if one and back:
        again = back[0] * (one[0] * value + one[1]) + back[1]
        assert again == pytest.approx(value, rel=1e-6, abs=1e-6 + abs(back[0] * one[1]) * 1e-9)


def test_windows_of_another_quantity_are_not_converted() -> None:
    x = np.ones((2, 2, 3), np.float32)
    both = convert_channels(x, ("g", "deg/s"), ("m/s2", "deg/s"))
    assert both is not None
    assert both[0, :, 0].tolist() == pytest.approx([9.80665, 1.0])
    image = convert_channels(np.ones((5, 2, 3, 4), np.float32), ("g", "deg/s"), ("m/s2", "deg/s"))
    assert image is not None
    assert image[0, :, 0, 0].tolist() == pytest.approx([9.80665, 1.0])
    assert convert_channels(x, ("g", "g"), ("m/s2", "rad/s")) is None
    assert convert_channels(x, (), ("m/s2", "m/s2")) is None


def test_neighbours_of_one_unit_are_told_together() -> None:
    assert describe_units(("ax", "ay", "t", "n"), ("g", "g", "degC", "")) == "ax, ay in g; t in degC"


def test_two_devices_that_differ_in_a_unit_alone_are_told_so() -> None:
    here, there, nobody = (
        describe_task("lenet", (3, 64), ("ax", "ay", "az"), ("run", "sit"), 50.0, channel_units=units)
        for units in (("m/s2",) * 3, ("g",) * 3, ())
    )
    assert here == "lenet 3x64 at 50 Hz in m/s2 [ax, ay, az] -> run, sit"
    assert task_difference(here, there).startswith(
        "channels of other units: this mesh has them in g, this device in m/s2; ?acceleration=g"
    )
    assert "?units=" in task_difference(nobody, here)
    assert task_difference(here, here) == ""
