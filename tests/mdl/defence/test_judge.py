"""What a receiver refuses, clips and merges, and what its limits learn (MDLdroid 5: a poisoning check)."""

from __future__ import annotations

from math import inf, log, nan

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.defence.judge import (
    KEPT,
    Record,
    Verdict,
    judge,
    judge_loss,
    most_length,
    without_clipping,
)
from mdl.defence.limits import FEW, Limits
from mdl.defence.marks import MOST_PLACES, Marks, cosine, draw_places, length, look_at

NAMES = [f"p{number}" for number in range(100)]


def _of(*values: float) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=False))


IID = Record(_of(0.1, -0.1, 0.05, 0.0, 0.02))


def learn(*ratios: float) -> Record:
    """Each of a device of its own."""
    record = Record()
    for name, ratio in zip(NAMES, ratios, strict=False):
        record = record.with_marks([name], Marks(ratio, own_norm=1.0))
    return record


def test_an_honest_delta_is_merged_as_it_is() -> None:
    marks = Marks(1.1, 1.0, 1, 0.3, 0.35, 1, 0.5, 0.2, 6)
    for record in (Record(), IID):
        assert judge(marks, record).scale == 1.0
    for limits in (Limits(), Limits(0.2, -0.2)):
        assert not judge_loss(marks, limits)


@pytest.mark.parametrize("norm", [nan, inf])
def test_a_length_that_is_no_number_is_refused(norm: float) -> None:
    assert judge(Marks(norm, 1.0), Record()).is_refused


def test_ten_times_as_long_is_refused_also_when_nothing_is_known_yet() -> None:
    assert "10 times as long as ours; the limit is 4" in judge(Marks(10.0, 1.0), Record()).reason
    assert judge(Marks(10.0, 1.0), IID).is_refused


def test_between_accept_and_refuse_it_is_clipped_to_the_limit() -> None:
    verdict = judge(Marks(2.3, 1.0), IID)
    assert 0.0 < verdict.scale < 1.0
    assert 2.3 * verdict.scale == pytest.approx(most_length(1.0, IID))


def test_limits_follow_devices_with_more_data_than_this_one() -> None:
    record = learn(*[8.0] * FEW)
    assert judge(Marks(9.0, 1.0), record).scale == 1.0
    assert judge(Marks(100.0, 1.0), record).is_refused


@given(st.lists(st.floats(0.9, 1.1), min_size=6, max_size=12), st.floats(5.0, 1e6))
def test_a_minority_of_what_was_judged_cannot_raise_the_limit_beyond_its_ceiling(
    honest: list[float], lie: float
) -> None:
    record = learn(*honest, *[lie] * (len(honest) // 2))
    assert most_length(1.0, record) <= 1.1 * 4.0 + 1e-9
    assert judge(Marks(10.0, 1.0), record).is_refused


def test_limits_do_not_leap_to_lies_where_little_was_judged() -> None:
    assert most_length(1.0, learn(1.0, 1.0, 1000.0, 1000.0)) < 20.0
    assert most_length(1.0, learn(1000.0, 1000.0)) == pytest.approx(4.0)


def test_who_is_judged_again_and_again_counts_once() -> None:
    record = learn(1.0, 1.1, 0.9)
    for _ in range(20):
        record = record.with_marks(["liar"], Marks(10.0, 1.0))
    assert judge(Marks(10.0, 1.0), record).is_refused


def test_work_of_rounds_that_did_not_count_is_clipped_and_not_refused() -> None:
    away, limit = judge(Marks(7.0, 1.0, rounds=4), IID), most_length(1.0, IID)
    assert away.scale == pytest.approx(limit / 7.0)
    assert judge(Marks(7.0, 1.0), IID).is_refused
    assert judge(Marks(1000.0, 1.0, rounds=1000), IID).is_refused


def test_where_means_are_to_be_exact_nothing_is_clipped() -> None:
    assert without_clipping(Verdict(0.3, "long"), 4).scale == 1.0
    assert without_clipping(Verdict(0.3, "long"), 3).is_refused
    assert without_clipping(Verdict(0.3, "long"), 1).reason == "long"
    assert without_clipping(Verdict(), 1).scale == 1.0


def test_a_turned_sign_is_refused_in_the_first_round_and_later() -> None:
    assert "against ours (cosine -0.80)" in judge(Marks(1.0, 1.0, 1, -0.8), Record()).reason
    assert (
        "against the last round (cosine -0.35) and ours (-0.20)" in judge(Marks(1.0, 1.0, 1, -0.2, -0.35), IID).reason
    )


def test_devices_of_other_data_may_pull_elsewhere() -> None:
    assert judge(Marks(1.0, 1.0, 1, -0.67, 0.01), Record()).scale == 1.0
    assert judge(Marks(1.0, 1.0, 1, -0.2), Record()).scale == 1.0
    pulling = Limits(angle=-0.55)
    assert judge(Marks(1.0, 1.0, 1, -0.2, -0.5), IID, pulling).scale == 1.0
    assert judge(Marks(1.0, 1.0, 1, -0.2, -0.6), IID, pulling).is_refused


def test_a_delta_that_raises_this_devices_loss_more_than_others_do_is_refused() -> None:
    flipped = Marks(1.0, 1.0, 1, 0.0, 0.0, 1, loss=0.5, loss_theirs=1.44, classes=6)
    told = judge_loss(flipped, Limits(0.1))
    assert "raises the loss of our windows by 0.94 nats; the limit is 0.36" in told
    assert not judge_loss(msgspec.structs.replace(flipped, classes=1000), Limits(0.1))  # little, of so many
    assert not judge_loss(flipped, Limits(1.0))  # other data do so to each other
    assert not judge_loss(flipped, Limits())


def test_a_loss_that_is_no_number_is_refused() -> None:
    marks = Marks(1.0, 1.0, loss=0.5, loss_theirs=nan)
    assert "no number" in judge_loss(marks, Limits())


def test_a_record_is_bounded_and_learns_lengths_from_single_rounds_of_single_devices() -> None:
    assert list(learn(*[1.0] * 100).ratios) == NAMES[-KEPT:]
    assert Record().with_marks(["ann", "bob"], Marks(2.0, 1.0, contributors=2)) == Record()
    assert Record().with_marks(["ann"], Marks(2.0, 1.0, rounds=2)).ratios == {}
    assert Record().with_marks(["ann"], Marks(2.0, 1.0)).ratios == {"ann": log(2.0)}


def test_large_vectors_are_looked_at_in_places_that_nobody_else_knows() -> None:
    size, rng = 1 << 18, np.random.default_rng(0)
    places = draw_places(size, np.random.default_rng(1))
    assert places is not None
    assert 0 < places.size <= MOST_PLACES
    others = draw_places(size, np.random.default_rng(2))
    assert others is not None
    assert not np.array_equal(places, others)
    some = rng.normal(size=size).astype(np.float32)
    mixed = some + rng.normal(size=size).astype(np.float32)
    whole, seen = cosine(some, mixed), cosine(look_at(some, places), look_at(mixed, places))
    assert whole is not None
    assert seen == pytest.approx(whole, abs=0.01)
    assert draw_places(100, rng) is None
    assert look_at(some, None) is some


def test_nothing_has_no_angle() -> None:
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert cosine(zeros, ones) is None
    assert length(ones) == 2.0
    assert judge(Marks(1.0, 0.0), Record()).scale == 1.0  # nor has it a length to compare with
