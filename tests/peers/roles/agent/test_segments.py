"""The agent and a round in segments: one order, and what becomes of it if a device is lost or nothing moves."""

from __future__ import annotations

import msgspec
import pytest

from mdl.peers.roles.agent import aggregation
from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.agent.conductor import Phase
from mdl.protocol.delta import Contributor, Partial
from mdl.protocol.machine import Received
from mdl.protocol.round_messages import BroadcastOrdered, Exchanging, HopOrdered, Lost, RoundClosed, RoundOpened
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from mdl.protocol.vocabulary import Activity, Staged, Transfer
from mdl.scheduler.policies.registry import make_policy
from tests.peers.roles.desk import A, B, C, D, Desk

STALL_S = 10.0


def _desk(min_peers: int = 3, **settings: object) -> Desk:
    return Desk(min_peers=min_peers, exchange="shares", segment_values=2, stall_s=STALL_S, **settings)  # type: ignore[arg-type]


def _started() -> Desk:
    desk = _desk()
    desk.start(A, B, C)
    return desk


def _status(desk: Desk) -> MeshStatus:
    """What `mdl peers` is told."""
    told = desk.hand(Received(Contributor("observer", 1), StatusWanted()))
    status = told[0].message  # type: ignore[union-attr]
    assert isinstance(status, MeshStatus)
    return status


def test_all_get_one_order_with_owners_as_soon_as_everybody_holds_its_own_delta() -> None:
    desk = _desk()
    for peer in (A, B, C):
        desk.report(peer)
    desk.hold(A)
    desk.hold(B)
    assert not desk.hops()
    assert desk.agent.waiting_for == "c to train"
    assert _status(desk).phase == "aggregating, waits for c to train"
    desk.hold(C)
    order = desk.last(BroadcastOrdered)
    assert sum(order.owns) == 5
    assert order.segment_values == 2
    assert order.order == order.contributors == (A, B, C)
    assert order.theta == 3.0
    assert sorted(set(desk.told(BroadcastOrdered))) == ["a", "b", "c"]
    assert not desk.hops()


def test_the_round_is_closed_when_all_have_staged_the_result() -> None:
    desk = _started()
    for peer in (A, B, C):
        assert desk.agent.phase is Phase.BROADCASTING
        desk.stage(peer, uplink=2.5)
    assert desk.agent.phase is Phase.CLOSING
    for peer in (A, B, C):
        desk.apply(peer)
    assert sorted(set(desk.told(RoundClosed))) == ["a", "b", "c"]
    assert [member.device.link_mb_s for member in desk.agent.members.alive()] == [2.5] * 3
    summary = desk.agent._records.pending
    assert summary is not None
    assert summary.bytes == 2 * 2 * 40
    assert sum(summary.shares.values()) == 5


@pytest.mark.parametrize(("coding", "part"), [("none", 1.0), ("int8", 0.27265)])
def test_what_a_round_sent_is_counted_as_it_was_coded_and_what_it_took_of_each_device(coding: str, part: float) -> None:
    desk = _desk(coding=coding)
    for peer in (A, B, C):
        desk.report(peer)
    for member, merge_mb_s in zip(desk.agent.members.everyone(), (None, 0.5, 0.5), strict=True):
        member.device.learn_link(0.1)
        member.device.learn_merge(merge_mb_s)
    for act in (desk.hold, desk.stage, desk.apply):
        for peer in (A, B, C):
            act(peer)
    summary = desk.agent._records.pending
    assert summary is not None
    assert (summary.bytes, summary.size) == (4 * round(40 * part), 10)
    assert [summary.shares[name] for name in "abc"] == [2, 2, 1]
    spent_j = [member.device.energy_j for member in desk.agent.members.everyone()]
    # It sends and gets its delta and two fifths of another one at 1.0 and 0.8 W, and merges two fifths twice at 1.5 W.
    links_j = [round(times * round(40 * part)) * 1e-6 / 0.1 * 1.8 for times in (1.4, 1.4, 1.2)]
    merges_j = 0.8 * 40e-6 / 0.5 * 1.5
    expected = [links_j[0], links_j[1] + merges_j, links_j[2] + merges_j / 2]
    assert spent_j == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("has_followed", [True, False])
def test_a_lost_device_that_has_not_told_all_its_checksums_is_in_no_sum(has_followed: bool) -> None:
    """Whoever has its pieces could have altered them."""
    desk = _started()
    first = desk.last(BroadcastOrdered)
    desk.silence(C, A, B, for_s=6.0)
    mark = Exchanging(first.term, first.version, 1 if has_followed else 0)
    desk.report(A, exchange=mark, lacking=("c",))
    desk.report(B, exchange=mark)
    desk.pass_time(0.6, A, B)
    order = desk.last(BroadcastOrdered)
    assert order.order == (A, B)
    assert (order.lost == ()) == has_followed, "before it has followed it lacks pieces of it, as any owner may"


def test_who_asks_hears_of_the_segments_while_they_are_on_their_way() -> None:
    desk = _started()
    status = _status(desk)
    assert status.phase == "exchanging segments, waits for a, b, c to have the result"
    assert sum(status.shares.values()) == 5
    assert status.plan.startswith("5 segments of")
    assert status.exchanging_s == 0.1
    desk.stage(B)
    desk.pass_time(0.6, A, C)
    assert _status(desk).phase == "exchanging segments, waits for a, c to have the result"


def test_a_round_tells_what_the_links_allowed_as_they_were_known_before_it() -> None:
    desk = _desk()
    for peer in (A, B, C):
        desk.report(peer)
    for member in desk.agent.members.everyone():
        member.device.learn_link(2.0)
    for act in (desk.hold, desk.stage, desk.apply):
        for peer in (A, B, C):
            act(peer)
    summary = desk.agent._records.pending
    assert summary is not None
    assert summary.bound_s == 0.000027  # 40 bytes, 2 (N-1) M / sum of the links
    assert summary.exchange_s == summary.seconds["broadcast"] > 0.0


def test_without_a_contributor_that_is_lost_the_same_exchange_goes_on() -> None:
    desk = _started()
    first = desk.last(BroadcastOrdered)
    desk.silence(C, A, B, for_s=6.0)
    order = desk.last(BroadcastOrdered)
    assert order.order == order.contributors == (A, B)
    assert order.theta == 2.0
    assert (order.began, order.owns) == (first.version, first.owns[:2])
    assert order.lost == (Lost(C, 1.0, 2, first.owns[2]),)
    assert order.version > first.version
    assert not desk.hops()
    for peer in (A, B):
        desk.stage(peer, partial=(Partial(C, 1.0, 2, b"\x03"),))
    for peer in (A, B):
        desk.apply(peer)
    summary = desk.agent._records.pending
    assert summary is not None
    assert summary.partial == {"c": 0.6}  # three of five segments
    assert summary.contributors == ("a", "b")


def test_places_are_told_as_they_were_when_the_exchange_began() -> None:
    desk = _desk(min_peers=4)
    desk.start(A, B, C, D)
    first = desk.last(BroadcastOrdered)
    desk.silence(A, B, C, D, for_s=6.0)
    desk.silence(C, B, D, for_s=6.0)
    order = desk.last(BroadcastOrdered)
    assert order.order == (B, D)
    assert [(lost.contributor, lost.place) for lost in order.lost] == [(A, 0), (C, 2)]
    assert (order.began, order.owns) == (first.version, (first.owns[1], first.owns[3]))


def test_where_no_owner_is_left_the_round_begins_anew() -> None:
    desk = _desk()
    for peer in (A, B, C):
        desk.report(peer)
    for member in desk.agent.members.everyone():
        member.device.learn_link(100.0 if member.contributor == C else 0.1)
    for peer in (A, B, C):
        desk.hold(peer)
    assert desk.last(BroadcastOrdered).owns == (0, 0, 5)
    desk.silence(C, A, B, for_s=6.0)
    order = desk.last(BroadcastOrdered)
    assert (order.lost, order.order, sum(order.owns)) == ((), (A, B), 5)


def _succeeds(first: Desk, going: BroadcastOrdered, min_peers: int) -> Desk:
    """Another agent, whose device has followed `going`."""
    desk = Desk(min_peers=min_peers, exchange="shares", segment_values=2, stall_s=STALL_S)
    desk.agent = MobileAgent(
        Contributor("agent", 2),
        make_policy("fifo"),
        desk.agent._settings,
        first.agent.members,
        term=first.agent.term + 7,
        now=first.now,
        going=going,
    )
    desk.reports, desk.now = dict(first.reports), first.now
    return desk


def _takes_over(first: Desk, going: BroadcastOrdered, lost: int = 0, *alive: Contributor) -> Desk:
    """And of a mesh in which these are alive."""
    desk = _succeeds(first, going, len(alive))
    mark = Exchanging(going.term, going.version, lost)
    for _ in range(20):
        for peer in alive:
            term = desk.agent.term
            desk.report(peer, after_s=0.2, term=term, agent="agent", open_as=term, exchange=mark)
    return desk


def test_a_new_agent_goes_on_with_the_exchange_that_all_have_followed() -> None:
    first = _started()
    going = first.last(BroadcastOrdered)
    desk = _takes_over(first, going, 0, A, B)
    order = desk.last(BroadcastOrdered)
    assert order.term > going.term
    assert (order.began_term, order.began) == (going.term, going.version)
    assert order.lost == (Lost(C, 1.0, 2, going.owns[2]),)
    assert (order.order, order.contributors, order.theta) == ((A, B), (A, B), 2.0)
    assert order.owns == going.owns[:2]
    assert not desk.hops()


def test_a_new_agent_goes_on_where_nobody_was_lost() -> None:
    first = _started()
    going = first.last(BroadcastOrdered)
    order = _takes_over(first, going, 0, A, B, C).last(BroadcastOrdered)
    assert (order.began_term, order.began, order.lost) == (going.term, going.version, ())
    assert (order.order, order.owns) == (going.order, going.owns)


def test_where_one_has_followed_another_order_a_new_agent_plans_anew() -> None:
    first = _started()
    order = _takes_over(first, first.last(BroadcastOrdered), 1, A, B).last(BroadcastOrdered)
    assert (order.lost, sum(order.owns)) == ((), 5)
    assert order.began_term in (0, order.term)


def test_an_exchange_of_an_attempt_that_was_left_is_not_gone_on_with_in_the_next_one() -> None:
    """The others are in it still, and hear only afterwards that the round begins anew."""
    first = _desk(min_peers=4)
    first.start(A, B, C, D)
    attempt = first.last(RoundOpened).attempt
    first.silence(D, A, B, C, for_s=6.0)
    going = first.last(BroadcastOrdered)
    assert going.order == (A, B, C)
    # D was elsewhere meanwhile, and knows nothing of its work in that attempt.
    left = {"open_round": 0, "open_term": 0, "open_as": 0, "holding": None, "entered": (attempt,)}
    first.reports[D] = msgspec.structs.replace(first.reports[D], **left)
    desk = _succeeds(first, going, min_peers=4)
    for _ in range(12):
        for peer in (D, A, B, C):
            mark = None if peer == D else Exchanging(going.began_term, going.began, len(going.lost))
            desk.report(peer, after_s=0.2, term=desk.agent.term, agent="agent", exchange=mark)
    assert desk.last(RoundOpened).attempt != attempt
    assert BroadcastOrdered not in desk.newest
    assert desk.agent.waiting_for == "a, b, c, d to train"


def test_a_result_that_somebody_has_goes_down_the_tree_once_an_owner_is_lost() -> None:
    """Who has staged it has no vote without it, so that it is not taken away."""
    desk = _started()
    desk.stage(A)
    desk.silence(C, A, B, for_s=6.0)
    order = desk.last(BroadcastOrdered)
    assert not order.owns
    assert order.order == (A, B)
    assert order.contributors == (A, B, C)  # c's work is in it, and counts
    assert order.digest == b"delta"


def test_a_result_that_all_have_who_are_left_stands_with_the_work_of_a_lost_owner() -> None:
    desk = _started()
    desk.report(D, lineage=desk.last(RoundOpened).lineage, base=desk.last(RoundOpened).base, term=desk.agent.term)
    desk.stage(A)
    desk.stage(B)
    desk.silence(C, A, B, D, for_s=6.0)
    order = desk.last(BroadcastOrdered)
    assert not order.owns
    assert set(order.order) == {A, B, D}
    assert order.contributors == (A, B, C)  # c's work is in it, and counts
    assert order.digest == b"delta"


def test_where_nothing_moves_the_round_goes_on_by_hops() -> None:
    desk = _started()
    desk.pass_time(STALL_S / 2, A, B, C)
    desk.report(B, transfer=Transfer("a", 8, 40))
    desk.pass_time(STALL_S - 1.0, A, B, C)
    assert not desk.hops()
    desk.pass_time(3.0, A, B, C)
    assert desk.hops()
    assert desk.agent.phase is Phase.AGGREGATING


def test_devices_that_do_not_reach_each_other_own_no_segment() -> None:
    desk = _desk()
    for peer in (A, B, C):
        desk.report(peer)
    desk.agent.members.reach.fail(A, B, desk.now)
    for peer in (A, B, C):
        desk.hold(peer)
    order = desk.last(BroadcastOrdered)
    assert dict(zip(order.order, order.owns, strict=True)).items() >= {(A, 0), (B, 0)}
    assert not desk.hops()


@pytest.mark.parametrize(("slow_mb_s", "is_anew"), [(1e-6, True), (0.0, False)])
def test_segments_that_were_planned_without_links_are_planned_anew_once_if_that_takes_less_time(
    slow_mb_s: float, is_anew: bool
) -> None:
    """Ten values, 40 bytes, at 10 bytes a second, and one device at a tenth of that or as fast as the others."""
    desk = _desk(min_peers=4)
    desk.start(A, B, C, D)
    first = desk.last(BroadcastOrdered)
    assert first.owns == (2, 1, 1, 1)
    for peer, mb_s in ((A, slow_mb_s), (B, 1e-5), (C, 1e-5), (D, 1e-5)):
        desk.report(peer, link_mb_s=mb_s, transfer=Transfer("a", 8, 40))
    order = desk.last(BroadcastOrdered)
    assert (order.version > first.version) is is_anew
    assert (order.contributors, order.lost) == (first.contributors, ())
    if is_anew:
        assert (order.owns[0], order.began) == (0, order.version)
        for peer, mb_s in ((A, 1e-5), (B, 1e-6), (C, 1e-5)):
            desk.report(peer, link_mb_s=mb_s, transfer=Transfer("a", 16, 40))
        assert desk.last(BroadcastOrdered) == order


def test_if_no_device_reaches_all_others_they_aggregate_by_hops() -> None:
    desk = _desk()
    for peer in (A, B, C):
        desk.report(peer)
    for pair in ((A, B), (B, C)):
        desk.agent.members.reach.fail(*pair, desk.now)
    for peer in (A, B, C):
        desk.hold(peer)
    assert desk.hops()
    assert BroadcastOrdered not in desk.newest


def test_who_comes_while_segments_travel_gets_the_result_afterwards() -> None:
    desk = _started()
    desk.report(A, activity=Activity.HOLDING)
    opened = desk.last(RoundOpened)
    desk.report(D, lineage=opened.lineage, base=opened.base, term=desk.agent.term)
    assert D not in desk.last(BroadcastOrdered).order
    for peer in (A, B, C):
        desk.stage(peer)
    desk.pass_time(1.0, A, B, C, D)
    order = desk.last(BroadcastOrdered)
    assert not order.owns
    assert D in order.order
    assert HopOrdered not in desk.newest


@pytest.mark.parametrize(("judges", "size", "segments"), [(False, 10, True), (True, 10, False), (True, 400_000, True)])
def test_auto_takes_segments_but_hops_where_a_small_model_is_judged(judges: bool, size: int, segments: bool) -> None:
    desk = Desk(min_peers=3, exchange="auto", segment_values=size // 5, judges=judges)
    for peer in (A, B, C):
        desk.report(peer, size=size)
    for peer in (A, B, C):
        desk.hold(peer)
    assert bool(desk.hops()) is not segments
    assert (BroadcastOrdered in desk.newest) is segments


@pytest.mark.parametrize(("size", "segments"), [(10, False), (400_000, True)])
def test_auto_takes_hops_where_many_devices_have_a_small_model(
    size: int, segments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "_MANY", 2)
    desk = Desk(min_peers=3, exchange="auto", segment_values=size // 5)
    for peer in (A, B, C):
        desk.report(peer, size=size)
    for peer in (A, B, C):
        desk.hold(peer)
    assert (BroadcastOrdered in desk.newest) is segments


def test_what_was_staged_under_an_older_order_is_handed_on_and_not_made_again() -> None:
    """It was proposed in segments, and no majority had promised yet: then somebody tells that it has a result."""
    desk = _desk()
    for peer in (A, B, C):
        desk.report(peer)
    for peer in (A, B, C):
        desk.hold(peer, term=desk.agent.term - 1)
    assert BroadcastOrdered not in desk.newest
    staged = Staged(b"older", 3.0, (A, B, C), desk.agent.term - 1, 1)
    desk.report(A, staged=staged, term=desk.agent.term)
    desk.promise(B, C)
    order = desk.last(BroadcastOrdered)
    assert (order.digest, order.owns) == (b"older", ())


def test_of_different_results_the_one_that_most_have_is_named_whatever_their_digests() -> None:
    desk = _started()
    desk.stage(A, digest=b"a lie")
    desk.stage(B, digest=b"the mean")
    assert desk.last(BroadcastOrdered).owns  # one against one: a third is still to come
    desk.stage(C, digest=b"the mean")
    order = desk.last(BroadcastOrdered)
    assert not order.owns
    assert order.digest == b"the mean"
    assert order.order[0] != A


def test_an_order_in_segments_tells_what_each_contributor_weighs() -> None:
    order = _started().last(BroadcastOrdered)
    assert order.thetas == (1.0, 1.0, 1.0)
