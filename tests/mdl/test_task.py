"""What a model is for in one line, and in which words two such lines differ."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.bounds import MAX_TEXT
from mdl.flat import hash_schema, hash_task
from mdl.task import channels_difference, describe_task, task_difference

AXES, TURNS, CLASSES = ("ax", "ay", "az"), ("gx", "gy", "gz"), ("run", "sit")
SCHEMA = [("weight", (2, 3))]


def task(model: str = "lenet", channels: tuple[str, ...] = AXES, classes: tuple[str, ...] = CLASSES) -> str:
    return describe_task(model, (3, 128), channels, classes)


def test_a_task_is_one_line() -> None:
    assert task() == "lenet 3x128 [ax, ay, az] -> run, sit"
    assert task(channels=()) == "lenet 3x128 -> run, sit"


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
    line = describe_task("m" * 999, (500, 128), wild, wild)
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
