"""4, 5.2: entries that a person uses take the place of unused ones, and unused ones go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mdl.peers.deeptype.model.compression import (
    factor_embedding,
    factor_linear,
    keep_all,
    keep_used,
    swap_unused,
    take_rows,
)

NAMES = ("the", "of", "tea", "milk", "ox", "yew")


def test_4_used_names_that_are_missing_replace_the_least_frequent_unused_ones() -> None:
    uses = {"the": 9, "tea": 2, "anna": 5, "bert": 7, "carl": 1, "yew": 1}
    change = swap_unused(NAMES, uses, least=3)
    assert change.names == ("the", "of", "tea", "anna", "bert", "yew")  # the most used for the least frequent
    assert change.rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert change.new == 2


def test_4_nothing_that_is_used_is_ever_replaced() -> None:
    uses = dict.fromkeys(NAMES, 1) | {"anna": 50}
    assert swap_unused(NAMES, uses).names == NAMES
    assert swap_unused(NAMES, uses).new == 0


def test_5_2_used_entries_are_kept_and_the_rest_filled_with_frequent_ones() -> None:
    change = keep_used(NAMES, {"yew": 1, "milk": 4}, 4)
    assert change.names == ("the", "of", "milk", "yew")
    assert change.rows.tolist() == [0, 1, 3, 5]
    assert keep_used(NAMES, {}, 100).names == NAMES
    # Where not even all used ones fit, the least used go, however frequent they are elsewhere.
    assert keep_used(NAMES, {"the": 1, "yew": 9, "milk": 4}, 2).names == ("milk", "yew")
    assert keep_used(NAMES, {"yew": 1, "milk": 4}, 1).names == ("milk",)


def test_changes_follow_one_another() -> None:
    uses = {"anna": 5, "tea": 1}
    swapped = swap_unused(NAMES, uses)
    both = swapped.then(keep_used(swapped.names, uses, 3))
    assert both.names == ("the", "tea", "anna")
    assert both.rows.tolist() == [0, 2, 5]
    assert both.new == 1
    assert keep_all(NAMES).then(both).names == both.names


@pytest.mark.parametrize("factored", [False, True])
def test_rows_of_layers_are_taken(factored: bool) -> None:
    torch.manual_seed(0)
    linear, table = nn.Linear(4, 6), nn.Embedding(6, 4)
    rows, x = np.array([5, 0, 0]), torch.randn(2, 4)
    whole: nn.Module = factor_linear(linear, 2) if factored else linear
    taken = take_rows(whole, rows)
    torch.testing.assert_close(taken(x), whole(x)[:, rows])
    entries: nn.Module = factor_embedding(table, 2) if factored else table
    torch.testing.assert_close(take_rows(entries, rows)(torch.arange(3)), entries(torch.from_numpy(rows)))
    with pytest.raises(TypeError, match="ReLU"):
        take_rows(nn.ReLU(), rows)
