"""The agent and a member that lies: a second opinion, out of the round, left out of rounds for a while, and why."""

from __future__ import annotations

from typing import Any

import pytest

from mdl.defence.limits import HALF_LIFE, Accusation
from mdl.peers.roles.agent.conductor import Phase
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.round_messages import SUSPECT, BroadcastOrdered, HopOrdered, MemberQuarantined, RoundOpened
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from mdl.protocol.vocabulary import Activity, HopDecision, HopOutcome
from tests.peers.roles.desk import FRESH, A, B, C, D, Desk

REASON = "it is 10 times as long as ours"


def _started(*peers: Contributor, **settings: Any) -> Desk:
    desk = Desk(min_peers=len(peers), **settings)
    desk.start(*peers)
    return desk


def _refuse(desk: Desk, hop: HopOrdered) -> Contributor:
    """Its receiver holds what came for poison."""
    receiver = desk.receiver_of(hop)
    decision = HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED, 1.0, 0, SUSPECT + REASON)
    desk.report(receiver, hops=(*desk.reports[receiver].hops, decision))
    return receiver


def _hops_of(desk: Desk, sender: Contributor) -> list[Contributor]:
    return [desk.receiver_of(hop) for hop in desk.hops() if hop.sender == sender]


def _accused(*suspects: str, round_id: int = 1) -> tuple[Accusation, ...]:
    return tuple(Accusation(peer_id, 1.0, round_id, REASON) for peer_id in suspects)


def _status(desk: Desk) -> MeshStatus:
    told = desk.hand(Received(Contributor("observer", 1), StatusWanted()))
    status = told[0].message  # type: ignore[union-attr]
    assert isinstance(status, MeshStatus)
    return status


def test_one_refusal_asks_for_a_second_opinion_and_the_second_one_ends_it() -> None:
    desk = _started(A, B, C, D)
    first = desk.hops()[0]
    liar = first.sender
    refuser = _refuse(desk, first)
    assert desk.agent.ledger is not None
    assert liar not in desk.agent.ledger.lost
    others = [hop for hop in desk.hops() if hop.sender != liar and refuser in (hop.sender, desk.receiver_of(hop))]
    for hop in [*others, *(hop for hop in desk.hops() if hop not in (first, *others))]:
        if hop.sender != liar:
            desk.merge(hop, desk.receiver_of(hop))
    again = next(hop for hop in desk.hops() if hop.sender == liar and hop is not first)
    assert desk.receiver_of(again) != refuser
    _refuse(desk, again)
    assert desk.agent.ledger.lost[liar].startswith("its partial sum was refused by ")
    assert all(desk.receiver_of(hop) != liar for hop in desk.hops()[1:])  # it merges nothing any more


def test_of_two_devices_one_refusal_is_enough() -> None:
    desk = _started(A, B)
    hop = desk.hops()[0]
    refuser = _refuse(desk, hop)
    assert desk.agent.ledger is not None
    assert desk.agent.ledger.lost == {hop.sender: f"its partial sum was refused by {refuser.peer_id}"}
    assert desk.last(BroadcastOrdered).contributors == (refuser,)


def test_two_devices_that_refuse_each_other_leave_one_in_the_round() -> None:
    desk = _started(A, B, C)
    for _ in range(6):
        undecided = [hop for hop in desk.agent.ledger.undecided()] if desk.agent.ledger else []
        if not undecided:
            break
        _refuse(desk, next(hop for hop in desk.hops() if hop.hop_id == undecided[0].hop_id))
    assert desk.agent.ledger is not None
    assert len(desk.agent.ledger.live()) == 1
    assert desk.agent.phase is Phase.BROADCASTING


def _accusing(*accusers: Contributor, round_id: int = 1, **settings: Any) -> Desk:
    """Four devices about to begin; these have refused what d gave in a round before."""
    desk = Desk(min_peers=4, **settings)
    for peer in (A, B, C, D):
        desk.report(peer, accused=_accused("d", round_id=round_id) if peer in accusers else ())
    return desk


def test_whom_several_accuse_is_left_out_of_rounds_and_told_why() -> None:
    desk = _accusing(A, B)
    assert desk.last(RoundOpened).members == (A, B, C)
    told = desk.last(MemberQuarantined)
    assert desk.told(MemberQuarantined) == ["d"]
    assert told.reason == f"2 devices refused its work; a: {REASON}"
    (quarantined,) = [member for member in _status(desk).members if member.problem]
    assert (quarantined.peer_id, quarantined.problem) == ("d", f"quarantined: {told.reason}")


def test_one_accuser_is_not_enough_but_then_whole_deltas_are_judged() -> None:
    desk = _accusing(A, exchange="shares", segment_values=2)
    assert desk.last(RoundOpened).members == (A, B, C, D)
    for peer in (A, B, C, D):
        desk.hold(peer)
    assert desk.hops()
    assert all(desk.receiver_of(hop) != D for hop in desk.hops())


def test_a_user_may_want_nobody_left_out() -> None:
    assert _accusing(A, B, C, quarantine=False).last(RoundOpened).members == (A, B, C, D)


@pytest.mark.parametrize(("ago", "members"), [(2 * HALF_LIFE - 1, (A, B, C)), (2 * HALF_LIFE + 1, (A, B, C, D))])
def test_suspicion_fades_and_a_device_comes_back(ago: int, members: tuple[Contributor, ...]) -> None:
    desk = Desk(min_peers=4)
    desk.agent.distrust._quarantine.out["d"] = "earlier"
    for peer in (A, B, C, D):
        accused = _accused("d", round_id=1) if peer in (A, B) else ()
        desk.report(peer, accused=accused, round_id=ago, lineage=FRESH.lineage, base=("a", "b", "c"), votes=True)
    if desk.said and any(isinstance(message, RoundOpened) for _, message in desk.said):
        assert desk.last(RoundOpened).members == members
    else:
        raise AssertionError(desk.agent.waiting_for)


def test_the_line_of_the_round_names_who_was_left_out() -> None:
    desk = _accusing(A, B)
    for peer in (A, B, C):
        desk.hold(peer)
    while desk.agent.phase is Phase.AGGREGATING:
        hop = desk.agent.ledger.undecided()[0]  # type: ignore[union-attr]
        order = next(each for each in desk.hops() if each.hop_id == hop.hop_id)
        sent = desk.agent.ledger.holding(hop.sender).contributors  # type: ignore[union-attr]
        kept = desk.agent.ledger.holding(hop.receiver).contributors  # type: ignore[union-attr]
        desk.merge(order, hop.receiver, *sent, *kept)
    for peer in (A, B, C, D):
        desk.stage(peer)
    for peer in (A, B, C, D):
        desk.apply(peer)
    summary = desk.agent._records.pending or desk.recorded[-1]
    assert list(summary.quarantined) == ["d"]
    assert summary.contributors == ("a", "b", "c")
    assert "d" not in summary.lost


def test_a_piece_that_is_refused_has_the_round_go_on_by_hops() -> None:
    desk = _started(A, B, C, exchange="shares", segment_values=2)
    assert desk.agent.phase is Phase.BROADCASTING
    desk.report(A, accused=_accused("c"))
    assert desk.agent.phase is Phase.AGGREGATING
    assert desk.hops()


def test_accusations_of_earlier_rounds_stop_no_exchange() -> None:
    desk = _started(A, B, C, exchange="shares", segment_values=2)
    desk.report(A, accused=_accused("c", round_id=0), activity=Activity.HOLDING)
    assert desk.agent.phase is Phase.BROADCASTING
