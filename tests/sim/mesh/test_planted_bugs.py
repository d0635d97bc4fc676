"""A bug that a peer's message meets in a handler: the process begins again from its disk, and all rules hold."""

from __future__ import annotations

from typing import Any

import pytest

from mdl.config import Exchange
from mdl.peers.roles.peer import Peer
from mdl.peers.trials import run_plan as trials
from mdl.protocol.machine import Effect, Received
from mdl.protocol.round_messages import (
    AgentPresent,
    BroadcastOrdered,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    GlobalWanted,
    HopOrdered,
    PeerReport,
    PieceMessage,
    RoundClosed,
    RoundOpened,
    SegmentMessage,
)
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.injector import Injector
from mdl.sim.plans.fault_plan import FaultPlan

# Of each message the handler is run to its end first: its state is changed, and what it would have said is lost.
HOPS = (
    PeerReport, AgentPresent, RoundOpened, HopOrdered, DeltaWanted, DeltaMessage, BroadcastOrdered, GlobalWanted,
    GlobalMessage, RoundClosed,
)  # fmt: skip
CASES: list[tuple[type, Exchange]] = [(kind, "chain") for kind in HOPS]
CASES += [(kind, "shares") for kind in (PieceMessage, SegmentMessage, BroadcastOrdered)]
MOST, UNHEARD_S = 4, 4.0


class Planted(Exception):
    """A bug that nobody knows."""


def plant(monkeypatch: pytest.MonkeyPatch, kind: type, most: int = MOST) -> list[str]:
    """Plant a bug in how every process hears such messages of whoever says one first after 4 s; return who met it."""
    hear, met, whose = Peer._hear, list[str](), dict[int, str]()

    def broken(self: Peer, event: Received, now: float) -> list[Effect]:
        effects = hear(self, event, now)
        sender = event.sender.peer_id
        if type(event.message) is kind and sender != self.me.peer_id and now > 4.0 and len(met) < most:
            if not met:
                whose[0] = sender
            if sender == whose[0]:
                met.append(self.me.peer_id)
                raise Planted(kind.__name__)
        return effects

    monkeypatch.setattr(Peer, "_hear", broken)
    return met


def heard_again(monkeypatch: pytest.MonkeyPatch) -> list[SimMesh]:
    """Have the meshes of plans go on where a message meets a bug."""
    build, made = trials.build_mesh, list[SimMesh]()

    def build_mesh(plan: FaultPlan, record: bool = False) -> tuple[SimMesh, Injector]:
        mesh, injector = build(plan, record)
        mesh.unheard_s = UNHEARD_S
        made.append(mesh)
        return mesh, injector

    monkeypatch.setattr(trials, "build_mesh", build_mesh)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "exchange"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_nothing_is_lost_or_counted_twice_where_a_handler_breaks_off_half_way(
    monkeypatch: pytest.MonkeyPatch, kind: type, exchange: Exchange
) -> None:
    met, meshes = plant(monkeypatch, kind), heard_again(monkeypatch)
    total = 0
    for seed in range(1, 5):
        met.clear()
        verdict, _ = trials.run_plan(FaultPlan(seed, 4, 8, exchange=exchange))
        assert not verdict.problem, (seed, verdict)
        assert verdict.lost == verdict.double == 0
        total += len(met)
        assert meshes[-1].bugs == len(met)
    assert total, "the bug was never met"


def test_without_a_barrier_such_a_bug_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, PeerReport)
    mesh, _ = trials.build_mesh(FaultPlan(1, 4, 8))
    with pytest.raises(Planted):
        mesh.run(60.0)


def test_a_bug_in_the_processs_own_doing_is_nobodys_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the process, as ever: nothing says that beginning again would mend it."""

    def broken(self: Peer, event: Any, now: float) -> list[Effect]:
        raise Planted("tick")

    monkeypatch.setattr(Peer, "_tick", broken)
    heard_again(monkeypatch)
    mesh, _ = trials.build_mesh(FaultPlan(1, 4, 8))
    with pytest.raises(Planted):
        mesh.run(60.0)
