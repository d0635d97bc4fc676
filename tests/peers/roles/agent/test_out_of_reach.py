"""Who cannot be reached holds the others up for as long as was promised, and who is back is waited for anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mdl.peers.roles.trainer.model_state import ModelState
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import room_for
from mdl.protocol.machine import Tick
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp, PeerReport, RoundOpened
from mdl.protocol.vocabulary import Activity, Ballot, Fork, History, Holding, LineagePoint, Staged, Transfer
from tests.peers.roles.agent.test_agent_faults import PARTITION_S, SETTLED, START, _forked, _take_over
from tests.peers.roles.desk import FRESH, A, B, C, D, Desk
from tests.peers.roles.test_peer import Room, _peer

STAGED = Staged(b"delta", 2.0, (A, B), 30, 1)
HAS_RESULT = replace(SETTLED, open_round=5, staged=STAGED, activity=Activity.STAGED)


def _holding(peer: Contributor, attempt: int) -> PeerReport:
    """In round 5 by this attempt, and holds its own; 0: it is in none."""
    if not attempt:
        return SETTLED
    part: dict[str, Any] = {"open_round": 5, "open_term": attempt, "open_as": attempt, "activity": Activity.HOLDING}
    return replace(SETTLED, **part, room=room_for(4.0), holding=Holding(1.0, (peer,)))


def _stands_by_it(desk: Desk) -> dict[str, Any]:
    """D has staged its result once more, as the newest order asks for it."""
    order = desk.newest.get(BroadcastOrdered)
    if not isinstance(order, BroadcastOrdered) or D not in order.order or order.digest not in (b"", b"delta"):
        return {}
    return {"staged": replace(STAGED, term=order.term, version=order.version)}


@pytest.mark.parametrize("attempt", [40, 0], ids=["in the round", "started anew"])
def test_a_majority_goes_on_without_a_result_that_is_out_of_its_reach(attempt: int) -> None:
    """The only one who has it hears the agent, and nobody else hears that one."""
    desk = _take_over({peer: _holding(peer, attempt) for peer in (A, B, C)} | {D: HAS_RESULT}, stall_s=3.0)
    for _ in range(800):
        for peer in (A, B, C, D):
            changes, order = {}, desk.newest.get(BroadcastOrdered)
            if (
                peer is D
                and isinstance(order, BroadcastOrdered)
                and D in order.order
                and order.digest in (b"", b"delta")
            ):
                changes = {"staged": replace(STAGED, term=order.term, version=order.version)}
            desk.report(peer, after_s=0.1, term=desk.agent.term, **changes)
        if desk.hops() or RoundOpened in desk.newest:
            break
    assert desk.hops() or RoundOpened in desk.newest


def test_a_round_of_which_there_is_only_the_result_is_opened_as_an_attempt_of_this_agent() -> None:
    """Its members would take attempt 0 for none, and not train after a pause."""
    desk = _take_over(dict.fromkeys((A, B, C), SETTLED) | {D: HAS_RESULT})
    desk.silence(D, A, B, C)
    assert desk.last(RoundOpened).attempt == desk.agent.attempt()[1] != 0


RESULT = Staged(b"result", 1.0, (Contributor("ann", 1),), 9, 1)


def test_a_vote_on_a_fork_is_given_back_though_something_was_staged_before_it_began() -> None:
    trunk = (Fork(0, 3, "agent.1.1"),)
    standing = ModelState(Contributor("bob", 1), np.zeros(3, np.float32), 4, History(trunk, ("ann", "bob")), Ballot())
    standing.note_staged(RESULT)
    standing.follow((*trunk, Fork(4, 2, "ann.1.9")), ("ann", "bob"))
    standing.note_staged(RESULT)
    standing.note_replaced()
    assert standing.votes(has_staged=False)


@pytest.mark.parametrize("was_late", [False, True])
def test_who_was_late_before_is_left_on_a_senior_lineage_as_long_as_others(was_late: bool) -> None:
    desk = _take_over(_forked(B, C, base=("b", "c")) | ({A: FRESH} if was_late else {}))
    if was_late:
        assert set(desk.told(CatchUp)) == {"a"}
        desk.silence(A, B, C)  # before it has the model
    desk.pass_time(PARTITION_S + 5.0, B, C)
    for peer in (B, C):
        desk.hold(peer)
    desk.said.clear()
    sequence = desk.reports[A].sequence if was_late else 0
    senior = replace(SETTLED, round_id=9, digest=b"w9", base=("a", "x", "y"))
    desk.reports[A] = replace(senior, sequence=sequence, term=desk.agent.term)
    desk.report(A)
    desk.pass_time(2.0, A, B, C)
    assert not desk.told(CatchUp)


def _with_a_latecomer() -> Desk:
    desk = Desk(rounds=0)
    desk.reports |= {peer: SETTLED for peer in (A, B, D)}
    desk.reports[C] = replace(SETTLED, round_id=3, digest=b"w3")
    for agent in ("other", "agent"):
        for peer in (A, B, D, C):
            desk.report(peer, agent=agent)
    return desk


def _sources(desk: Desk) -> set[Contributor]:
    return {message.source for _, message in desk.said if isinstance(message, CatchUp)}


def test_a_source_whose_values_stop_half_way_is_replaced() -> None:
    desk = _with_a_latecomer()
    desk.report(C, transfer=Transfer(desk.last(CatchUp).source.peer_id, 1000, 100_000))
    desk.pass_time(12.0, A, B, C, D)
    assert len(_sources(desk)) > 1


def test_a_source_whose_values_come_stays_though_it_was_not_the_first() -> None:
    desk = _with_a_latecomer()
    first = desk.last(CatchUp).source
    desk.pass_time(6.0, A, B, C, D)
    second = desk.last(CatchUp).source
    assert second != first
    for got in range(1, 20):
        desk.report(C, after_s=0.3, transfer=Transfer(second.peer_id, 1000 * got, 100_000))
        desk.pass_time(0.5, A, B, D)
    assert desk.last(CatchUp).source == second


@pytest.mark.parametrize("starts", [False, True], ids=["goes on", "starts"])
@pytest.mark.parametrize("before", [False, True], ids=["the first", "back"])
def test_patience_begins_when_somebody_is_here(before: bool, starts: bool) -> None:
    """A dedicated agent stays on while all devices are off for a minute."""
    desk = Desk(rounds=0)
    if before:
        desk.reports[A] = SETTLED
        desk.report(A)
        desk.pass_time(1.0, A)
    for _ in range(120):
        desk.hand(Tick(), 0.5)
    again = Contributor("a", 2)
    desk.reports[again] = replace(FRESH, forgotten=(LineagePoint(START[-1].name, 4),)) if starts else SETTLED
    desk.reports[D] = FRESH
    here = (again, D) if starts else (again,)
    for peer in here:
        desk.report(peer)
    desk.pass_time(1.0, *here)
    assert RoundOpened not in desk.newest


def test_those_who_have_waited_for_the_mesh_of_one_visitor_wait_for_that_of_the_next() -> None:
    desk = Desk(rounds=0)
    been = replace(FRESH, forgotten=(LineagePoint(START[-1].name, 4),))
    desk.reports |= {B: been, D: been}
    for peer in (A, B):
        desk.report(peer)
    desk.pass_time(2.0, A, B)
    assert RoundOpened not in desk.newest
    desk.pass_time(60.0, A)  # B is gone
    assert RoundOpened not in desk.newest
    desk.report(D)
    desk.pass_time(PARTITION_S - 1.0, A, D)
    assert RoundOpened not in desk.newest
    desk.pass_time(2.0, A, D)
    assert desk.last(RoundOpened).members == (A, D)


@pytest.mark.parametrize("is_open", [False, True], ids=["between rounds", "in a round"])
def test_who_waits_for_a_majority_waits_for_its_votes_too(is_open: bool) -> None:
    """A is alone for a minute; B comes back without its vote, and C, who has it, two seconds later."""
    desk = Desk(rounds=0, waits_for_majority=True)
    desk.reports |= dict.fromkeys((A, B, C), SETTLED)
    for peer in (A, B, C) if is_open else (A,):
        desk.report(peer)
    if is_open:
        desk.hold(A)
    desk.pass_time(60.0, A)
    assert ("a majority" if is_open else "b, c") in desk.agent.waiting_for
    desk.report(B, votes=False, forgotten=(LineagePoint(START[-1].name, 5),))
    desk.pass_time(2.0, A, B)
    assert len(desk.agent.lineage) == 1
    desk.report(C)
    desk.pass_time(1.0, A, B, C)
    assert (desk.last(RoundOpened).lineage, desk.agent.lacking_since) == (START, None)


def test_who_waits_for_a_majority_goes_on_without_its_votes_as_long_as_it_would_wait_for_anybody() -> None:
    desk = Desk(rounds=0, waits_for_majority=True)
    desk.reports |= {A: SETTLED, B: replace(SETTLED, votes=False)}
    desk.report(A)
    desk.pass_time(60.0, A)
    desk.report(B)
    desk.pass_time(PARTITION_S - 0.5, A, B)
    assert RoundOpened not in desk.newest
    desk.pass_time(1.0, A, B)
    assert len(desk.last(RoundOpened).lineage) == len(START) + 1


@pytest.mark.parametrize("suspended_s", [0.0, 60.0])
def test_an_agent_that_slept_does_not_begin_a_fork_as_it_wakes(suspended_s: float) -> None:
    room = Room(*(_peer(name) for name in ("ann", "bob", "cat", "dan", "eve")))
    room.run(9.0)
    (leader,) = room.leaders()
    others = [name for name in room.peers if name != leader]
    room.silent.update(others[1:])
    room.run(6.0)
    agent = room.peers[leader].agent
    assert agent is not None
    assert agent.lacking_since is not None
    room.now += suspended_s
    room.run(1.0)
    assert {peer.trainer.model_state.lineage for peer in room.peers.values() if peer.trainer} == {agent.lineage}
