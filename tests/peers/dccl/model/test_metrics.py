"""Eq. 8 against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.recommend.figures import group_by_activity
from benchmarks.recommend.report import paired
from mdl.peers.dccl.model.interactions import gains, hits, ranks, top_metrics


def test_the_rank_is_the_place_among_all_candidates() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [2.0, 1.0, 3.0], [1.0, 2.0, 3.0]])
    assert ranks(scores).tolist() == [1, 2, 3]


def test_ties_and_what_is_no_number_count_against_us() -> None:
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [np.nan, 0.0, 0.0], [1.0, np.nan, 0.0]])
    assert ranks(scores).tolist() == [2, 3, 3, 2]


def test_ndcg_is_one_over_log2_of_rank_plus_one_and_so_never_more_than_hit_rate() -> None:
    rank = np.array([1, 2, 3, 10, 11])
    assert hits(rank, 10).tolist() == [1, 1, 1, 1, 0]
    assert gains(rank, 10) == pytest.approx([1, 1 / np.log2(3), 0.5, 1 / np.log2(11), 0])
    assert top_metrics(rank)["HR@1"] == 20.0
    assert (gains(rank, 5) <= hits(rank, 5)).all()


def test_a_random_ranking_of_101_hits_ten_in_101() -> None:
    scores = np.random.default_rng(0).random((20_000, 101))
    assert hits(ranks(scores), 10).mean() == pytest.approx(10 / 101, abs=0.01)


def test_paired_interval_is_that_of_the_differences() -> None:
    mine, theirs = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    found = paired(mine, theirs)
    error = 1.96 * np.std([1, 0, 0, 1], ddof=1) / 2
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - error, 0.5 + error))


def test_groups_are_equal_and_begin_with_the_most_active() -> None:
    groups = group_by_activity(np.array([5, 9, 1, 7, 3, 2]), 3)
    assert [group.tolist() for group in groups] == [[1, 3], [0, 4], [5, 2]]
