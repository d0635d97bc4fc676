"""How a round gets its one result: staged by everybody alive and by a majority of those who decide, then applied."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mdl.peers.roles.agent.conductor import Phase
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Tick
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp, HopOrdered, RoundClosed, RoundOpened
from mdl.protocol.vocabulary import Activity, Fork, HopDecision, HopOutcome, Lineage, Transfer
from tests.peers.roles.desk import FRESH, A, B, C, D, Desk

START: Lineage = (Fork(0, 3, "agent.1.1"),)
SETTLED = msgspec.structs.replace(FRESH, round_id=4, digest=b"w4", lineage=START, base=("a", "b", "c"), votes=True)
PARTITION_S, STALL_S = 15.0, 10.0


def _aggregating(*members: Contributor, **settings: Any) -> Desk:
    """Round 5 is open and these hold their own deltas."""
    desk = Desk(**{"rounds": 0} | settings)
    for agent in ("", "agent"):
        for peer in members:
            desk.reports.setdefault(peer, SETTLED)
            desk.report(peer, agent=agent)
    for peer in members:
        desk.hold(peer)
    return desk


def _reduce(desk: Desk, *members: Contributor) -> None:
    """Every hop is merged, until one holds everything."""
    held = {peer: {peer} for peer in members}
    done = 0
    while desk.agent.phase is Phase.AGGREGATING:
        hop = desk.hops()[done]
        receiver = desk.receiver_of(hop)
        held[receiver] |= held[hop.sender]
        desk.merge(hop, receiver, *held[receiver])
        done += 1


def _broadcasting(*members: Contributor, **settings: Any) -> Desk:
    desk = _aggregating(*members, **settings)
    _reduce(desk, *members)
    assert desk.agent.phase is Phase.BROADCASTING
    return desk


def _root(desk: Desk) -> Contributor:
    root: Contributor = desk.last(BroadcastOrdered).order[0]
    return root


# -- hearing ----------------------------------------------------------------------------------------------------------


def test_how_long_a_device_trains_is_not_learned_from_what_it_holds_of_an_older_attempt() -> None:
    desk = Desk(rounds=0)
    for agent in ("", "agent"):
        for peer in (A, B, C):
            desk.reports.setdefault(peer, SETTLED)
            desk.report(peer, agent=agent)
    opened = desk.last(RoundOpened)
    desk.hold(A, open_term=opened.attempt - 1)
    member = desk.agent.members.get(A)
    assert member
    assert member.device.training_s is None
    desk.hold(A, after_s=2.0)
    assert member.device.training_s is not None
    assert member.device.training_s >= 2.0


# -- a majority -------------------------------------------------------------------------------------------------------


def test_a_round_closes_when_everybody_alive_has_its_result() -> None:
    desk = _broadcasting(A, B, C)
    for peer in (A, B):
        desk.stage(peer)
    assert (desk.agent.phase, desk.told(RoundClosed)) == (Phase.BROADCASTING, [])
    desk.stage(C)
    assert (desk.agent.phase, sorted(desk.told(RoundClosed))) == (Phase.CLOSING, ["a", "b", "c"])


def test_a_round_closes_with_a_majority_when_the_others_are_lost() -> None:
    desk = _broadcasting(A, B, C)
    root = _root(desk)
    lost = next(peer for peer in (A, B, C) if peer != root)
    others = [peer for peer in (A, B, C) if peer != lost]
    for peer in others:
        desk.stage(peer)
    desk.pass_time(5.0, *others)
    for peer in others:
        desk.stage(peer)
    assert (desk.agent.phase, set(desk.told(RoundClosed))) == (Phase.CLOSING, {peer.peer_id for peer in others})


def _minority(**settings: Any) -> tuple[Desk, Contributor]:
    """The root alone is left of three, with the result."""
    desk = _broadcasting(A, B, C, **settings)
    root = _root(desk)
    desk.stage(root)
    desk.pass_time(5.0, root)
    desk.stage(root)
    return desk, root


def test_a_round_does_not_close_without_a_majority_and_says_who_is_missing() -> None:
    desk, root = _minority()
    missing = ", ".join(sorted({"a", "b", "c"} - {root.peer_id}))
    assert (desk.agent.phase, desk.told(RoundClosed)) == (Phase.BROADCASTING, [])
    assert desk.agent.round is not None
    assert desk.agent.round.lacking_since is not None
    assert desk.agent.waiting_for == f"a majority: {missing} of 3 members are missing"


def test_a_round_that_lacks_a_majority_closes_when_one_comes_back_in_time() -> None:
    desk, root = _minority()
    back = next(peer for peer in (A, B, C) if peer != root)
    desk.report(back)
    desk.stage(root)
    desk.stage(back)
    assert (desk.agent.phase, sorted(desk.told(RoundClosed))) == (Phase.CLOSING, sorted([root.peer_id, back.peer_id]))


def test_a_round_that_lacks_a_majority_for_long_is_given_up_for_a_fork() -> None:
    desk, root = _minority(min_peers=1)
    desk.pass_time(PARTITION_S + 2.0, root)
    opened = desk.last(RoundOpened)
    assert (opened.round_id, opened.members, len(opened.lineage), opened.attempt) == (5, (root,), 2, opened.term)
    assert desk.told(RoundClosed) == []


def test_a_round_that_lacks_a_majority_waits_for_ever_if_the_user_wants_that() -> None:
    desk, root = _minority(min_peers=1, waits_for_majority=True)
    desk.pass_time(10 * PARTITION_S, root)
    assert (desk.agent.phase, desk.told(RoundClosed)) == (Phase.BROADCASTING, [])
    assert len(desk.last(RoundOpened).lineage) == 1


def test_a_device_that_forgot_what_it_voted_for_does_not_close_a_round() -> None:
    desk = Desk(rounds=0)
    base = ("a", "b", "c", "d", "e")
    for peer in (A, B, C):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, base=base)
    for agent in ("", "agent"):
        for peer in (A, B, C):
            desk.report(peer, agent=agent)
    for peer in (A, B, C):
        desk.hold(peer)
    _reduce(desk, A, B, C)
    for peer in (A, B, C):
        desk.stage(peer, votes=peer != A)
    assert (desk.agent.phase, desk.told(RoundClosed)) == (Phase.BROADCASTING, [])
    desk.report(A, votes=True)
    assert desk.agent.phase is Phase.CLOSING


def test_the_newcomers_result_is_welcome_and_their_vote_does_not_count() -> None:
    """Those who contributed to the round before decide: d and the others who joined since do not outvote them."""
    base = ("x", "y", "z")
    desk = Desk(rounds=0, min_peers=1)
    for peer in (A, B):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, base=base)
        desk.report(peer)
    assert desk.agent.waiting_for == "x, y, z: 2 of 3 members are here"


# -- late devices -----------------------------------------------------------------------------------------------------


def test_a_device_that_comes_while_the_round_is_aggregated_takes_the_staged_result_with_the_others() -> None:
    desk = _aggregating(A, B, C)
    desk.reports[D] = SETTLED
    desk.report(D)
    assert desk.agent.live_members() == [A, B, C]
    _reduce(desk, A, B, C)
    order = desk.last(BroadcastOrdered)
    assert (set(order.order), order.contributors, order.base_digest) == ({A, B, C, D}, (A, B, C), b"w4")
    for peer in (A, B, C):
        desk.stage(peer)
    assert desk.told(RoundClosed) == []
    desk.stage(D)
    assert sorted(desk.told(RoundClosed)) == ["a", "b", "c", "d"]


def test_a_device_that_comes_during_the_broadcast_is_taken_into_the_next_order() -> None:
    desk = _broadcasting(A, B, C)
    first = desk.last(BroadcastOrdered)
    desk.reports[D] = SETTLED
    desk.report(D)
    order = desk.last(BroadcastOrdered)
    assert (set(order.order), order.version) == ({A, B, C, D}, first.version + 1)
    assert order.order[0] == first.order[0]


def test_a_device_that_stands_at_another_model_is_no_recipient_and_is_sent_to_the_meshs() -> None:
    desk = _broadcasting(A, B, C)
    desk.reports[D] = msgspec.structs.replace(SETTLED, round_id=2, digest=b"w2")
    desk.report(D)
    assert D not in desk.last(BroadcastOrdered).order
    assert (desk.told(CatchUp), desk.last(CatchUp).digest) == (["d"], b"w4")


def test_the_closed_round_is_applied_by_those_who_were_silent_when_it_closed() -> None:
    desk = _broadcasting(A, B, C)
    for peer in (A, B, C):
        desk.stage(peer)
    desk.apply(A)
    desk.apply(B)
    assert desk.agent.phase is Phase.CLOSING
    desk.pass_time(3.0, A, B)
    assert desk.agent.rounds_closed() == 1
    desk.said.clear()
    desk.report(C)  # still at w4, with the result of round 5 staged
    target = desk.last(CatchUp)
    assert (desk.told(CatchUp), target.round_id, target.digest, target.lineage) == (["c"], 5, b"w5", START)


# -- one digest -------------------------------------------------------------------------------------------------------


def test_two_different_results_are_never_closed_the_roots_is_ordered_for_all() -> None:
    desk = _broadcasting(A, B, C)
    first = desk.last(BroadcastOrdered)
    assert first.digest == b""
    root = first.order[0]
    for peer in (A, B, C):
        desk.stage(peer, digest=b"one" if peer == root else b"two")
    order = desk.last(BroadcastOrdered)
    assert (order.digest, order.version > first.version, order.order[0]) == (b"one", True, root)
    assert (desk.agent.phase, desk.told(RoundClosed)) == (Phase.BROADCASTING, [])
    for peer in (A, B, C):
        desk.stage(peer, digest=b"one")
    assert (desk.agent.phase, desk.last(RoundClosed).digest) == (Phase.CLOSING, b"one")


def test_an_order_that_names_its_digest_is_not_followed_with_another_one() -> None:
    desk = _broadcasting(A, B, C)
    for peer, digest in ((A, b"one"), (B, b"two")):
        desk.stage(peer, digest=digest)
    for peer in (A, B):
        desk.stage(peer, digest=b"one")
    desk.stage(C, digest=b"two")
    assert desk.told(RoundClosed) == []


def test_a_result_of_other_contributors_is_not_this_rounds() -> None:
    desk = _broadcasting(A, B, C)
    desk.stage(A)
    desk.stage(B)
    desk.stage(C, B, C)
    assert desk.told(RoundClosed) == []


# -- those who hold it up ---------------------------------------------------------------------------------------------


def _stuck(desk: Desk) -> tuple[Contributor, list[Contributor]]:
    """The one that will not get the result, and the others, who have it."""
    root = _root(desk)
    stuck = next(peer for peer in (C, B, A) if peer != root)
    return stuck, [peer for peer in (A, B, C) if peer != stuck]


def test_who_does_not_get_the_result_is_ordered_again_and_then_left_behind() -> None:
    desk = _broadcasting(A, B, C, stall_s=STALL_S)
    stuck, others = _stuck(desk)
    first = desk.last(BroadcastOrdered)
    for peer in others:
        desk.stage(peer)
    desk.pass_time(STALL_S + 2.0, A, B, C)
    again = desk.last(BroadcastOrdered)
    assert (again.version > first.version, stuck in again.order, desk.told(RoundClosed)) == (True, True, [])
    desk.pass_time(STALL_S + 2.0, A, B, C)
    assert set(desk.told(RoundClosed)) == {peer.peer_id for peer in others}
    for peer in others:
        desk.apply(peer)
    assert desk.agent.rounds_closed() == 1


def test_who_is_receiving_the_result_is_given_its_time() -> None:
    desk = _broadcasting(A, B, C, stall_s=STALL_S)
    stuck, others = _stuck(desk)
    for peer in others:
        desk.stage(peer)
    for step in range(60):
        desk.report(stuck, transfer=Transfer(others[0].peer_id, step, 60))
        desk.pass_time(0.5, *others)
    assert stuck in desk.last(BroadcastOrdered).order
    desk.stage(stuck, transfer=None)
    assert stuck.peer_id in desk.told(RoundClosed)


def test_who_waits_for_its_siblings_turn_to_end_is_given_its_time_too() -> None:
    """A parent feeds one child after the other: the second one's transfer has not begun, and nothing is wrong."""
    desk = _broadcasting(A, B, C, stall_s=STALL_S)
    root, first, second = desk.last(BroadcastOrdered).order
    desk.stage(root)
    version = desk.last(BroadcastOrdered).version
    for step in range(60):
        desk.report(first, transfer=Transfer(root.peer_id, step, 60))
        desk.pass_time(0.5, root, second)
    assert (desk.last(BroadcastOrdered).version, second in desk.last(BroadcastOrdered).order) == (version, True)


def test_who_waits_for_a_parent_that_has_nothing_yet_is_given_its_time_and_the_parent_is_not() -> None:
    desk = _broadcasting(A, B, C, D, stall_s=STALL_S)
    root, inner, other, leaf = desk.last(BroadcastOrdered).order  # the leaf is fed by the inner one
    desk.stage(root)
    desk.stage(other)
    for step in range(60):
        desk.report(inner, transfer=Transfer(root.peer_id, step, 60))
        desk.pass_time(0.5, root, other, leaf)
    assert desk.last(BroadcastOrdered).version == 1
    desk.pass_time(STALL_S + 1.0, root, inner, other, leaf)
    assert desk.last(BroadcastOrdered).version == 2
    desk.pass_time(STALL_S + 1.0, root, inner, other, leaf)
    assert inner not in desk.last(BroadcastOrdered).order
    assert leaf in desk.last(BroadcastOrdered).order


def test_a_transfer_that_stands_still_is_no_sign_of_life() -> None:
    """Its parent was lost in the middle of it: what had come by then stands in its reports."""
    desk = _broadcasting(A, B, C, stall_s=STALL_S)
    stuck, others = _stuck(desk)
    for peer in others:
        desk.stage(peer)
    desk.report(stuck, transfer=Transfer(others[0].peer_id, 30, 60))
    desk.pass_time(2 * STALL_S + 4.0, A, B, C)
    assert set(desk.told(RoundClosed)) == {peer.peer_id for peer in others}


def test_an_order_says_how_fast_the_links_are_as_hops_have_shown() -> None:
    desk = _broadcasting(A, B, C)
    order = desk.last(BroadcastOrdered)
    known = [desk.agent.members.get(peer).device.link_mb_s for peer in order.order]
    assert order.link_mb_s == tuple(link or 0.0 for link in known)
    assert len(order.link_mb_s) == 3


def test_a_device_that_trains_for_long_is_no_stuck_round() -> None:
    desk = Desk(rounds=0, stall_s=3.0)
    for peer in (A, B, C):
        desk.reports[peer] = SETTLED
    for agent in ("", "agent"):
        for peer in (A, B, C):
            desk.report(peer, agent=agent)
    first = desk.last(RoundOpened)
    desk.hold(A)
    for peer in (B, C):
        desk.join(peer)
    desk.pass_time(60.0, A, B, C)
    assert desk.last(RoundOpened).attempt == first.attempt
    assert desk.agent.live_members() == [A, B, C]


def test_a_round_goes_on_without_a_member_that_gave_it_up() -> None:
    desk = _aggregating(A, B, C)
    desk.report(C, open_round=0, open_term=0, open_as=0, holding=None, activity=Activity.WAITING)
    assert desk.agent.live_members() == [A, B]


@pytest.mark.parametrize("reason", ["nothing came for 10 s", "cancelled by the agent"])
def test_two_that_cannot_aggregate_either_way_cost_one_of_them_its_place_in_the_round(reason: str) -> None:
    desk = _aggregating(A, B)
    for number in range(2):
        hop: HopOrdered = desk.hops()[number]
        receiver = desk.receiver_of(hop)
        aborted = HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED, reason=reason)
        desk.hold(receiver, hops=(*desk.reports[receiver].hops, aborted))
    first, second = desk.hops()
    assert (second.sender, desk.receiver_of(second)) == (desk.receiver_of(first), first.sender)
    (left,) = desk.agent.live_members()
    order = desk.last(BroadcastOrdered)
    assert (order.contributors, set(order.order), order.order[0]) == ((left,), {A, B}, left)


def test_who_is_out_of_its_partners_reach_still_decides_and_takes_the_result() -> None:
    desk = _aggregating(A, B)
    for number in range(2):
        hop: HopOrdered = desk.hops()[number]
        receiver = desk.receiver_of(hop)
        aborted = HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED, reason="nothing came")
        desk.hold(receiver, hops=(*desk.reports[receiver].hops, aborted))
    for peer in (A, B):
        desk.stage(peer)
    assert sorted(desk.told(RoundClosed)) == ["a", "b"]


def test_nothing_is_said_to_anybody_when_everybody_is_gone() -> None:
    desk = _broadcasting(A, B, C)
    desk.hand(Tick(), 60.0)
    desk.said.clear()
    desk.hand(Tick(), 1.0)
    assert (desk.said, desk.agent.phase) == ([], Phase.GATHERING)
