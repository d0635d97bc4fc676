"""An inspected round: deltas are looked at before anything is merged, and who stands out goes no further."""

from __future__ import annotations

from typing import Any

import pytest

from mdl.defence.limits import LONGER, OwnDeltaSeen
from mdl.peers.roles.agent.conductor import Phase
from mdl.peers.roles.agent.doubt import EVERY, JudgedDevices
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import HopOrdered, HopReleased, MemberQuarantined, RoundOpened
from mdl.protocol.vocabulary import HopDecision, HopOutcome, TrainingReport
from tests.peers.roles.desk import A, B, C, D, Desk

E, F = Contributor("e", 1), Contributor("f", 1)
ALL, LENGTHS = (A, B, C, D, E, F), (1.0, 1.1, 0.9, 10.0, 1.2, 0.8)

HARMS, HELPS = 0.2, -0.2


def _started(**settings: Any) -> Desk:
    desk = Desk(rounds=3, min_peers=6, judges=True, **settings)
    for peer in ALL:
        desk.report(peer)
    for peer, length in zip(ALL, LENGTHS, strict=True):
        desk.hold(peer, training=TrainingReport(0.5, 100, 1.0, length=length))
    return desk


def _look(desk: Desk, hop: HopOrdered, rise: float | None) -> None:
    """Its receiver tells what it has seen, and the sender holds again."""
    receiver = desk.receiver_of(hop)
    decision = HopDecision(hop.hop_id, hop.sender, HopOutcome.LOOKED, 0.1, seen=OwnDeltaSeen(rise))
    desk.report(receiver, hops=(*desk.reports[receiver].hops, decision))


def _pending(desk: Desk) -> list[HopOrdered]:
    assert desk.agent.ledger is not None
    open_ids = {hop.hop_id for hop in desk.agent.ledger.undecided()}
    return [hop for hop in {hop.hop_id: hop for hop in desk.hops()}.values() if hop.hop_id in open_ids]


def _inspect(desk: Desk, *liars: Contributor, blind: bool = False) -> list[tuple[Contributor, Contributor]]:
    """All looks, one after the other; liars harm, and say that the others do."""
    looked = []
    while looks := [hop for hop in _pending(desk) if hop.is_look]:
        judge = desk.receiver_of(looks[0])
        harms = (looks[0].sender in liars) != (judge in liars)
        looked.append((looks[0].sender, judge))
        _look(desk, looks[0], None if blind else HARMS if harms else HELPS)
    return looked


def test_each_delta_is_looked_at_by_each_of_few_others_and_then_merging_begins() -> None:
    desk = _started()
    assert len(_pending(desk)) == 3  # one partner at a time
    assert desk.agent.waiting_for == "devices to look at each other's work"
    looked = _inspect(desk)
    assert sorted(looked) == sorted((one, other) for one in ALL for other in ALL if one != other)
    assert desk.agent.ledger is not None
    assert not desk.agent.ledger.lost
    assert {hop.is_look for hop in _pending(desk)} == {False}


def test_who_stands_out_is_out_of_this_round_and_of_those_to_come_until_the_next_inspection() -> None:
    desk = _started()
    _inspect(desk, D)
    assert desk.agent.ledger is not None
    assert list(desk.agent.ledger.lost) == [D]
    assert "it raises the loss of others' windows by 20% of guessing" in desk.agent.ledger.lost[D]
    _finish(desk)
    assert desk.last(RoundOpened).members == (A, B, C, E, F)
    assert desk.told(MemberQuarantined) == ["d"]
    judged = desk.agent._judged
    assert (judged.inspected, list(judged.odd)) == (1, ["d"])
    assert judged.left_out(EVERY) == judged.odd
    assert judged.left_out(1 + EVERY) == {}  # looked at again


def _finish(desk: Desk) -> None:
    while desk.agent.phase is Phase.AGGREGATING:
        hop = _pending(desk)[0]
        ledger = desk.agent.ledger
        assert ledger is not None
        receiver = desk.receiver_of(hop)
        sent, kept = ledger.holding(hop.sender), ledger.holding(receiver)
        assert sent is not None
        assert kept is not None
        desk.merge(hop, receiver, *sent.contributors, *kept.contributors)
    for peer in ALL:
        desk.stage(peer)
    for peer in ALL:
        desk.apply(peer)


def test_who_has_no_windows_is_asked_once_and_nobody_stands_out() -> None:
    desk = _started()
    looked = _inspect(desk, D, blind=True)
    assert sorted(judge for _, judge in looked) == list(ALL)
    assert desk.agent.ledger is not None
    assert not desk.agent.ledger.lost


def test_an_order_names_the_greatest_length_by_what_devices_have_told() -> None:
    desk = _started()
    _inspect(desk)
    (limit,) = {hop.limits.length for hop in _pending(desk)}
    assert limit == pytest.approx(1.1 * LONGER)
    assert all(order.is_look for order in desk.hops() if order.limits.length == 0.0)


def test_where_nobody_judges_nothing_is_looked_at_and_no_limit_told() -> None:
    desk = Desk(min_peers=6)
    desk.start(*ALL)
    assert {(hop.is_look, hop.limits.length) for hop in desk.hops()} == {(False, 0.0)}


def test_a_sender_that_was_looked_at_holds_again() -> None:
    desk = _started()
    look = _pending(desk)[0]
    holding = desk.reports[look.sender].holding
    given = type(holding)(1.0, holding.contributors, look.hop_id, desk.receiver_of(look))
    desk.report(look.sender, holding=given)
    _look(desk, look, HELPS)
    assert desk.last(HopReleased).hop_id == look.hop_id


def test_an_agent_inspects_its_first_round_and_every_so_many_after_that() -> None:
    assert JudgedDevices(True).is_due(7)
    judged = JudgedDevices(True, inspected=7)
    assert next(round_id for round_id in range(8, 60) if judged.is_due(round_id)) == 7 + EVERY
    assert not JudgedDevices(False).is_due(1)
