"""ChainSGD's one operation: pairwise means in any order are the central mean (3.2.2, Eq. 1 and 3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.delta import (
    LARGEST_VALUE,
    Contributor,
    ModelDelta,
    apply_delta,
    central_mean,
    check_values,
    digest_of,
    pair_aggregate,
)

ANN, BOB, CARL = (Contributor(name, 1) for name in ("ann", "bob", "carl"))


def _delta(who: Contributor, values: list[float], theta: float = 1.0) -> ModelDelta:
    return ModelDelta(np.array(values, np.float32), theta, frozenset([who]))


def _random_deltas(count: int, seed: int, weighted: bool, size: int = 33) -> list[ModelDelta]:
    rng = np.random.default_rng(seed)
    thetas = rng.uniform(1.0, 1e4, count) if weighted else np.ones(count)
    return [
        ModelDelta(rng.standard_normal(size, dtype=np.float32), float(theta), frozenset([Contributor(f"p{n}", 1)]))
        for n, theta in enumerate(thetas)
    ]


def _relative_error(values: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(values - exact).max() / np.abs(exact).max())


def test_3_2_2_theta_starts_from_1_and_adds_up() -> None:
    pair = pair_aggregate(_delta(ANN, [0.0]), _delta(BOB, [3.0]))
    assert (pair.theta, pair.contributors, pair.values.tolist()) == (2.0, {ANN, BOB}, [1.5])
    three = pair_aggregate(pair, _delta(CARL, [6.0]))
    assert (three.theta, three.contributors, three.values.tolist()) == (3.0, {ANN, BOB, CARL}, [3.0])


def test_eq_3_is_a_weighted_mean_and_not_a_plain_one() -> None:
    heavy, light = _delta(ANN, [1.0], theta=3.0), _delta(BOB, [5.0])
    assert pair_aggregate(heavy, light).values.tolist() == [2.0]
    assert pair_aggregate(light, heavy).values.tolist() == [2.0]


@given(
    count=st.integers(1, 16),
    seed=st.integers(0, 2**32 - 1),
    weighted=st.booleans(),
    in_place=st.booleans(),
    data=st.data(),
)
def test_eq_1_any_order_and_any_tree_of_merges_is_the_central_mean(
    count: int, seed: int, weighted: bool, in_place: bool, data: st.DataObject
) -> None:
    deltas = _random_deltas(count, seed, weighted)
    exact, whole = central_mean(deltas), sum(delta.theta for delta in deltas)
    left = [ModelDelta(delta.values.copy(), delta.theta, delta.contributors) for delta in deltas]
    while len(left) > 1:
        mine = left.pop(data.draw(st.integers(0, len(left) - 1)))
        theirs = left.pop(data.draw(st.integers(0, len(left) - 1)))
        left.append(pair_aggregate(mine, theirs, out=theirs.values if in_place else None))
    (last,) = left
    assert last.theta == pytest.approx(whole, rel=1e-12)
    assert len(last.contributors) == count
    assert last.values.dtype == np.float32
    assert _relative_error(last.values, exact) <= 1e-6


@given(seed=st.integers(0, 2**32 - 1), weighted=st.booleans())
def test_merging_in_place_gives_the_same_bits_and_takes_no_new_vector(seed: int, weighted: bool) -> None:
    mine, theirs = _random_deltas(2, seed, weighted)
    fresh = pair_aggregate(mine, theirs)
    received = theirs.values.copy()
    merged = pair_aggregate(mine, ModelDelta(received, theirs.theta, theirs.contributors), out=received)
    assert merged.values is received
    np.testing.assert_array_equal(merged.values, fresh.values)


def test_vectors_longer_than_a_block_are_merged_whole() -> None:
    deltas = _random_deltas(2, 5, True, size=2 * (1 << 16) + 7)
    assert _relative_error(pair_aggregate(*deltas).values, central_mean(deltas)) <= 1e-6


def test_merging_changes_neither_side() -> None:
    mine, theirs = _delta(ANN, [1.0, 2.0]), _delta(BOB, [3.0, 5.0])
    pair_aggregate(mine, theirs)
    assert (mine.values.tolist(), theirs.values.tolist()) == ([1.0, 2.0], [3.0, 5.0])


def test_a_contributor_never_counts_twice() -> None:
    pair = pair_aggregate(_delta(ANN, [1.0]), _delta(BOB, [2.0]))
    with pytest.raises(LocalProtocolError, match="bob would count twice"):
        pair_aggregate(pair, _delta(BOB, [2.0]))


def test_a_restarted_peer_is_another_contributor() -> None:
    pair = pair_aggregate(_delta(ANN, [1.0]), _delta(Contributor("ann", 2), [2.0]))
    assert len(pair.contributors) == 2


def test_deltas_of_different_models_cannot_be_merged() -> None:
    with pytest.raises(LocalProtocolError, match="deltas of 1 and 2 values"):
        pair_aggregate(_delta(ANN, [1.0]), _delta(BOB, [1.0, 2.0]))


def test_the_mean_of_no_deltas_is_not_defined() -> None:
    with pytest.raises(LocalProtocolError, match="no deltas"):
        central_mean([])


def test_algorithm_1_the_global_delta_is_subtracted_eta_times() -> None:
    parameters = np.array([1.0, 2.0], np.float32)
    applied = apply_delta(parameters, np.array([0.5, -1.0], np.float32), 2.0)
    assert (applied.tolist(), applied.dtype) == ([0.0, 4.0], np.float32)
    assert parameters.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1 * LARGEST_VALUE, -1.1 * LARGEST_VALUE])
@pytest.mark.parametrize("position", [0, 4, 9])
def test_values_that_would_poison_a_mean_are_refused_wherever_they_stand(bad: float, position: int) -> None:
    values = np.zeros(10, np.float32)
    check_values(values, 10)
    values[position] = bad
    with pytest.raises(RemoteProtocolError, match="not finite or beyond"):
        check_values(values, 10)


def test_values_of_another_size_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="9 values where the model has 10"):
        check_values(np.zeros(9, np.float32), 10)
    with pytest.raises(RemoteProtocolError):
        check_values(np.zeros((2, 5), np.float32), 10)


def test_a_digest_tells_apart_what_differs_in_one_bit() -> None:
    values = np.ones(5, np.float32)
    other = values.copy()
    other[3] = np.nextafter(np.float32(1), np.float32(2))
    assert digest_of(values) == digest_of(values.copy())
    assert digest_of(values) != digest_of(other)
    assert len(digest_of(values)) == 16


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_overflow_are_refused_without_a_warning(value):
    with pytest.raises(RemoteProtocolError):
        check_values(np.full(8, value, np.float32), 8)
