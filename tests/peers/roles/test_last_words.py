"""Who may end a process: the agent that it follows, the very process, under the term that it has claimed."""

from __future__ import annotations

import pytest

from mdl.bounds import MAX_TERM
from mdl.errors import RemoteProtocolError
from mdl.peers.cloud.machine import Learner, LearnerSettings
from mdl.peers.roles.outsiders import Observer
from mdl.peers.roles.peer import Peer
from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.cloud_messages import PupilRefused
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish, Received
from mdl.protocol.round_messages import AgentPresent, AgentResigned, MemberRefused, MeshFinished
from mdl.protocol.status_messages import MeshStatus
from mdl.sim.plans.fault_plan import FaultPlan

ANN, BOB = Contributor("ann", 5), Contributor("bob", 1)


@pytest.fixture
def follower() -> Peer:
    """A device that follows ann under term 7."""
    mesh, _ = build_mesh(FaultPlan(seed=1, peers=2, rounds=1, has_agent=False))
    peer = mesh.nodes["p1"].machine
    assert isinstance(peer, Peer)
    peer.handle(Received(ANN, AgentPresent(7, 0)), 0.1)
    assert peer.authority() == (7, "ann")
    return peer


def _ends(peer: Peer, sender: Contributor, term: int) -> list[int]:
    ends = []
    for message in (MeshFinished(term, 0), MemberRefused(term, 0, "another model")):
        effects = peer.handle(Received(sender, message), 0.2)
        ends += [effect.exit_code for effect in effects if isinstance(effect, Finish)]
    return ends


@pytest.mark.parametrize(
    ("sender", "term"),
    [
        (BOB, 7),  # a member that nobody follows
        (BOB, 9),
        (Contributor("ann", 4), 7),  # an earlier start of the agent's process
        (Contributor("ann", 6), 7),  # somebody in its name, or its next start, which does not lead yet
        (ANN, 6),  # of an older term
        (ANN, 8),  # of a term that it has not claimed
    ],
)
def test_nobody_else_ends_a_process(follower: Peer, sender: Contributor, term: int) -> None:
    assert _ends(follower, sender, term) == []


def test_the_agent_in_office_does(follower: Peer) -> None:
    assert _ends(follower, ANN, 7) == [0, 2]


def test_nobody_ends_a_process_that_follows_nobody() -> None:
    mesh, _ = build_mesh(FaultPlan(seed=1, peers=2, rounds=1, has_agent=False))
    peer = mesh.nodes["p1"].machine
    assert isinstance(peer, Peer)
    for sender in (ANN, Contributor("p0", 1)):
        assert _ends(peer, sender, 0) == []


@pytest.mark.parametrize("sender", [BOB, Contributor("ann", 4), Contributor("ann", 6)])
def test_nobody_else_resigns_in_the_agents_name(follower: Peer, sender: Contributor) -> None:
    follower.handle(Received(sender, AgentResigned(7, 0)), 0.2)
    assert follower.authority() == (7, "ann")


def test_the_agent_that_was_started_anew_is_followed_and_its_earlier_start_is_not(follower: Peer) -> None:
    again = Contributor("ann", 6)
    follower.handle(Received(again, AgentPresent(8, 0)), 0.2)
    follower.handle(Received(ANN, AgentPresent(8, 0)), 0.3)
    assert _ends(follower, ANN, 8) == []
    assert _ends(follower, again, 8) == [0, 2]


def test_only_a_cloud_refuses_a_learner() -> None:
    learner = Learner("me", "schema", "model", LearnerSettings(studies=1), 0.0)
    with pytest.raises(RemoteProtocolError, match="only a cloud"):
        learner.handle(Received(BOB, PupilRefused("me", "go away")), 1.0)
    (finish,) = learner.handle(Received(Contributor("cloud", 1), PupilRefused("me", "another task")), 1.0)
    assert finish == Finish("the cloud refused: another task", 2)


def test_who_claims_the_last_term_and_falls_silent_blinds_no_observer() -> None:
    observer = Observer(Contributor("eye", 1))
    observer.handle(Received(BOB, MeshStatus(MAX_TERM, 1, 0, "gathering", "fifo", agent="bob")), 1.0)
    honest = MeshStatus(7, 4, 0, "gathering", "fifo", agent="ann")
    observer.handle(Received(ANN, honest), 2.0)
    assert observer.agent == "bob"
    observer.handle(Received(ANN, honest), 3.5)
    assert (observer.agent, observer.status) == ("ann", honest)
