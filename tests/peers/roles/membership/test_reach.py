"""What an agent remembers of pairs that did not reach each other, and what it does about it."""

from __future__ import annotations

from typing import Any

from mdl.peers.roles.agent.conductor import Phase
from mdl.peers.roles.agent.distribution import around_cuts, order_broadcast
from mdl.peers.roles.membership.members import AT_MOST, AVOID_S, Members, Reach
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp, HopOrdered
from mdl.protocol.segments import tree_parent
from mdl.protocol.status_messages import MAX_CUTS
from mdl.protocol.vocabulary import HopDecision, HopOutcome, Transfer
from tests.peers.roles.desk import A, B, C, Desk

STALL_S = 10.0


# -- the memory -------------------------------------------------------------------------------------------------------


def test_a_pair_is_avoided_for_a_while_and_longer_each_time_it_fails_again() -> None:
    reach, now = Reach(), 0.0
    for avoid_s in (AVOID_S, 2 * AVOID_S, 4 * AVOID_S, 8 * AVOID_S, AT_MOST * AVOID_S, AT_MOST * AVOID_S):
        assert reach.fail(B, A, now) == "b cannot reach a: values go another way"
        assert reach.are_apart(A, B, now + avoid_s - 1)
        assert reach.are_apart(B, A, now + avoid_s - 1)
        now += avoid_s
        assert not reach.are_apart(A, B, now)
        assert reach.describe(now) == ()


def test_what_fails_while_it_is_avoided_is_no_news() -> None:
    reach = Reach()
    assert reach.fail(A, B, 0.0)
    assert reach.fail(B, A, 1.0) == ""
    assert reach.describe(2.0) == ("a cannot reach b: values go another way",)
    assert not reach.are_apart(A, B, AVOID_S)


def test_a_pair_that_works_again_is_trusted_again() -> None:
    reach = Reach()
    reach.fail(A, B, 0.0)
    reach.succeed(B, A)
    assert not reach.are_apart(A, B, 0.0)
    reach.fail(A, B, 1.0)
    assert not reach.are_apart(A, B, 1.0 + AVOID_S)  # not twice as long: it was another cut


def test_a_standstill_of_segments_costs_hops_only_until_a_pair_is_known() -> None:
    reach = Reach()
    reach.fail_segments([], 0.0)
    assert not reach.may_try_segments(AVOID_S - 1)
    reach.fail(A, B, 5.0)
    assert reach.may_try_segments(5.0)
    reach.fail_segments([(A, C)], 6.0)
    assert reach.may_try_segments(6.0)
    assert reach.are_apart(C, A, 6.0)


def test_a_restarted_device_begins_afresh_and_the_memory_is_bounded() -> None:
    reach = Reach()
    reach.fail(A, B, 0.0)
    assert not reach.are_apart(A, Contributor("b", 2), 0.0)
    for number in range(MAX_CUTS):
        reach.fail(C, Contributor(f"d{number}", 1), 1.0)
    assert len(reach.apart(1.0)) == len(reach.describe(1.0)) == MAX_CUTS
    assert not reach.are_apart(A, B, 1.0)


# -- hops -------------------------------------------------------------------------------------------------------------


def abort(desk: Any, hop: HopOrdered, reason: str) -> None:
    receiver = desk.receiver_of(hop)
    decision = HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED, STALL_S, 0, reason)
    desk.report(receiver, hops=(*desk.reports[receiver].hops, decision))


def ends_of(desk: Any, hop: HopOrdered) -> set[Contributor]:
    return {hop.sender, desk.receiver_of(hop)}


def test_after_a_hop_that_nothing_came_of_another_pair_is_ordered_and_people_are_told() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    first = desk.hops()[0]
    abort(desk, first, "nothing came for 10 s")
    desk.pass_time(1.0, A, B, C)
    second = desk.hops()[1]
    assert ends_of(desk, second) != ends_of(desk, first)
    assert C in ends_of(desk, second)
    sender, receiver = first.sender, desk.receiver_of(first)
    told = f"{receiver.peer_id} cannot reach {sender.peer_id}: values go another way"
    assert desk.agent.members.reach.describe(desk.now) == (told,)


def test_if_the_sender_had_heard_the_question_it_is_the_sender_who_cannot_reach_the_receiver() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    hop = desk.hops()[0]
    receiver = desk.receiver_of(hop)
    desk.hold(hop.sender, sent_hop=hop.hop_id)
    abort(desk, hop, "nothing came for 10 s")
    told = f"{hop.sender.peer_id} cannot reach {receiver.peer_id}: values go another way"
    assert desk.agent.members.reach.describe(desk.now) == (told,)


def test_a_hop_that_is_refused_or_cancelled_says_nothing_about_the_way() -> None:
    for reason in ("one partner at a time", "cancelled by the agent", "refused: values that are not finite"):
        desk = Desk(min_peers=3)
        desk.start(A, B, C)
        abort(desk, desk.hops()[0], reason)
        assert desk.agent.members.reach.describe(desk.now) == ()


def test_two_who_are_all_that_is_left_are_tried_all_the_same() -> None:
    desk = Desk()
    desk.start(A, B)
    abort(desk, desk.hops()[0], "nothing came for 10 s")
    desk.pass_time(1.0, A, B)
    assert len(desk.hops()) == 2
    assert desk.hops()[1].sender != desk.hops()[0].sender


# -- broadcast and catch-up -------------------------------------------------------------------------------------------


def feeders(order: tuple[Contributor, ...]) -> set[frozenset[Contributor]]:
    return {frozenset((order[place], order[tree_parent(place) or 0])) for place in range(1, len(order))}


def test_nobody_is_fed_by_a_device_that_cannot_reach_it() -> None:
    peers = [Contributor(f"p{number}", 1) for number in range(8)]
    for one in range(8):
        for other in range(one):
            members = Members(4.0)
            members.reach.fail(peers[one], peers[other], 0.0)
            order = order_broadcast(peers, peers[:1], members, 1.0)
            assert sorted(order) == peers
            assert order[0] == peers[0]
            assert frozenset((peers[one], peers[other])) not in feeders(order)


def test_if_the_root_is_the_cut_another_takes_its_place_as_soon_as_it_has_the_result() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    for _ in range(2):  # two hops, the root is who merged last
        hop = desk.hops()[-1]
        receiver = desk.receiver_of(hop)
        held = {who for peer in (hop.sender, receiver) for who in desk.reports[peer].holding.contributors}
        desk.merge(hop, receiver, *(held - {receiver, hop.sender}))
    assert desk.agent.phase is Phase.BROADCASTING
    root, other, cut = desk.last(BroadcastOrdered).order
    desk.agent.members.reach.fail(root, cut, desk.now)
    desk.stage(root)
    desk.stage(other)
    desk.pass_time(1.0, A, B, C)
    order = desk.last(BroadcastOrdered).order
    assert order == (other, root, cut)
    assert around_cuts(order, {root, other}, [0, 1], desk.agent.members, desk.now) == order


def test_a_device_whose_parent_has_nothing_yet_or_feeds_another_is_not_stalled() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    for _ in range(2):
        hop = desk.hops()[-1]
        receiver = desk.receiver_of(hop)
        held = {who for peer in (hop.sender, receiver) for who in desk.reports[peer].holding.contributors}
        desk.merge(hop, receiver, *(held - {receiver, hop.sender}))
    first = desk.last(BroadcastOrdered)
    root, fed, waits = first.order
    desk.pass_time(1.5 * STALL_S, A, B, C)  # the root itself has not said yet that it has it
    assert desk.last(BroadcastOrdered).order == first.order
    desk.stage(root)
    for received in (10, 20, 30):
        desk.report(fed, transfer=Transfer(root.peer_id, received, 40))
        desk.pass_time(0.6 * STALL_S, A, B, C)
    assert desk.agent.members.reach.describe(desk.now) == ()
    desk.stage(fed)
    desk.report(fed, transfer=None)
    desk.pass_time(STALL_S + 1.0, A, B, C)  # now it is its turn, and nothing comes
    assert desk.agent.members.reach.describe(desk.now) == (
        f"{root.peer_id} cannot reach {waits.peer_id}: values go another way",
    )


def test_a_late_device_fetches_the_model_from_somebody_it_reaches() -> None:
    desk = Desk(rounds=0)
    late = {"lineage": (), "round_id": 0, "digest": b"w0"}
    for agent in ("", "agent"):
        for peer in (A, B):
            desk.report(peer, agent=agent, **desk_module_settled())
        desk.report(C, agent=agent, **late)
    source = desk.last(CatchUp).source
    other = B if source == A else A
    desk.agent.members.reach.fail(source, C, desk.now)
    desk.pass_time(1.0, A, B, C)
    assert desk.last(CatchUp).source == other


def desk_module_settled() -> dict[str, Any]:
    from mdl.protocol.vocabulary import Fork

    return {"lineage": (Fork(0, 2, "agent.1.1"),), "round_id": 4, "digest": b"w4", "base": ("a", "b"), "votes": True}
