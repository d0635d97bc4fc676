"""A node that only looks: asks the agent again and again, and answers nobody."""

from __future__ import annotations

import pytest

from mdl.peers.roles.outsiders import Observer
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish, PeerFound, Received, Send, StopRequested, Tick
from mdl.protocol.round_messages import ModelWanted
from mdl.protocol.status_messages import MeshStatus, PageServed, RoundSummary, StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role

AGENT = PeerFound(PeerInfo("agent", 1, Role.AGENT, "192.0.2.1", 1))
TRAINER = PeerFound(PeerInfo("ann", 1, Role.TRAINER, "192.0.2.1", 1))


def _observer() -> Observer:
    return Observer(Contributor("eye", 1), interval_s=0.5)


def _line(number: int) -> RoundSummary:
    return RoundSummary(number, 1.0, ("a",), (), {}, 0, None)


def test_any_device_may_be_the_agent_so_all_are_asked_until_one_has_answered() -> None:
    observer = _observer()
    assert observer.deadline() is None
    assert observer.handle(TRAINER, 0.0) == [Send("ann", StatusWanted(0))]
    assert observer.handle(AGENT, 0.1) == [Send("ann", StatusWanted(0)), Send("agent", StatusWanted(0))]
    assert observer.deadline() == 0.6
    assert observer.handle(Tick(), 0.5) == []
    observer.handle(Received(Contributor("ann", 1), MeshStatus(7, 0, 0, "gathering", "greedy")), 0.5)
    assert observer.handle(Tick(), 0.6) == [Send("ann", StatusWanted(0))]
    assert observer.agent == "ann"
    assert set(observer.peers) == {"agent", "ann"}


def test_all_are_asked_again_when_the_agent_is_silent() -> None:
    observer = _observer()
    observer.handle(TRAINER, 0.0)
    observer.handle(AGENT, 0.0)
    observer.handle(Received(Contributor("ann", 1), MeshStatus(7, 0, 0, "gathering", "greedy")), 1.0)
    assert observer.handle(Tick(), 2.9) == [Send("ann", StatusWanted(0))]
    assert [effect.receiver for effect in observer.handle(Tick(), 3.4)] == ["ann", "agent"]  # type: ignore[union-attr]


def test_the_status_of_an_agent_that_was_succeeded_is_not_shown() -> None:
    observer = _observer()
    newer = MeshStatus(9, 3, 9, "gathering", "greedy")
    observer.handle(Received(Contributor("ann", 1), newer), 1.0)
    observer.handle(Received(Contributor("agent", 1), MeshStatus(8, 2, 9, "gathering", "greedy")), 1.1)
    assert (observer.status, observer.agent) == (newer, "ann")


def test_another_observer_is_not_asked() -> None:
    observer = _observer()
    assert observer.handle(PeerFound(PeerInfo("eye-2", 1, Role.OBSERVER, "192.0.2.1", 1)), 0.0) == []
    assert (observer.peers, observer.deadline()) == ({}, None)


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


EYE = PeerFound(PeerInfo("eye-2", 1, Role.OBSERVER, "10.0.0.2", 1))


def test_observers_that_serve_a_page_tell_each_other_where_again_and_again() -> None:
    observer = Observer(Contributor("eye", 1), page_port=8420)
    assert observer.handle(EYE, 0.0) == [Send("eye-2", PageServed(8420))]
    assert observer.handle(Tick(), 0.0) == [Send("eye-2", PageServed(8420))]
    assert observer.deadline() == 5.0
    assert observer.handle(Tick(), 4.9) == []
    assert observer.handle(Tick(), 5.0) == [Send("eye-2", PageServed(8420))]


def test_a_page_is_known_until_nothing_more_is_heard_of_it() -> None:
    observer = _observer()
    told = Received(Contributor("eye-2", 1), PageServed(9000))
    observer.handle(told, 0.0)
    assert observer.pages(0.0) == (), "nobody has introduced it: its address is not known"
    observer.handle(EYE, 0.0)
    observer.handle(told, 1.0)
    assert observer.pages(16.0) == ("http://10.0.0.2:9000",)
    assert observer.pages(17.0) == ()


def test_a_flood_of_observers_is_forgotten_again() -> None:
    observer = Observer(Contributor("eye", 1), page_port=8420)
    for number in range(200):
        observer.handle(PeerFound(PeerInfo(f"eye-{number}", 1, Role.OBSERVER, "10.0.0.3", 1)), 0.0)
        observer.handle(Received(Contributor(f"eye-{number}", 1), PageServed(1 + number)), 0.0)
    assert len(observer.pages(1.0)) == len(observer.handle(Tick(), 6.0)) == 64


def test_a_host_that_is_no_address_cannot_be_introduced_and_one_that_is_not_known_serves_no_page() -> None:
    """It would stand in a header of the page: `x; script-src *` allows what nobody may."""
    for host in ("x; script-src *", "evil.example", '"><script>', "10.0.0.1 *"):
        with pytest.raises(ValueError, match="IPv4 or IPv6"):
            PeerInfo("eye", 1, Role.OBSERVER, host, 1)
    observer = Observer(Contributor("eye", 1), page_port=8420)
    for number, host in enumerate(("", "fe80::1")):
        observer.handle(PeerFound(PeerInfo(f"eye-{number}", 1, Role.OBSERVER, host, 1)), 0.0)
        observer.handle(Received(Contributor(f"eye-{number}", 1), PageServed(80)), 0.0)
    assert observer.pages(0.0) == ()
