"""ChainSGD's one operation: pairwise sums in any order are the same bytes, the central mean's (3.2.2, Eq. 1, 3)."""

from __future__ import annotations

from functools import reduce
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.delta import (
    LARGEST_VALUE,
    Contributor,
    ModelDelta,
    Partial,
    PartialSum,
    apply_delta,
    central_mean,
    check_values,
    digest_of,
    digest_of_result,
    own_sum,
    pair_aggregate,
    weight_of,
)
from mdl.protocol.grid import Grid, grid_of

ANN, BOB, CARL = (Contributor(name, 1) for name in ("ann", "bob", "carl"))
PART = Partial(CARL, 1.0, 1, b"")
ROOM = 18


def _sum(who: Contributor, values: list[int], theta: float = 1.0) -> PartialSum:
    return PartialSum(np.array(values, np.int32), theta, frozenset([who]))


def _random_deltas(count: int, seed: int, weighted: bool, size: int = 33) -> list[ModelDelta]:
    rng = np.random.default_rng(seed)
    thetas = rng.uniform(1.0, 1e4, count) if weighted else np.ones(count)
    return [
        ModelDelta(
            rng.standard_normal(size, dtype=np.float32), weight_of(float(theta)), frozenset([Contributor(f"p{n}", 1)])
        )
        for n, theta in enumerate(thetas)
    ]


def _on_grid(deltas: list[ModelDelta]) -> tuple[Grid, list[PartialSum]]:
    grid = grid_of(np.zeros(deltas[0].values.size, np.float32), ROOM if deltas[0].theta > 1.0 else 4)
    return grid, [own_sum(delta, grid) for delta in deltas]


def _relative_error(values: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(values - exact).max() / np.abs(exact).max())


def test_3_2_2_theta_starts_from_1_and_adds_up() -> None:
    pair = pair_aggregate(_sum(ANN, [0]), _sum(BOB, [3]))
    assert (pair.theta, pair.contributors, pair.values.tolist()) == (2.0, {ANN, BOB}, [3])
    three = pair_aggregate(pair, _sum(CARL, [6]))
    assert (three.theta, three.contributors, three.values.tolist()) == (3.0, {ANN, BOB, CARL}, [9])


def test_eq_3_gives_a_weighted_mean_and_not_a_plain_one() -> None:
    heavy, light = (ModelDelta(np.array([value], np.float32), theta, frozenset([who])) for value, theta, who in
                    ((1.0, 3.0, ANN), (5.0, 1.0, BOB)))  # fmt: skip
    grid = grid_of(np.zeros(1, np.float32), 2)
    pair = pair_aggregate(own_sum(heavy, grid), own_sum(light, grid))
    assert grid.to_mean(pair.values, pair.theta).tolist() == [2.0]


@given(
    count=st.integers(1, 16),
    seed=st.integers(0, 2**32 - 1),
    weighted=st.booleans(),
    in_place=st.booleans(),
    data=st.data(),
)
def test_eq_1_any_order_and_any_tree_of_merges_gives_the_same_bytes_and_the_central_mean(
    count: int, seed: int, weighted: bool, in_place: bool, data: st.DataObject
) -> None:
    deltas = _random_deltas(count, seed, weighted)
    grid, own = _on_grid(deltas)
    exact, whole = central_mean(deltas), sum(delta.theta for delta in deltas)
    in_turn = reduce(pair_aggregate, own)
    left = [msgspec.structs.replace(each, values=each.values.copy()) for each in own]
    while len(left) > 1:
        mine = left.pop(data.draw(st.integers(0, len(left) - 1)))
        theirs = left.pop(data.draw(st.integers(0, len(left) - 1)))
        left.append(pair_aggregate(mine, theirs, out=theirs.values if in_place else None))
    (last,) = left
    assert (last.theta, len(last.contributors)) == (whole, count)
    assert last.values.tobytes() == in_turn.values.tobytes()
    names = {digest_of_result(digest_of(each.values), each) for each in (last, in_turn)}
    assert len(names) == 1
    assert _relative_error(grid.to_mean(last.values, last.theta), exact) <= (1e-5 if weighted else 2e-7)


@given(seed=st.integers(0, 2**32 - 1), weighted=st.booleans())
def test_merging_in_place_gives_the_same_bits_and_takes_no_new_vector(seed: int, weighted: bool) -> None:
    mine, theirs = _on_grid(_random_deltas(2, seed, weighted))[1]
    fresh = pair_aggregate(mine, theirs)
    received = theirs.values.copy()
    merged = pair_aggregate(mine, msgspec.structs.replace(theirs, values=received), out=received)
    assert merged.values is received
    np.testing.assert_array_equal(merged.values, fresh.values)


def test_merging_changes_neither_side() -> None:
    mine, theirs = _sum(ANN, [1, 2]), _sum(BOB, [3, 5])
    pair_aggregate(mine, theirs)
    assert (mine.values.tolist(), theirs.values.tolist()) == ([1, 2], [3, 5])


def test_a_contributor_never_counts_twice() -> None:
    pair = pair_aggregate(_sum(ANN, [1]), _sum(BOB, [2]))
    with pytest.raises(LocalProtocolError, match="bob would count twice"):
        pair_aggregate(pair, _sum(BOB, [2]))


def test_a_restarted_peer_is_another_contributor() -> None:
    pair = pair_aggregate(_sum(ANN, [1]), _sum(Contributor("ann", 2), [2]))
    assert len(pair.contributors) == 2


def test_sums_of_different_models_or_grids_cannot_be_merged() -> None:
    with pytest.raises(LocalProtocolError, match="sums of 1 and 2 values"):
        pair_aggregate(_sum(ANN, [1]), _sum(BOB, [1, 2]))
    with pytest.raises(LocalProtocolError, match="cannot be merged"):
        pair_aggregate(_sum(ANN, [1]), msgspec.structs.replace(_sum(BOB, [1]), room=3))


@pytest.mark.parametrize(
    "change", [{"theta": 3.0}, {"room": 1}, {"contributors": frozenset([ANN, CARL])}, {"partial": (PART,)}]
)
def test_the_name_of_a_result_tells_its_weight_grid_and_contributors(change: dict[str, Any]) -> None:
    result = pair_aggregate(_sum(ANN, [1]), _sum(BOB, [2]))
    digest = digest_of(result.values)
    assert digest_of_result(digest, result) != digest_of_result(digest, msgspec.structs.replace(result, **change))


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
