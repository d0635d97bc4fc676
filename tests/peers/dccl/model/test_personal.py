"""One device: its log in the cloud's numbers, its vector, its suggestions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl.errors import DataError
from mdl.peers.dccl.model.device_step import VectorSettings
from mdl.peers.dccl.model.din import DinSettings, FitSettings
from mdl.peers.dccl.model.interactions import group_by_user, keep_users, number_profiles
from mdl.peers.dccl.model.lesson import RecommenderLesson, in_numbers_of, learn_vector, suggest
from mdl.peers.dccl.model.momodistill import MoMoDistillSettings, RecommenderSettings, next_round, pretrain
from tests.peers.dccl.model.logs import small_log

QUICK = FitSettings(epochs=2, batch=32, history=5)
SIZES = RecommenderSettings(
    DinSettings(8, 16, 5, 0.0, has_user=False), 4, QUICK, MoMoDistillSettings(0.01, QUICK, QUICK)
)


@pytest.fixture(scope="module")
def lesson() -> RecommenderLesson:
    log = small_log()
    return RecommenderLesson(pretrain(log, SIZES, seed=0), log.titles)


def test_a_device_learns_and_is_shown_what_it_has_not_met(lesson: RecommenderLesson) -> None:
    log = small_log()
    own = in_numbers_of(lesson, keep_users(log, np.array([1])))
    vector = learn_vector(lesson, own, None, VectorSettings(steps=5, batch=8), seed=0)
    assert vector.shape == (4,)
    plain, mine = suggest(lesson, own, None, 200), suggest(lesson, own, vector, 200)
    assert len(mine) == len(plain) == 200 - 12
    assert {each.item for each in mine}.isdisjoint(log.titles[item - 1] for item in log.of(1))
    assert [each.score for each in mine] == sorted((each.score for each in mine), reverse=True)
    assert [each.score for each in mine] != [each.score for each in plain]
    # The same by a vector that generates nothing as without one.
    assert suggest(lesson, own, torch.zeros(4), 5) == plain[:5]


def test_a_vector_of_an_earlier_basis_is_where_it_goes_on_from(lesson: RecommenderLesson) -> None:
    own = in_numbers_of(lesson, keep_users(small_log(), np.array([1])))
    settings = VectorSettings(steps=0)
    cold = learn_vector(lesson, own, None, settings, seed=0)
    warm = learn_vector(lesson, own, np.ones(4, np.float32), settings, seed=0)
    cloud = lesson.cloud
    assert torch.allclose(cold, cloud.warm_start(torch.zeros(1, 4), own.profiles)[0])
    assert torch.allclose(warm, cloud.warm_start(torch.ones(1, 4), own.profiles)[0])
    of_another_size = learn_vector(lesson, own, np.ones(9, np.float32), settings, seed=0)
    assert torch.equal(of_another_size, cold)


def test_a_device_names_items_as_the_cloud_does(lesson: RecommenderLesson) -> None:
    names = np.array([lesson.titles[7], "of my own", lesson.titles[3]])
    own = in_numbers_of(lesson, group_by_user(np.zeros(3, int), names, np.arange(3.0)))
    assert own.items.tolist() == [8, 4]
    assert own.profiles.tolist() == [[0]]  # it has told none
    with pytest.raises(DataError, match="1 of this device's 2 interactions are with items that the cloud knows"):
        in_numbers_of(lesson, group_by_user(np.zeros(2, int), names[:2], None))


def test_a_profile_is_told_by_the_names_that_the_cloud_has(lesson: RecommenderLesson) -> None:
    names = np.array([lesson.titles[7], lesson.titles[3]])
    log = group_by_user(np.zeros(2, int), names, None)
    mine = {"0": {"town": "Bern", "walks": "backwards"}}
    assert in_numbers_of(lesson, number_profiles(log, mine)).profiles.tolist() == [[2]]
    other = {"0": {"walks": "in circles"}}
    assert in_numbers_of(lesson, number_profiles(log, other)).profiles.tolist() == [[0]]


def test_a_round_is_the_same_for_the_same_seed_and_leaves_the_random_state(lesson: RecommenderLesson) -> None:
    vectors = torch.full((6, 4), float("nan"))
    vectors[2] = 1.0
    before = torch.get_rng_state()
    first, again = (next_round(lesson.cloud, vectors, small_log(), SIZES, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.basis.theta, again.basis.theta)
    assert not torch.equal(first.basis.theta, lesson.cloud.basis.theta)
