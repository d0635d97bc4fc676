"""Who stands out by the word of several devices that have looked at each delta (MDLdroid 5: a poisoning check)."""

from __future__ import annotations

from unittest.mock import ANY

import numpy as np
import pytest

from mdl.bounds import MAX_LOSS
from mdl.defence.limits import Word, find_odd

DEVICES, JUDGES = 10, 5


def _words(
    liars: int, seed: int, harm: float = 0.2, differ: float = 0.02, devices: int = DEVICES, judges: int = JUDGES
) -> list[Word]:
    """As on UCI HAR (iid): honest deltas lower losses by 0.4 nats of 1.8, turned labels raise them by half as much.

    Liars, the first ones, tell the opposite. differ: of judges' words on one delta.
    """
    rng, words = np.random.default_rng(seed), []
    ring = rng.permutation(devices)
    for place, sender in enumerate(ring):
        does = harm if sender < liars else -0.22 + float(rng.normal(0.0, 0.02))
        for step in range(1, judges + 1):
            judge = ring[(place + step) % devices]
            rise = does + float(rng.normal(0.0, differ))
            words.append(Word(f"p{judge}", f"p{sender}", -rise if judge < liars else rise))
    return words


@pytest.mark.parametrize("seed", range(20))
def test_honest_devices_do_not_stand_out(seed: int) -> None:
    assert find_odd(_words(0, seed)) == {}


def test_three_of_ten_that_turn_labels_stand_out_also_where_they_call_the_others_liars() -> None:
    assert [find_odd(_words(3, seed)) or {} for seed in range(50)] == [{"p0": ANY, "p1": ANY, "p2": ANY}] * 50


def test_the_reason_is_told_in_shares_of_guessing() -> None:
    odd = find_odd(_words(1, 1, harm=0.5, differ=0.0))
    assert odd is not None
    assert list(odd) == ["p0"]
    assert odd["p0"].startswith("it raises the loss of others' windows by 50% of guessing; the limit is -")


@pytest.mark.parametrize("liars", [0, 3])
def test_where_devices_have_other_data_it_cannot_be_told(liars: int) -> None:
    assert [find_odd(_words(liars, seed, differ=0.5)) for seed in range(50)].count(None) >= 45


def test_of_little_said_nothing_follows() -> None:
    assert find_odd([]) is None
    assert find_odd([Word("p1", "p0", 5.0), Word("p2", "p0", 5.0), Word("p0", "p1", -0.5)]) is None


def test_a_loss_that_is_no_number_is_the_worst_one() -> None:
    assert find_odd(_words(1, 2, harm=MAX_LOSS)) == {"p0": ANY}


def test_one_of_six_stands_out_and_of_fewer_it_cannot_be_told() -> None:
    for seed in range(20):
        assert find_odd(_words(1, seed, devices=6)) == {"p0": ANY}
        assert find_odd(_words(1, seed, devices=5, judges=4)) is None
