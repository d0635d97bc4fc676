"""What a device tells of its channels, and which device is named for it: one cause alone names it, no other person."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from mdl.channels import MOST_TOLD, ChannelValues, Told, from_digit, tell_channels, to_digit, unlike_channels
from mdl.task import channels_of, describe_task

Windows = NDArray[np.float64]
NAMES = ("ax", "ay", "az")


def person(seed: int) -> Windows:
    """Windows (40, 3, 50) in m/s2 of somebody who carries a phone upright, each with a way of moving of his own."""
    rng = np.random.default_rng(seed)
    strength, tilt = rng.uniform(0.7, 1.4), rng.uniform(-0.5, 0.5, size=(3, 1))
    return np.array([[1.0], [9.0], [3.0]]) + tilt + strength * rng.normal(size=(40, 3, 50)) * [[1.0], [2.0], [1.5]]


def name_unlike(last: Windows, devices: int = 4) -> dict[str, str]:
    """Compare it, as device "z", with other people."""
    others = {f"d{seed}": tell_channels(person(seed)) for seed in range(1, devices)}
    return unlike_channels(others | {"z": tell_channels(last)}, NAMES)


@pytest.mark.parametrize(
    ("value", "told"), [(0, 0), (9.81, 10), (-0.0267, -0.03), (1e-12, 0), (1e15, 9e12), (-math.inf, 0), (449, 400)]
)
def test_a_value_is_told_to_one_significant_digit(value: float, told: float) -> None:
    assert from_digit(to_digit(value)) == pytest.approx(told)


def test_every_code_is_of_one_value() -> None:
    assert all(to_digit(from_digit(code)) == code for code in range(-198, 199))


def test_what_is_told_is_mean_deviation_and_range_of_each_channel() -> None:
    x = np.stack([np.full((2, 5), 9.81), np.arange(10.0).reshape(2, 5)], axis=1)
    told = [[from_digit(code) for code in msgspec.structs.astuple(each)] for each in tell_channels(x)]
    assert told == [pytest.approx([10, 0, 10, 10]), pytest.approx([4, 3, 0, 9])]


def test_images_are_not_told_and_no_more_channels_than_a_report_has_room_for() -> None:
    assert tell_channels(np.zeros((2, 3, 8, 8), np.uint8)) == ()
    assert len(tell_channels(np.ones((1, MOST_TOLD + 3, 4)))) == MOST_TOLD
    assert len(msgspec.msgpack.encode(tell_channels(np.ones((1, MOST_TOLD, 4))))) < 300


def test_a_decoder_takes_no_finer_values() -> None:
    decode = msgspec.msgpack.Decoder(Told).decode
    assert decode(msgspec.msgpack.encode([[1, 2, 3, 4]])) == (ChannelValues(1, 2, 3, 4),)
    for wrong in ([[199, 0, 0, 0]], [[9.81, 0, 0, 0]], [[0, 0, 0, 0]] * (MOST_TOLD + 1)):
        with pytest.raises(msgspec.ValidationError):
            decode(msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_people_who_carry_it_alike_are_no_difference(devices: int) -> None:
    assert name_unlike(person(99), devices) == {}


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_values_in_g_are_named_with_the_unit(devices: int) -> None:
    line = "ax, ay, az of device z: 9.8 times smaller than all others': in g?"
    assert name_unlike(person(99) / 9.80665, devices) == {"z": line}


def test_degrees_among_radians_and_millivolts_among_volts_are_named() -> None:
    assert "57 times larger than all others': in degrees?" in name_unlike(person(9) * 57.3)["z"]
    assert "1,000 times larger" in name_unlike(person(9) * 1000)["z"]


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_another_sign_is_named(devices: int) -> None:
    found = name_unlike(person(99) * [[1], [-1], [1]], devices)
    assert list(found.values()) == [
        f"device {name} has ay with another sign, by its values, than all others" for name in found
    ]
    assert len(found) == 1
    assert devices == 2 or "z" in found


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_axes_in_another_order_are_named(devices: int) -> None:
    found = name_unlike(person(99)[:, [1, 0, 2]], devices)
    assert [line.partition(" has ")[2] for line in found.values()] == [
        "ax, ay in another order, by its values, than all others"
    ]
    assert devices == 2 or "z" in found


def test_somebody_who_only_sits_is_no_difference() -> None:
    sits = np.array([[1.0], [9.0], [3.0]]) + 0.05 * np.random.default_rng(3).normal(size=(40, 3, 50))
    assert name_unlike(sits) == {}


def test_a_device_that_tells_nothing_or_of_other_channels_is_left_out() -> None:
    told = {"a": tell_channels(person(1)), "b": tell_channels(person(2)), "c": (), "d": tell_channels(person(3))[:2]}
    assert unlike_channels(told) == {}
    assert unlike_channels({"a": told["a"]}) == unlike_channels({}) == {}


def test_constant_channels_and_zeros_are_compared_without_a_warning() -> None:
    zeros = tell_channels(np.zeros((2, 3, 5)))
    assert unlike_channels({"a": zeros, "b": zeros, "c": tell_channels(person(1))}) == {}


def test_channels_without_a_name_are_numbered_and_those_of_a_line_are_found() -> None:
    told = {f"d{seed}": tell_channels(person(seed)) for seed in (1, 2)} | {"z": tell_channels(person(3) / 9.80665)}
    assert unlike_channels(told, ["ax"])["z"].startswith("ax, channel 2, channel 3 of device z")
    assert channels_of(describe_task("lenet", (3, 50), NAMES, ("a", "b"))) == list(NAMES)
    assert channels_of("nothing of the kind") == []
