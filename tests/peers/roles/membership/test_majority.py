"""Who may decide on a round, which of two histories goes on, and terms that two agents never share."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.peers.roles.membership.majority import (
    TERMS,
    has_in_common,
    has_quorum,
    is_senior,
    next_term,
    shared_forks,
    was_left_behind,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import Fork, Lineage, LineagePoint

PEER_IDS = st.text(min_size=1, max_size=12)
GROUPS = st.sets(st.sampled_from("abcdefgh"))
FORKS = st.builds(Fork, st.integers(0, 3), st.integers(1, 3), st.sampled_from(["x", "y"]))
LINEAGES = st.lists(FORKS, max_size=3).map(tuple)
START = Fork(0, 4, "a.1.1")
Place = tuple[Lineage, int]


def _place(lineage: Lineage, round_id: int) -> Place:
    """Of one mesh: forks begin one after the other, and nobody stands before the last of them."""
    rounds = sorted(fork.round_id for fork in lineage)
    forks = tuple(Fork(at, fork.size, fork.name) for at, fork in zip(rounds, lineage, strict=True))
    return (START, *forks), max([round_id, *rounds])


PLACES = st.builds(_place, LINEAGES, st.integers(0, 5))


def _goes_on(one: Place, other: Place) -> bool:
    return is_senior(one[0], other[0], one[1], other[1])


@pytest.mark.parametrize(
    ("base", "voters", "decides"),
    [
        ("", "", False),
        ("", "ab", False),
        ("a", "a", True),
        ("a", "b", False),
        ("abc", "ab", True),
        ("abc", "bc", True),
        ("abc", "c", False),
        ("abc", "cxyz", False),
        ("abcd", "abc", True),
        ("abcde", "ab", False),
    ],
)
def test_a_majority_of_those_who_contributed_decides(base: str, voters: str, decides: bool) -> None:
    assert has_quorum(base, voters) is decides


def test_an_even_split_is_decided_by_the_side_of_the_smallest_id() -> None:
    assert has_quorum("abcd", "ad")
    assert not has_quorum("abcd", "bc")
    assert has_quorum("ab", "a")
    assert not has_quorum("ab", "b")


@given(base=GROUPS, one=GROUPS, other=GROUPS)
def test_two_groups_that_share_nobody_never_both_decide(base: set[str], one: set[str], other: set[str]) -> None:
    other = other - one
    assert not (has_quorum(base, one) and has_quorum(base, other))


@given(base=GROUPS, voters=GROUPS, more=GROUPS)
def test_more_votes_never_cost_a_majority(base: set[str], voters: set[str], more: set[str]) -> None:
    if has_quorum(base, voters):
        assert has_quorum(base, voters | more)


@given(one=PLACES, other=PLACES)
def test_of_two_different_lineages_exactly_one_is_senior(one: Place, other: Place) -> None:
    assert _goes_on(one, other) + _goes_on(other, one) == (one[0] != other[0])


@given(st.lists(PLACES, min_size=3, max_size=3, unique_by=lambda place: place[0]))
def test_seniority_is_one_order_for_everybody(places: list[Place]) -> None:
    for one, other, third in permutations(places):
        if _goes_on(one, other) and _goes_on(other, third):
            assert _goes_on(one, third)


def test_of_two_starts_the_one_stands_that_more_devices_have_worked_in_whatever_their_rounds() -> None:
    lone = (Fork(0, 1, "lone"),)
    assert is_senior((START,), lone, 5, 40, 3, 1)
    assert not is_senior(lone, (START,), 40, 5, 1, 3)
    assert is_senior(lone, (START,), 40, 5, 2, 2)  # as many: the one that has come further
    fork = (START, Fork(3, 1, "fork"))
    assert is_senior((START,), fork, 5, 9, 1, 3)  # of one start its rounds tell


def test_what_was_forked_from_is_senior_to_its_forks_once_it_has_gone_on_without_them() -> None:
    fork = (START, Fork(3, 9, "b"))
    for round_id, is_so in ((4, True), (3, False), (1, False)):
        assert is_senior((START,), fork, round_id, 7) is is_so
        assert is_senior(fork, (START,), 7, round_id) is not is_so


def test_a_trunk_that_went_on_is_known_by_who_has_been_there() -> None:
    fork = (START, Fork(3, 9, "b"), Fork(5, 2, "c"))
    for name, round_id, is_so in ((START.name, 4, True), (START.name, 3, False), ("b", 6, True), ("c", 9, False)):
        assert was_left_behind(fork, (LineagePoint(name, round_id), LineagePoint("elsewhere", 9))) is is_so


def test_of_two_forks_the_later_is_senior_then_the_larger_then_the_one_with_the_smaller_name() -> None:
    large, small = (START, Fork(3, 3, "z")), (START, Fork(3, 2, "a"))
    assert is_senior(large, small)
    assert is_senior((START, Fork(3, 2, "a")), (START, Fork(3, 2, "b")))
    assert is_senior((*large, Fork(9, 1, "y")), small)
    assert is_senior((START, Fork(4, 1, "y")), large)


def test_who_never_took_part_is_junior_to_everybody() -> None:
    assert is_senior((START,), ())
    assert not is_senior((), (START,))
    assert not is_senior((), ())


def test_forks_are_shared_up_to_the_first_that_differs() -> None:
    x, y = Fork(2, 1, "x"), Fork(2, 1, "y")
    assert shared_forks((), (START,)) == 0
    assert shared_forks((START, x), (START, y, x)) == 1
    assert shared_forks((START, x), (START, x, y)) == 2


def test_a_model_is_shared_until_one_lineage_leaves_the_other() -> None:
    one, other = (START, Fork(3, 2, "x")), (START, Fork(5, 1, "y"))
    assert has_in_common(one, other, 3)
    assert not has_in_common(one, other, 4)
    assert has_in_common((START,), other, 5)
    assert not has_in_common((START,), other, 6)
    assert has_in_common(one, one, 99)


@given(one=LINEAGES, other=LINEAGES, round_id=st.integers(0, 4))
def test_sharing_a_model_is_mutual(one: Lineage, other: Lineage, round_id: int) -> None:
    assert has_in_common(one, other, round_id) == has_in_common(other, one, round_id)


@given(known=st.integers(0, 1 << 40), peer_id=PEER_IDS)
def test_a_term_of_ones_own_is_above_all_that_were_known_and_no_higher_than_needed(known: int, peer_id: str) -> None:
    term = next_term(known, Contributor(peer_id, 1))
    assert known < term <= known + TERMS
    assert next_term(term, Contributor(peer_id, 1)) == term + TERMS


def test_two_agents_never_order_under_the_same_term() -> None:
    """Whatever either has heard: each peer id has terms of its own."""
    for one, other in combinations([f"peer-{number}" for number in range(20)], 2):
        dealt = [
            {next_term(known, Contributor(peer_id, 1)) for known in range(0, 10 * TERMS, 7919)}
            for peer_id in (one, other)
        ]
        assert not dealt[0] & dealt[1]


def test_two_starts_of_one_agent_never_order_under_the_same_term() -> None:
    """The later one may lead before anybody has told it of the earlier one's term."""
    assert len({next_term(0, Contributor("agent", incarnation)) for incarnation in range(1, 50)}) == 49
