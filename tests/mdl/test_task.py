"""What a model is for in one line, and in which words two such lines differ."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.bounds import MAX_TEXT
from mdl.learning.flat import hash_schema, hash_task
from mdl.task import channels_difference, describe_task, is_one_rate, rates_difference, task_difference

AXES, TURNS, CLASSES = ("ax", "ay", "az"), ("gx", "gy", "gz"), ("run", "sit")
SCHEMA = [("weight", (2, 3))]


def task(
    model: str = "lenet",
    channels: tuple[str, ...] = AXES,
    classes: tuple[str, ...] = CLASSES,
    rate_hz: float | None = None,
) -> str:
    return describe_task(model, (3, 128), channels, classes, rate_hz)


def test_a_task_is_one_line() -> None:
    assert task() == "lenet 3x128 [ax, ay, az] -> run, sit"
    assert task(channels=()) == "lenet 3x128 -> run, sit"
    assert task(rate_hz=50.0) == "lenet 3x128 at 50 Hz [ax, ay, az] -> run, sit"
    assert task(channels=(), rate_hz=49.8) == "lenet 3x128 at 49.8 Hz -> run, sit"
    assert describe_task("own:cnn", (3, 24, 32), (), CLASSES) == "own:cnn 3x24x32 -> run, sit"
    assert task_difference("own:cnn 3x24x32 -> run", "own:cnn 3x24x32 -> run, sit").startswith("your classes (run)")


@pytest.mark.parametrize(
    ("yours", "words"),
    [
        (
            task(channels=("az", "ax", "ay")),
            "your channels (az, ax, ay) are the mesh's in another order: give them as ax,",
        ),
        (
            task(channels=TURNS),
            "your channels differ from the mesh's: gx is ax there; yours gx, gy, gz; the mesh's ax,",
        ),
        (task(channels=()), "your channels have no names, where others are ax, ay, az; name them: ?columns= of csv"),
        (task(classes=("run", "lie")), "your classes (run, lie) differ from the mesh's (run, sit)"),
        (task("lenet of alexnet", channels=("az", "ax", "ay")), "in another order"),
    ],
)
def test_the_difference_is_said_in_words(yours: str, words: str) -> None:
    assert words in task_difference(yours, task())


def test_unnamed_channels_of_a_mesh_are_told_to_whoever_has_names() -> None:
    assert (
        task_difference(task(), task(channels=())) == "the mesh's channels have no names, where others are ax, ay, az"
    )


@pytest.mark.parametrize("yours", [task(), task("alexnet"), "Sequential", "", "a -> b", "] -> ["])
def test_what_is_no_difference_of_channels_or_classes_is_left_to_others(yours: str) -> None:
    assert task_difference(yours, task()) == ""


def test_names_of_any_length_and_kind_fit_into_a_message() -> None:
    wild = tuple(f"\x1b[31m\u202echannel {number}" * 20 for number in range(500))
    line = describe_task("m" * 999, (500, 128), wild, wild, 123_456.7)
    assert len(line) <= MAX_TEXT
    assert line.isprintable()
    for yours in (line, line.replace("channel", "other"), line.replace("[", "[x, ")):
        assert len(task_difference(yours, line)) < 2 * MAX_TEXT


def test_the_hash_tells_names_and_order_of_channels_apart_and_is_the_old_one_without_names() -> None:
    hashes = {hash_task(SCHEMA, CLASSES, names) for names in ((), AXES, ("az", "ax", "ay"), TURNS, ("ax, ay", "az"))}
    assert len(hashes) == 5
    assert hash_task(SCHEMA, CLASSES) == hash_schema([*SCHEMA, ("class run", ()), ("class sit", ())])
    assert hash_task(SCHEMA, ("a", "channel 'b'")) != hash_task(SCHEMA, ("a",), ("b",))
    assert (
        np.unique([hash_task(SCHEMA, CLASSES, ("a\nchannel 'b'",)), hash_task(SCHEMA, CLASSES, ("a", "b"))]).size == 2
    )


def test_channels_that_are_known_are_compared_one_by_one() -> None:
    assert channels_difference(AXES, AXES) == ""
    assert channels_difference((), AXES) == ""
    assert channels_difference(AXES, ("ax", "az", "ay")) == "channel 2 is 'ay' here and 'az' there"


@pytest.mark.parametrize(
    ("yours", "ours", "words"),
    [
        (100.0, 50.0, "this mesh: 50 Hz, this device: 100 Hz; bring its windows to that rate (?rate=50 of csv)"),
        (
            None,
            50.0,
            "this mesh: 50 Hz, this device: a rate that is not known; if it is the same, say so with ?rate=",
        ),
        (50.0, None, "this mesh: a rate that is not known, this device: 50 Hz"),
        (2000.0, 1000.0, "this mesh: 1,000 Hz, this device: 2,000 Hz; bring its windows to that rate (?rate=1000 of"),
    ],
)
def test_another_sampling_rate_is_named_with_both(yours: float | None, ours: float | None, words: str) -> None:
    assert words in task_difference(task(rate_hz=yours), task(rate_hz=ours))


def test_rates_that_differ_by_jitter_are_no_difference_and_the_channels_are_named() -> None:
    assert task_difference(task(rate_hz=49.6), task(rate_hz=50.3)) == ""
    turned = task_difference(task(channels=("az", "ax", "ay"), rate_hz=49.6), task(rate_hz=50.3))
    assert "in another order" in turned


USUAL_HZ = (1, 10, 12.5, 15, 16, 20, 25, 26, 30, 31.25, 32, 40, 50, 52, 60, 62.5, 64, 75, 80, 100, 104, 120, 125, 128,
            200, 208, 250, 256, 400, 416, 500, 512, 833, 1000)  # fmt: skip


@pytest.mark.parametrize("usual_hz", USUAL_HZ)
def test_a_usual_rate_is_the_same_with_four_percent_of_drift(usual_hz: float) -> None:
    assert is_one_rate(usual_hz, 0.96 * usual_hz)
    assert is_one_rate(usual_hz, 1.04 * usual_hz)
    assert not is_one_rate(usual_hz, 0.75 * usual_hz)
    assert not is_one_rate(usual_hz, 1.3 * usual_hz)


def test_the_rate_is_part_of_the_tasks_hash_where_it_is_known() -> None:
    hashes = {hash_task(SCHEMA, CLASSES, AXES, rate) for rate in (None, 50.0, 50.4, 100.0)}
    assert len(hashes) == 3
    assert hash_task(SCHEMA, CLASSES, AXES, None) == hash_task(SCHEMA, CLASSES, AXES)


def test_a_model_meets_data_of_its_rate_or_of_one_that_is_not_known() -> None:
    assert rates_difference(50.0, 50.2) == rates_difference(None, 100.0) == rates_difference(50.0, None) == ""
    assert rates_difference(50.0, 100.0) == "50 Hz here and 100 Hz there"


def test_images_of_another_size_are_another_task() -> None:
    hashes = {hash_task(SCHEMA, CLASSES, more=more) for more in ((), ("image 24x32",), ("image 32x24",))}
    assert len(hashes) == 3
