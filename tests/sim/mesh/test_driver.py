"""Scenarios that can be read: one thing goes wrong, and what the mesh makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec
import pytest

from mdl.peers.roles.agent.settings import TimeLimit
from mdl.peers.roles.peer import Peer
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import build_mesh, run_plan
from mdl.protocol.machine import StopRequested
from mdl.scheduler.policies.registry import POLICIES
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict, is_settled, judge
from mdl.sim.plans.fault_plan import OFFICE, AnyFault, Crash, CrashOn, FaultPlan, Moment, Restart, Split, Suspend


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_machines():
        yield


def _run(*faults: AnyFault, peers: int = 5, rounds: int = 3, **options: object) -> tuple[RunVerdict, SimMesh]:
    plan = FaultPlan(1, peers, rounds, faults=faults, **options)  # type: ignore[arg-type]
    verdict, mesh = run_plan(plan)
    assert not verdict.problem
    return verdict, mesh


def _contributors(mesh: SimMesh) -> list[set[str]]:
    """Of each closed round, in order."""
    closed = sorted(mesh.accounts.closed.values(), key=lambda entry: entry.round_id)
    return [{who.peer_id for who in entry.contributors} for entry in closed[1:]]


@pytest.mark.parametrize("has_agent", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("policy", POLICIES)
def test_rounds_close_with_everybody(policy: str, count: int, has_agent: bool) -> None:
    verdict, mesh = _run(peers=count, policy=policy, has_agent=has_agent)
    everybody = {f"p{number}" for number in range(count)}
    assert _contributors(mesh)[1:] == [everybody, everybody]
    assert (verdict.lost_with_owner, mesh.refused) == (0, 0)


@pytest.mark.parametrize("message", ["RoundOpened", "HopOrdered", "BroadcastOrdered", "RoundClosed"])
@pytest.mark.parametrize("has_agent", [True, False])
def test_a_round_is_finished_by_another_agent_when_the_first_dies_at_any_step(message: str, has_agent: bool) -> None:
    fault = CrashOn(at_s=0.0, peer=OFFICE, message=message, nth=3, moment=Moment.AFTER_SAYING, restart_after_s=None)
    verdict, mesh = _run(fault, has_agent=has_agent)
    gone = [node for node in mesh.nodes.values() if not node.running]
    assert len(gone) == 1
    assert verdict.lost_with_owner <= 1
    survivors = {f"p{number}" for number in range(5)} - {node.peer_id for node in gone}
    assert survivors <= _contributors(mesh)[-1]


def test_a_device_that_comes_back_is_counted_again() -> None:
    _, mesh = _run(Crash(at_s=1.6, peer="p2"), Restart(at_s=2.6, peer="p2"), rounds=5)
    assert "p2" in _contributors(mesh)[-1]
    assert mesh.nodes["p2"].info.incarnation == 2


def test_a_suspended_device_brings_its_work_into_a_later_round() -> None:
    verdict, mesh = _run(Suspend(at_s=1.8, peer="p3", for_s=4.0), rounds=5)
    assert any("p3" not in contributors for contributors in _contributors(mesh))
    assert (verdict.lost, verdict.lost_with_owner) == (0, 0)


def test_a_minority_that_waits_and_comes_back_has_the_meshs_model() -> None:
    verdict, mesh = _run(Split(at_s=1.8, group=("p3", "p4"), for_s=5.0), rounds=5)
    assert any(contributors <= {"p0", "p1", "p2"} for contributors in _contributors(mesh))
    assert len({node.holder.digest for node in mesh.nodes.values() if node.holder}) == 1
    assert (verdict.lost, verdict.lost_with_owner) == (0, 0)


def test_a_minority_that_goes_on_alone_brings_in_what_it_did_once() -> None:
    verdict, mesh = _run(Split(at_s=1.8, group=("p3", "p4"), for_s=12.0), rounds=4, on_partition="continue")
    assert {"p3", "p4"} in _contributors(mesh)
    assert (verdict.lost, verdict.lost_with_owner, verdict.double) == (0, 0, 0)


def test_everybody_killed_at_once_goes_on_from_the_last_closed_round() -> None:
    peers = [f"p{number}" for number in range(4)]
    down = [Crash(at_s=3.8, peer=peer) for peer in [*peers, "agent"]]  # in training: the last result is on the disks
    up = [Restart(at_s=4.3 + 0.1 * number, peer=peer) for number, peer in enumerate([*peers, "agent"])]
    _, mesh = _run(*down, *up, peers=4, rounds=6)
    rounds = [entry.round_id for entry in mesh.accounts.closed.values()]
    assert sorted(rounds) == list(range(len(rounds)))  # none was closed twice
    assert len(rounds) > 6


def test_a_dedicated_agent_that_is_stopped_sends_everybody_home() -> None:
    mesh, _ = build_mesh(FaultPlan(1, 3, 3))
    mesh.run(5.0)
    mesh.post("agent", StopRequested())
    assert mesh.run(15.0)
    ends = {peer_id: node.finished and node.finished.exit_code for peer_id, node in mesh.nodes.items()}
    assert ends == {"agent": 130, "p0": 0, "p1": 0, "p2": 0}


def test_a_device_that_is_stopped_is_not_waited_for() -> None:
    mesh, _ = build_mesh(FaultPlan(1, 4, 3))
    mesh.run(2.0)
    mesh.post("p3", StopRequested())
    mesh.run(2.3)
    closed = mesh.accounts.rounds_closed()
    mesh.run(6.0)
    assert mesh.accounts.rounds_closed() >= closed + 2
    assert mesh.nodes["p3"].finished is not None
    assert _contributors(mesh)[-1] == {"p0", "p1", "p2"}


def test_rounds_do_not_wait_for_a_device_that_trains_long_and_lose_nothing_of_it() -> None:
    plan = FaultPlan(1, 5, 12)
    mesh, injector = build_mesh(plan)
    for node in mesh.nodes.values():
        assert isinstance(node.machine, Peer)
        limit = TimeLimit(wait_for=0.6, grace_s=0.2, left_out_at_most=3)
        node.machine.agent_settings = msgspec.structs.replace(node.machine.agent_settings, limit=limit)
    mesh.nodes["p3"].train_s = 2.5
    settled = is_settled(mesh, plan.rounds)
    assert mesh.run(60.0, lambda: mesh.now >= injector.ends_s and settled())
    left_out = ["p3" not in summary.contributors for summary in mesh.rounds]
    assert left_out.count(True) >= 3 <= left_out.count(False)
    assert 1 < max(len(list(run)) for out, run in groupby(left_out) if out) <= 3
    verdict = judge(mesh, plan, settled(), lambda node: node.peer_id)
    assert (verdict.problem, verdict.lost, verdict.double) == ("", 0, 0)
    assert max(summary.seconds["total"] for summary in mesh.rounds) < 2.0, "it trains for 2.5 s"
