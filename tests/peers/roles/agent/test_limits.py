"""Limits that devices offer (M_max and B_max of Eq. 4) are kept by the agent, whatever the policy says."""

from __future__ import annotations

import pytest

from mdl.peers.roles.agent.conductor import Phase
from mdl.protocol.machine import Tick
from mdl.protocol.vocabulary import HopDecision, HopOutcome, ResourceState
from mdl.scheduler.policies.registry import POLICIES
from tests.peers.roles.desk import A, B, C, Desk

ROOM = ResourceState(1 << 30, 5.0)
# A delta of the desk's model has 40 bytes.
FULL = ResourceState(1 << 30, 5.0, memory_left_bytes=39)
SPENT = ResourceState(1 << 30, 5.0, 60.0, False, battery_left_percent=0.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limited", [FULL, SPENT], ids=["memory", "battery"])
def test_eq_4_a_device_without_room_for_a_delta_sends_and_receives_none(policy: str, limited: ResourceState) -> None:
    desk = Desk(policy=policy, min_peers=3)
    for peer, resources in ((A, limited), (B, limited), (C, ROOM)):
        desk.report(peer, resources=resources)
    for peer in (A, B, C):
        desk.hold(peer)
    (first,) = desk.hops()
    assert desk.receiver_of(first) == C
    desk.merge(first, C)
    second = desk.hops()[-1]
    assert second != first
    assert desk.receiver_of(second) == C
    assert {first.sender, second.sender} == {A, B}


def test_eq_4_room_for_exactly_one_delta_is_room() -> None:
    desk = Desk(policy="fifo")
    desk.report(A, resources=ResourceState(1 << 30, 5.0, memory_left_bytes=40))
    desk.report(B, resources=FULL)
    desk.hold(A)
    desk.hold(B)
    (hop,) = desk.hops()
    assert desk.receiver_of(hop) == A


def test_eq_4_where_nobody_may_receive_the_round_goes_on_with_one_and_no_limit_is_broken() -> None:
    desk = Desk(policy="fifo")
    for peer in (A, B):
        desk.report(peer, resources=FULL)
    desk.hold(A)
    desk.hold(B)
    desk.hand(Tick(), 1.0)
    desk.promise(A, B)
    assert desk.hops() == []
    assert desk.agent.phase is Phase.BROADCASTING


def test_eq_4_a_pair_that_failed_is_not_turned_round_into_a_limit() -> None:
    desk = Desk(policy="fifo")
    desk.report(A, resources=ROOM)
    desk.report(B, resources=FULL)
    desk.hold(A)
    desk.hold(B)
    (hop,) = desk.hops()
    aborted = HopDecision(hop.hop_id, B, HopOutcome.ABORTED, 1.0, 0, "no space left")
    desk.hold(A, hops=(aborted,))
    assert desk.receiver_of(desk.hops()[-1]) == A
