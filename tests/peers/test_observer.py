"""A node that only looks: asks the agent again and again, and answers nobody."""

from __future__ import annotations

from mdl.delta import Contributor
from mdl.machine import Finish, PeerFound, Received, Send, StopRequested, Tick
from mdl.messages import MeshStatus, ModelWanted, PeerInfo, Role, RoundSummary, StatusWanted
from peers.observer import Observer

AGENT = PeerFound(PeerInfo("agent", 1, Role.AGENT, "here", 1))
TRAINER = PeerFound(PeerInfo("ann", 1, Role.TRAINER, "there", 1))


def _observer() -> Observer:
    return Observer(Contributor("eye", 1), interval_s=0.5)


def _line(number: int) -> RoundSummary:
    return RoundSummary(number, 1.0, ("a",), (), {}, 0, None)


def test_it_asks_an_agent_as_soon_as_one_is_found_and_then_on_its_timer() -> None:
    observer = _observer()
    assert observer.handle(TRAINER, 0.0) == []
    assert observer.deadline() is None
    assert observer.handle(AGENT, 1.0) == [Send("agent", StatusWanted(0))]
    assert observer.deadline() == 1.5
    assert observer.handle(Tick(), 1.4) == []
    assert observer.handle(Tick(), 1.5) == [Send("agent", StatusWanted(0))]
    assert set(observer.peers) == {"agent", "ann"}


def test_it_asks_only_for_rounds_it_has_not_seen() -> None:
    observer = _observer()
    observer.handle(AGENT, 0.0)
    status = MeshStatus(1, 4, 9, "gathering", "greedy", finished=(_line(2), _line(3)))
    observer.handle(Received(Contributor("agent", 1), status), 0.1)
    assert observer.status == status
    assert observer.handle(Tick(), 0.5) == [Send("agent", StatusWanted(3))]
    observer.handle(Received(Contributor("agent", 1), MeshStatus(1, 4, 9, "gathering", "greedy")), 0.6)
    assert observer.handle(Tick(), 1.0) == [Send("agent", StatusWanted(3))]


def test_it_holds_nothing_that_anybody_could_ask_for() -> None:
    assert _observer().handle(Received(Contributor("ann", 1), ModelWanted(0)), 0.0) == []


def test_it_stops_when_the_user_says_so() -> None:
    assert _observer().handle(StopRequested(), 0.0) == [Finish()]
