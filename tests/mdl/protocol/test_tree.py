"""3.2.3: the broadcast runs down a binomial tree whose early positions feed most peers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.protocol.segments import tree_children, tree_parent

COUNTS = st.integers(1, 300)


def test_3_2_3_the_tree_of_eight_is_the_textbooks() -> None:
    assert [tree_children(position, 8) for position in range(8)] == [[1, 2, 4], [3, 5], [6], [7], [], [], [], []]
    assert [tree_parent(position) for position in range(8)] == [None, 0, 0, 1, 0, 1, 2, 3]


@given(COUNTS)
def test_every_position_but_the_root_is_fed_exactly_once(count: int) -> None:
    fed = [child for position in range(count) for child in tree_children(position, count)]
    assert sorted(fed) == list(range(1, count))


@given(COUNTS)
def test_parent_and_children_agree_and_a_parent_stands_further_ahead(count: int) -> None:
    for position in range(count):
        for child in tree_children(position, count):
            assert tree_parent(child) == position < child


@given(COUNTS)
def test_all_have_the_values_after_log2_of_n_rounds(count: int) -> None:
    arrived = {0: 0}  # position -> round in which it got the values; a position feeds one child a round
    for position in range(count):
        for step, child in enumerate(tree_children(position, count), 1):
            arrived[child] = arrived[position] + step
    assert max(arrived.values()) == math.ceil(math.log2(count))


@given(COUNTS)
def test_no_position_feeds_more_than_an_earlier_one(count: int) -> None:
    """So that the peers with most resources, who stand first, carry most of the load."""
    feeds = [len(tree_children(position, count)) for position in range(count)]
    assert feeds == sorted(feeds, reverse=True)


@pytest.mark.parametrize("count", [1, 2])
def test_the_smallest_trees(count: int) -> None:
    assert tree_children(0, count) == list(range(1, count))
