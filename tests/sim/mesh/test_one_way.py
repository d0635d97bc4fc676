"""Where hearing is not mutual, for good: all devices of a majority that hear each other make rounds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np
import pytest

from mdl.config import Exchange
from mdl.peers.trials.run_plan import build_mesh
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.plans.fault_plan import AGENT_NODE, CutOneWay, FaultPlan

FIRST, SECOND, THIRD, FOURTH, FIFTH = NAMES = "p0", "p1", "p2", "p3", "p4"
# Longer than any run here lasts. The longer, the larger are the vectors that count trainings.
_FOR_GOOD_S = 100.0


@pytest.fixture(autouse=True)
def _mesh_is_freed() -> Iterator[None]:
    """The vectors of a mesh are a few large objects, too few for the collector to look at them by itself."""
    yield
    gc.collect()


def cut(senders: tuple[str, ...], receivers: tuple[str, ...]) -> tuple[CutOneWay, ...]:
    return tuple(CutOneWay(at_s=6.0, a=a, b=b, for_s=_FOR_GOOD_S) for a in senders for b in receivers if a != b)


def mesh_of(
    *faults: CutOneWay, peers: int = 5, has_agent: bool = False, exchange: Exchange = "chain", waits: bool = False
) -> SimMesh:
    on_partition = "wait" if waits else "continue"
    plan = FaultPlan(1, peers, 60, on_partition=on_partition, has_agent=has_agent, exchange=exchange, faults=faults)
    mesh, _ = build_mesh(plan)
    return mesh


def rounds_of(mesh: SimMesh, from_s: float, for_s: float) -> dict[str, int]:
    """Of each device, closed in this time."""
    mesh.run(from_s)
    machines = {name: node.machine for name, node in mesh.nodes.items() if node.machine and node.machine.trainer}
    before = {name: machine.trainer.round_id for name, machine in machines.items() if machine.trainer}
    mesh.run(from_s + for_s)
    return {name: machine.trainer.round_id - before[name] for name, machine in machines.items() if machine.trainer}


@pytest.mark.parametrize("waits", [False, True], ids=["continue", "wait"])
@pytest.mark.parametrize("peers", [3, 5])
def test_who_does_not_hear_the_agent_costs_itself_alone(peers: int, waits: bool) -> None:
    """Nothing else fails: it takes the office, is deaf, and goes on as a fork, a higher term with each round."""
    made = rounds_of(mesh_of(*cut((FIRST,), (SECOND,)), peers=peers, waits=waits), 25.0, 12.0)
    assert sum(count >= 5 for count in made.values()) >= peers - 1, made


@pytest.mark.parametrize("has_agent", [False, True])
def test_who_hears_nobody_costs_itself_alone(has_agent: bool) -> None:
    others = tuple(name for name in (*NAMES, AGENT_NODE) if name != THIRD)
    made = rounds_of(mesh_of(*cut(others, (THIRD,)), has_agent=has_agent), 15.0, 7.0)
    assert all(made[name] >= 5 for name in NAMES if name != THIRD), made


@pytest.mark.parametrize("waits", [False, True], ids=["continue", "wait"])
def test_a_majority_that_its_agent_does_not_hear_goes_on_without_it(waits: bool) -> None:
    mesh = mesh_of(*cut((THIRD, FOURTH, FIFTH), (FIRST, SECOND)), waits=waits)
    made = rounds_of(mesh, 25.0, 15.0)
    assert all(made[name] >= 5 for name in (THIRD, FOURTH, FIFTH)), made


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [0.3, pytest.param(1.0, marks=pytest.mark.long), 3.0])
@pytest.mark.parametrize("exchange", ["chain", "shares"])
def test_a_majority_goes_on_beside_a_fork_that_it_hears_and_that_does_not_hear_it(
    slow_s: float, exchange: Exchange
) -> None:
    """The fork's terms grow faster than the majority's, whose rounds are longer."""
    majority = FIRST, SECOND, THIRD
    mesh = mesh_of(*cut(majority, (FOURTH, FIFTH)), exchange=exchange)
    for name in majority:
        mesh.nodes[name].train_s = slow_s
    made = rounds_of(mesh, 20.0, 20.0)
    assert all(made[name] >= 4 for name in majority), made


@pytest.mark.parametrize("waits", [False, True], ids=["continue", "wait"])
def test_who_hears_two_agents_follows_the_one_that_hears_it(waits: bool) -> None:
    """The other one's claims are under a higher term, and neither has a majority."""
    made = rounds_of(mesh_of(*cut((FIRST,), (FOURTH,)), *cut((FOURTH,), (SECOND, FIFTH)), waits=waits), 30.0, 20.0)
    assert all(made[name] >= 5 for name in NAMES if name != FOURTH), made


def majorities(names: tuple[str, ...], lost: set[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Of which each hears each."""
    sizes = range(len(names) // 2 + 1, len(names) + 1)
    groups = (group for size in sizes for group in combinations(names, size))
    return [group for group in groups if lost.isdisjoint(permutations(group, 2))]


@pytest.mark.slow
@pytest.mark.parametrize("waits", [False, True], ids=["continue", "wait"])
@pytest.mark.parametrize("seed", range(6))
def test_whichever_ways_are_lost(seed: int, waits: bool) -> None:
    rng = np.random.default_rng(seed)
    names = NAMES[: rng.integers(3, 6)]
    ways = list(permutations(names, 2))
    lost = {ways[way] for way in rng.choice(len(ways), rng.integers(1, 4), replace=False)}
    faults = [CutOneWay(at_s=6.0, a=a, b=b, for_s=_FOR_GOOD_S) for a, b in sorted(lost)]
    made = rounds_of(mesh_of(*faults, peers=len(names), waits=waits), 40.0, 20.0)
    for group in majorities(names, lost):
        assert max(made[name] for name in group) >= 4, (group, lost, made)
