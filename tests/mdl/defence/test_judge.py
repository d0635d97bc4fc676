"""What a receiver refuses, clips and merges, by limits of its mesh (MDLdroid 5: a poisoning check)."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from mdl.defence.judge import (
    MOST_PLACES,
    Marks,
    Verdict,
    cosine,
    draw_places,
    judge,
    length,
    most_length,
    without_clipping,
)
from mdl.defence.limits import Limits

IID = Limits(length=2.0)


def test_an_honest_delta_is_merged_as_it_is() -> None:
    marks = Marks(1.1, 1.0, 1, 0.3, 0.35, 1, 0.5, 0.2, 6)
    for limits in (Limits(), IID, Limits(-0.2, 1.2)):
        assert judge(marks, limits).scale == 1.0


@pytest.mark.parametrize("norm", [nan, inf])
def test_a_length_that_is_no_number_is_refused(norm: float) -> None:
    assert judge(Marks(norm, 1.0)).is_refused


def test_ten_times_as_long_is_refused_also_when_nothing_is_known_yet() -> None:
    assert "10 times as long as ours; the limit is 4" in judge(Marks(10.0, 1.0)).reason
    assert judge(Marks(10.0, 1.0), IID).is_refused


def test_between_accept_and_refuse_it_is_clipped_to_the_limit() -> None:
    verdict = judge(Marks(2.3, 1.0), IID)
    assert 0.0 < verdict.scale < 1.0
    assert 2.3 * verdict.scale == pytest.approx(IID.length)


def test_the_meshs_limit_counts_and_not_this_devices_own_length() -> None:
    assert judge(Marks(9.0, 1.0), Limits(length=20.0)).scale == 1.0
    assert judge(Marks(3.0, 10.0), Limits(length=2.0)).is_refused
    assert most_length(3.0, Limits()) == 12.0


def test_work_of_rounds_that_did_not_count_is_clipped_and_not_refused() -> None:
    away, limit = judge(Marks(7.0, 1.0, rounds=4), IID), IID.length
    assert away.scale == pytest.approx(limit / 7.0)
    assert judge(Marks(7.0, 1.0), IID).is_refused
    assert judge(Marks(1000.0, 1.0, rounds=1000), IID).is_refused


def test_where_means_are_to_be_exact_nothing_is_clipped() -> None:
    assert without_clipping(Verdict(0.3, "long"), 4).scale == 1.0
    assert without_clipping(Verdict(0.3, "long"), 3).is_refused
    assert without_clipping(Verdict(0.3, "long"), 1).reason == "long"
    assert without_clipping(Verdict(), 1).scale == 1.0


def test_a_turned_sign_is_refused_in_the_first_round_and_later() -> None:
    assert "against ours (cosine -0.80)" in judge(Marks(1.0, 1.0, 1, -0.8)).reason
    assert (
        "against the last round (cosine -0.35) and ours (-0.20)" in judge(Marks(1.0, 1.0, 1, -0.2, -0.35), IID).reason
    )


def test_devices_of_other_data_may_pull_elsewhere() -> None:
    assert judge(Marks(1.0, 1.0, 1, -0.67, 0.01)).scale == 1.0
    assert judge(Marks(1.0, 1.0, 1, -0.2)).scale == 1.0
    pulling = Limits(angle=-0.55)
    assert judge(Marks(1.0, 1.0, 1, -0.2, -0.5), pulling).scale == 1.0
    assert judge(Marks(1.0, 1.0, 1, -0.2, -0.6), pulling).is_refused


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
    whole, seen = cosine(some, mixed), cosine(some[places], mixed[places])
    assert whole is not None
    assert seen == pytest.approx(whole, abs=0.01)
    assert draw_places(100, rng) is None


def test_nothing_has_no_angle() -> None:
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert cosine(zeros, ones) is None
    assert length(ones) == 2.0
    assert judge(Marks(1.0, 0.0)).scale == 1.0  # nor has it a length to compare with
