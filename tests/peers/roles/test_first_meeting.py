"""A device that waits alone ends its waiting for a device that could train with it, and for nothing else."""

from __future__ import annotations

import pytest

from mdl.peers.roles.outsiders import PHASE, FirstMeeting
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event, Finish, NameTaken, PeerFound, Received, Send, StopRequested, Tick
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role

ME = Contributor("ann", 7)


def _found(role: Role) -> PeerFound:
    return PeerFound(PeerInfo("bob", 1, role, "10.0.0.2", 4711))


@pytest.mark.parametrize("role", [Role.TRAINER, Role.AGENT])
def test_a_trainer_or_an_agent_ends_it(role: Role) -> None:
    machine = FirstMeeting(ME, "dqn", 4.0)
    assert machine.handle(_found(role), 1.0) == [Finish()]
    assert machine.met is not None
    assert machine.met.peer_id == "bob"


def test_who_only_looks_hears_what_it_waits_for_and_does_not_end_it() -> None:
    machine = FirstMeeting(ME, "dqn", 4.0)
    assert machine.handle(_found(Role.OBSERVER), 1.0) == []
    (answer,) = machine.handle(Received(Contributor("eve", 1), StatusWanted(0)), 1.0)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, MeshStatus)
    assert (answer.receiver, answer.message.phase, answer.message.agent) == ("eve", PHASE, "ann")
    assert machine.met is None


@pytest.mark.parametrize(
    ("event", "code"), [(StopRequested(), 130), (NameTaken(Contributor("ann", 9), "10.0.0.9:1"), 0)]
)
def test_a_user_and_a_namesake_end_it_too(event: Event, code: int) -> None:
    machine = FirstMeeting(ME, "dqn", 4.0)
    assert machine.handle(event, 1.0) == [Finish(exit_code=code)]
    assert machine.met is None


def test_it_ticks_once_when_nobody_was_found_in_time() -> None:
    machine = FirstMeeting(ME, "dqn", 4.0)
    assert machine.deadline() == 4.0
    assert machine.handle(Tick(), 4.0) == []
    assert machine.deadline() is None
