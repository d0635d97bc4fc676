"""Distances of models by their outputs, and groups by affinity propagation."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from mdl.errors import ConfigError, DataError
from mdl.peers.colla.model.classroom import Matrix, group_models, model_distances, preference_range, propagate_affinity


def test_the_distance_is_the_symmetric_cross_entropy_less_the_own_entropies() -> None:
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    cross = (-(p @ np.log(q)) - (q @ np.log(p))) / 2
    own = (math.log(2) - (q @ np.log(q))) / 2
    distances = model_distances(np.stack([p, q])[:, None, :])
    assert distances[0, 1] == pytest.approx(cross - own)
    assert distances[0, 1] == distances[1, 0]
    assert distances.diagonal().tolist() == [0.0, 0.0]


def test_the_distance_is_the_mean_over_the_rows() -> None:
    p, q = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[0.9, 0.1], [0.2, 0.8]])
    both = model_distances(np.stack([p, q]))[0, 1]
    assert both == pytest.approx(model_distances(np.stack([p[:1], q[:1]]))[0, 1] / 2)


def test_a_padded_zero_is_far_but_not_infinitely() -> None:
    distances = model_distances(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert 5 < distances[0, 1] < 8


@pytest.mark.parametrize(
    "outputs", [np.zeros((2, 0, 3)), np.ones((2, 3)), np.full((1, 1, 1), np.nan), -np.ones((1, 1, 1))]
)
def test_outputs_that_are_none_are_refused(outputs: Matrix) -> None:
    with pytest.raises(DataError, match="outputs"):
        model_distances(outputs)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ConfigError, match=r"pip install 'mdl\[cloud\]'"):
        group_models(np.zeros((3, 3)))


@pytest.mark.parametrize(
    "distances", [np.zeros((2, 3)), np.eye(2), np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[0.0, -1.0], [-1.0, 0.0]])]
)
def test_a_matrix_that_holds_no_distances_is_refused(distances: Matrix) -> None:
    with pytest.raises(DataError, match="distances"):
        group_models(distances)


def _models(kinds: int, each: int = 5) -> tuple[Matrix, list[int]]:
    """Distances of models of so many kinds, and the kind of each."""
    rng = np.random.default_rng(0)
    centres = rng.dirichlet(np.full(8, 0.3), size=(kinds, 20))
    truth = [index % kinds for index in range(kinds * each)]
    outputs = [0.9 * centres[kind] + 0.1 * rng.dirichlet(np.ones(8), size=20) for kind in truth]
    return model_distances(np.stack(outputs)), truth


@pytest.mark.parametrize("kinds", [2, 3, 5])
def test_models_of_a_kind_are_found_and_k_has_the_highest_silhouette(kinds: int) -> None:
    pytest.importorskip("sklearn")
    distances, truth = _models(kinds)
    grouping = group_models(distances)
    assert grouping.count == kinds
    assert max(grouping.silhouettes, key=grouping.silhouettes.__getitem__) == kinds
    assert len({(kind, group) for kind, group in zip(truth, grouping.groups, strict=True)}) == kinds


def test_the_preference_search_reaches_each_k() -> None:
    pytest.importorskip("sklearn")
    distances, _ = _models(3)
    for count in (2, 3, 5):
        found = propagate_affinity(distances, count)
        assert found is not None
        groups, exemplars = found
        assert sorted(set(groups)) == list(range(count))
        assert [groups[exemplar] for exemplar in exemplars] == list(range(count))


def test_the_preference_range_goes_from_one_exemplar_to_all() -> None:
    low, high = preference_range(np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 3.0], [4.0, 3.0, 0.0]]))
    assert low == pytest.approx(-4.0)
    assert high == pytest.approx(-1.0)


def test_too_few_models_are_one_group_around_their_medoid() -> None:
    pytest.importorskip("sklearn")
    distances = np.array([[0.0, 1.0], [1.0, 0.0]])
    grouping = group_models(distances)
    assert (grouping.groups, grouping.count, grouping.silhouettes) == ((0, 0), 1, {})


def test_models_that_answer_alike_stay_one_group() -> None:
    pytest.importorskip("sklearn")
    grouping = group_models(np.zeros((6, 6)))
    assert set(grouping.groups) == {0}


def test_the_same_distances_give_the_same_groups() -> None:
    pytest.importorskip("sklearn")
    distances, _ = _models(3)
    assert group_models(distances, seed=1) == group_models(distances, seed=1)
