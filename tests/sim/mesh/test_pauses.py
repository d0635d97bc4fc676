"""Devices that may not train for a while (`--when`): the others go on, nothing is lost, and no round is stuck."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from mdl.peers.roles.peer import Peer
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import build_mesh, run_plan
from mdl.protocol.machine import Evaluate, PauseChanged, TrainLocally
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_plan
from mdl.sim.plans.fault_plan import AnyFault, Crash, FaultPlan, Pause, Restart, dump_plan, load_plan


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_machines():
        yield


def _run(*faults: AnyFault, peers: int = 5, rounds: int = 6) -> tuple[RunVerdict, SimMesh]:
    plan = FaultPlan(1, peers, rounds, faults=faults)
    assert load_plan(dump_plan(plan)) == plan
    verdict, mesh = run_plan(plan, record=True)
    assert (verdict.problem, verdict.lost, verdict.lost_with_owner, verdict.double) == ("", 0, 0, 0)
    return verdict, mesh


def _contributors(mesh: SimMesh) -> list[set[str]]:
    closed = sorted(mesh.accounts.closed.values(), key=lambda entry: entry.round_id)
    return [{who.peer_id for who in entry.contributors} for entry in closed[1:]]


def test_the_others_go_on_without_a_paused_device_which_has_their_model_and_comes_back() -> None:
    _, mesh = _run(Pause(at_s=1.6, peer="p3", for_s=3.0))
    has_part = ["p3" in contributors for contributors in _contributors(mesh)]
    assert has_part[0]
    assert has_part[-1]
    assert not all(has_part)
    assert len({node.holder.digest for node in mesh.nodes.values() if node.holder}) == 1
    assert sum("p3" in summary.lost for summary in mesh.rounds) <= 1, "told when it goes, not in each round"
    rounds = [summary.seconds["total"] for summary in mesh.rounds]
    assert max(rounds) < 2.0, "nobody waits for it: a silence of 2 s would make it a loss"


def test_a_paused_device_neither_trains_nor_tests() -> None:
    _, mesh = _run(Pause(at_s=1.6, peer="p3", for_s=3.0))
    steps = [step for step in mesh.story or [] if step.who and step.who.peer_id == "p3"]
    work = TrainLocally | Evaluate
    asked = [step.at_s for step in steps if any(isinstance(effect, work) for effect in step.effects)]
    assert not [at_s for at_s in asked if 1.6 < at_s < 4.6]
    assert max(asked) > 4.6


def test_a_mesh_in_which_nobody_may_train_waits_and_says_so() -> None:
    plan = FaultPlan(1, 3, 4, faults=tuple(Pause(at_s=2.0, peer=f"p{one}", for_s=30.0) for one in range(3)))
    mesh, _ = build_mesh(plan)
    mesh.run(4.0)
    closed, terms = mesh.accounts.rounds_closed(), _term(mesh)
    mesh.run(30.0)
    assert (mesh.accounts.rounds_closed(), _term(mesh)) == (closed, terms), "no round is opened again and again"
    assert {told for told in _waiting(mesh) if told} == {
        "a device that may train: p0 (in use), p1 (in use), p2 (in use)"
    }
    mesh.run(40.0)
    assert mesh.accounts.rounds_closed() > closed + 2
    assert _contributors(mesh)[-1] == {"p0", "p1", "p2"}


def test_one_device_that_may_train_goes_on_at_once_and_the_others_follow() -> None:
    _, mesh = _run(*(Pause(at_s=2.0, peer=f"p{one}", for_s=6.0) for one in range(1, 4)), peers=4, rounds=8)
    assert {"p0"} in _contributors(mesh)
    alone = [summary.seconds["total"] for summary in mesh.rounds if summary.contributors == ("p0",)]
    assert max(alone) < 2.0
    assert len({node.holder.digest for node in mesh.nodes.values() if node.holder}) == 1


def test_a_mesh_begins_when_enough_may_train() -> None:
    mesh, _ = build_mesh(FaultPlan(1, 3, 2))
    for one in ("p0", "p1"):
        mesh.post(one, PauseChanged("outside 22:00-6:00"))
    mesh.run(10.0)
    assert mesh.accounts.rounds_closed() == 0
    paused = "p0 is paused (outside 22:00-6:00); p1 is paused (outside 22:00-6:00)"
    assert {told for told in _waiting(mesh) if told} == {f"1 more of 2 devices: {paused}"}
    mesh.post("p0", PauseChanged())
    mesh.run(12.0)
    assert mesh.accounts.rounds_closed() >= 1


def test_a_paused_device_that_dies_and_comes_back_is_counted_again() -> None:
    _, mesh = _run(
        Pause(at_s=1.6, peer="p2", for_s=1.0), Crash(at_s=2.0, peer="p2"), Restart(at_s=3.0, peer="p2"), rounds=6
    )
    assert "p2" in _contributors(mesh)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_whatever_fails_pauses_lose_nothing_and_no_round_is_stuck(seed: int) -> None:
    plan, rng = draw_plan(seed, 5, 4, "hard"), np.random.default_rng([seed, 15])
    pauses = tuple(
        Pause(at_s=float(rng.uniform(0.0, 8.0)), peer=f"p{rng.integers(5)}", for_s=float(rng.exponential(2.0)))
        for _ in range(rng.integers(1, 9))
    )
    verdict, _ = run_plan(msgspec.structs.replace(plan, faults=(*plan.faults, *pauses)))
    assert (verdict.problem, verdict.lost, verdict.double) == ("", 0, 0), pauses


def _agents(mesh: SimMesh) -> list[Peer]:
    machines = [node.machine for node in mesh.nodes.values()]
    return [machine for machine in machines if isinstance(machine, Peer) and machine.agent]


def _waiting(mesh: SimMesh) -> list[str]:
    return [peer.agent.waiting_for for peer in _agents(mesh) if peer.agent]


def _term(mesh: SimMesh) -> list[int]:
    return [peer.agent.term for peer in _agents(mesh) if peer.agent]
