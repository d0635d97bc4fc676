"""Every policy goes around pairs that cannot reach each other, as long as there is another way."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.scheduler.explain.decide_lines import Decider
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Wait, go_around, nearest_allowed
from mdl.scheduler.policies.registry import POLICIES, make_policy

FREE, TRAINING, DONE, GET = DeviceState.FREE, DeviceState.TRAINING, DeviceState.DONE, DeviceState.GET


def see(states: dict[str, DeviceState], *apart: tuple[str, str]) -> ChainView:
    devices = tuple(DeviceView(name, state, 4.0, 100.0) for name, state in states.items())
    return ChainView(0.0, 1.0, devices, apart=frozenset(apart))


def test_without_a_cut_the_policy_decides() -> None:
    pair = Pair("a", "b", "")
    assert go_around(see(dict.fromkeys("abc", FREE)), pair) is pair
    assert go_around(see(dict.fromkeys("abcd", FREE), ("c", "d")), pair) is pair


def test_the_same_sender_goes_to_somebody_it_reaches() -> None:
    decision = go_around(see(dict.fromkeys("abcd", FREE), ("b", "a")), Pair("a", "b", "cheapest"))
    assert isinstance(decision, Pair)
    assert (decision.sender, decision.receiver) == ("a", "c")
    assert decision.reason == "a and b have a cut between them (cheapest)"


def test_the_only_way_between_two_devices_does_not_send() -> None:
    """With c gone nobody could bring a and b together."""
    decision = go_around(see(dict.fromkeys("abc", FREE), ("a", "b")), Pair("c", "a", ""))
    assert isinstance(decision, Pair)
    assert decision.sender != "c"
    assert decision.receiver == "c"


def test_for_a_partner_that_still_trains_or_merges_they_wait() -> None:
    for state in (TRAINING, GET):
        decision = go_around(see({"a": FREE, "b": FREE, "c": state}, ("a", "b")), Pair("a", "b", ""))
        assert isinstance(decision, Wait)


def test_a_pair_that_is_apart_is_tried_where_nothing_else_is_left() -> None:
    pair = Pair("a", "b", "")
    assert go_around(see({"a": FREE, "b": FREE, "c": DONE}, ("a", "b")), pair) is pair


def full(view: ChainView, *names: str) -> ChainView:
    """Their owners' limits leave these no room for one more delta."""
    devices = (msgspec.structs.replace(device, may_receive=device.peer_id not in names) for device in view.devices)
    return msgspec.structs.replace(view, devices=tuple(devices))


def test_eq_4_who_has_no_room_for_a_delta_sends_and_the_reason_says_so() -> None:
    decision = go_around(full(see(dict.fromkeys("abc", FREE)), "b"), Pair("a", "b", "cheapest"))
    assert isinstance(decision, Pair)
    assert (decision.sender, decision.receiver) == ("a", "c")
    assert decision.reason == "b: its owner's limit lets it receive nothing (cheapest)"


def test_eq_4_a_limit_holds_also_where_nothing_else_is_left() -> None:
    for states in ({"a": FREE, "b": FREE, "c": DONE}, {"a": FREE, "b": FREE, "c": TRAINING}):
        decision = go_around(full(see(states), "a", "b"), Pair("a", "b", ""))
        assert decision == Wait("b: its owner's limit lets it receive nothing: waiting for another partner")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limited", ["a", "ab", "abd", "bcd"])
def test_eq_4_no_policy_lets_a_device_receive_beyond_its_limit(policy: str, limited: str) -> None:
    states, rule = dict.fromkeys("abcd", FREE), make_policy(policy)
    for _ in range(3):
        view = full(see(states), *limited)
        decision = go_around(view, rule.decide(view))
        assert isinstance(decision, Pair), decision
        assert decision.receiver not in limited
        states[decision.sender] = DONE


def connected(names: list[str], apart: set[tuple[str, str]]) -> bool:
    seen, border = {names[0]}, [names[0]]
    while border:
        one = border.pop()
        near = {other for other in names if not {(one, other), (other, one)} & apart} - seen
        seen |= near
        border += near
    return len(seen) == len(names)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(3, 7))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_merges_everybody_over_pairs_that_reach_each_other(name: str, data: st.DataObject, n: int) -> None:
    names = [f"d{i}" for i in range(n)]
    pairs = list(itertools.combinations(names, 2))
    apart = set(data.draw(st.lists(st.sampled_from(pairs), max_size=n, unique=True)))
    if not connected(names, apart):
        return
    policy, states = make_policy(name), dict.fromkeys(names, FREE)
    for left in range(n, 1, -1):
        view = see(states, *apart)
        decision = go_around(view, policy.decide(view))
        if isinstance(decision, Wait):  # for nobody: the agent pairs anyway (Aggregation._pair_up)
            free = [peer for peer, state in states.items() if state is FREE]
            decision = go_around(view, Pair(free[0], free[1], ""))
        assert isinstance(decision, Pair), left
        assert not view.cut(decision.sender, decision.receiver)
        states[decision.sender] = DONE
    assert list(states.values()).count(DONE) == n - 1


def test_who_cannot_be_reached_by_anybody_keeps_nobody_from_merging() -> None:
    cut_off = [("a", other) for other in "bcd"]
    assert nearest_allowed(see(dict.fromkeys("abcd", FREE), *cut_off), "a", "b") in {("b", "c"), ("c", "b")} | {
        pair for pair in itertools.permutations("bcd", 2)
    }


def test_an_observation_may_name_pairs_that_are_apart_and_needs_not() -> None:
    devices = [{"id": number, "state": "free", "bw": 4.0} for number in (1, 2, 3)]
    decider = Decider(make_policy("fifo"))
    line = {"mb": 1.0, "devices": devices}
    assert msgspec.json.decode(decider.answer(json.dumps(line).encode()))["pair"] == [1, 2]
    answer = msgspec.json.decode(decider.answer(json.dumps(line | {"apart": [[2, 1]]}).encode()))
    assert answer["pair"] == [1, 3]
    wrong = msgspec.json.decode(decider.answer(json.dumps(line | {"apart": [[2, 7]]}).encode()))
    assert wrong == {"error": "apart[0]: no device has the id 7"}
