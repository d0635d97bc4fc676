"""A promise is on the disk before anybody hears of it, or nobody hears anything (docs/protocol-disk.md, rule 5)."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import (
    Effect,
    Finish,
    PeerFound,
    Received,
    SaveBallot,
    Send,
    Tick,
    WorkFailed,
)
from mdl.protocol.round_messages import AgentPresent, BroadcastOrdered, GlobalMessage, PeerReport, RoundClosed
from mdl.protocol.vector_work import ApplyDelta, DeltaApplied
from mdl.protocol.vocabulary import Ballot, Fork, History, PeerInfo, Role

ANN, BOB = Contributor("ann", 1), Contributor("bob", 1)
LINEAGE = (Fork(0, 2, "ann.1.9"),)
REFUSED = WorkFailed(SaveBallot.__name__, "the disk is full")


def _reports(effects: list[Effect]) -> list[PeerReport]:
    return [each.message for each in effects if type(each) is Send and type(each.message) is PeerReport]


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_device_whose_ballot_is_refused_while_it_applies_a_round_says_nothing_and_leaves_after_it(
    is_refused: bool,
) -> None:
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    start = TrainerStart(4, digest_of(zeros), history=History(LINEAGE, ("ann", "bob")), ballot=Ballot(8))
    bob = build_machine(simulated_start(BOB, "greedy", 2, "continue", start, 0.0), zeros)
    bob.handle(PeerFound(PeerInfo("ann", 1, Role.TRAINER, "192.0.2.1", 1)), 0.0)
    bob.handle(Received(ANN, AgentPresent(9, 0, LINEAGE, True)), 0.1)
    order = BroadcastOrdered(9, 1, digest_of(zeros), 1, (ANN, BOB), 1.0, (ANN,), lineage=LINEAGE)
    bob.handle(Received(ANN, order), 0.2)
    digest = digest_of(ones)
    staged = bob.handle(Received(ANN, GlobalMessage(1, 1.0, (ANN,), 9, 1), ones, digest), 0.3)
    assert isinstance(staged[0], SaveBallot)
    assert bob.trainer is not None
    assert bob.trainer.part is not None
    closed = RoundClosed(9, 1, bob.trainer.part.broadcast.digest)
    assert any(type(effect) is ApplyDelta for effect in bob.handle(Received(ANN, closed), 0.4))
    assert isinstance(bob.handle(Received(ANN, AgentPresent(99, 0, LINEAGE, True)), 0.41)[0], SaveBallot)
    if is_refused:
        assert bob.handle(REFUSED, 0.41) == []
    told = _reports([effect for now in (1.4, 1.9) for effect in bob.handle(Tick(), now)])
    assert {report.term for report in told} == (set() if is_refused else {99})
    last = bob.handle(DeltaApplied(1, -ones, digest_of(-ones)), 2.0)
    assert any(type(effect) is Finish for effect in last) is is_refused
    assert bool(_reports(last)) is not is_refused
