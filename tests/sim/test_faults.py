"""Faults at random times over many seeds: nothing lost, nothing counted twice, and every round closes.

The invariants are checked after each event of each run. A failing seed goes into the list of the test with its fix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from mdl.messages import Role
from peers.trainer import Trainer
from sim.invariants import check_disjoint, check_theta
from sim.mesh import SimMesh

BuildMesh = Callable[..., SimMesh]
StartTrainer = Callable[..., Trainer]
ErrorsOf = Callable[[SimMesh], dict[int, float]]
# The plan of one run: (time, what to do, to whom).
Plan = list[tuple[float, Callable[..., Any], str]]


def _play(mesh: SimMesh, plan: Plan, until_s: float = 400.0) -> None:
    for at, act, peer_id in sorted(plan, key=lambda step: step[0]):
        mesh.run(at)
        mesh.now = max(mesh.now, at)
        if not mesh.nodes["agent"].finished:
            act(mesh, peer_id)
    mesh.run(until_s, stop=lambda: mesh.nodes["agent"].finished is not None)
    assert mesh.nodes["agent"].finished, (mesh.now, len(mesh.rounds), mesh.nodes["agent"].machine.waiting_for)  # type: ignore[attr-defined]


def _crash(mesh: SimMesh, peer_id: str) -> None:
    mesh.crash(peer_id)


def _isolate(mesh: SimMesh, peer_id: str) -> None:
    for other in mesh.nodes:
        mesh.network.cuts |= {(peer_id, other), (other, peer_id)}


def _heal(mesh: SimMesh, _: str) -> None:
    mesh.network.cuts.clear()


@pytest.mark.parametrize("block", range(4))
def test_loss_repetition_and_reordering_change_no_result(
    block: int, build_mesh: BuildMesh, errors_of: ErrorsOf
) -> None:
    for seed in range(15 * block, 15 * (block + 1)):
        mesh = build_mesh(5, seed=seed, loss=0.2, duplication=0.1, jitter_s=0.3)
        _play(mesh, [])
        assert [summary.theta for summary in mesh.rounds] == [5.0] * 3, seed
        assert max(errors_of(mesh).values()) <= 1e-6, seed


@pytest.mark.parametrize("policy", ["greedy", "tree", "ring", "fifo"])
def test_rounds_close_among_the_survivors_of_crashes_at_any_time(
    policy: str, build_mesh: BuildMesh, errors_of: ErrorsOf
) -> None:
    for seed in range(15):
        mesh = build_mesh(6, policy, seed=seed, min_peers=2, loss=0.1, duplication=0.1, jitter_s=0.1)
        rng = np.random.default_rng([seed, 1])
        plan: Plan = [(float(rng.uniform(0.5, 20.0)), _crash, peer_id) for peer_id in ("p00", "p02", "p05")]
        _play(mesh, plan)
        assert len(mesh.rounds) == 3, seed
        assert {"p01", "p03", "p04"} <= set(mesh.rounds[-1].contributors), seed
        assert max(errors_of(mesh).values()) <= 1e-6, seed


def test_crashed_trainers_that_come_back_at_any_time_break_nothing(
    build_mesh: BuildMesh, start_trainer: StartTrainer, errors_of: ErrorsOf
) -> None:
    for seed in range(40):
        mesh = build_mesh(5, seed=seed, min_peers=2, loss=0.1, duplication=0.1, jitter_s=0.3)
        rng = np.random.default_rng([seed, 2])
        plan: Plan = []
        for peer_id in ("p00", "p01", "p02"):
            at = float(rng.uniform(0.5, 20.0))
            plan.append((at, _crash, peer_id))
            plan.append((at + float(rng.uniform(0.1, 8.0)), partial(start_trainer, incarnation=2), peer_id))
        _play(mesh, plan)
        assert len(mesh.rounds) == 3, seed
        assert max(errors_of(mesh).values()) <= 1e-6, seed


def test_trainers_cut_off_for_a_while_are_lost_for_the_round_and_break_nothing(
    build_mesh: BuildMesh, errors_of: ErrorsOf
) -> None:
    for seed in range(40):
        mesh = build_mesh(5, seed=seed, min_peers=2, loss=0.1, duplication=0.1, jitter_s=0.3)
        rng = np.random.default_rng([seed, 3])
        plan: Plan = []
        for _ in range(3):
            at, peer_id = float(rng.uniform(0.0, 20.0)), f"p{int(rng.integers(5)):02d}"
            plan += [(at, _isolate, peer_id), (at + float(rng.uniform(1.0, 8.0)), _heal, peer_id)]
        _play(mesh, plan)
        assert len(mesh.rounds) == 3, seed
        assert max(errors_of(mesh).values()) <= 1e-6, seed


def test_a_round_that_was_given_up_by_a_cut_off_agent_begins_afresh(build_mesh: BuildMesh, errors_of: ErrorsOf) -> None:
    for seed in range(8):
        mesh = build_mesh(4, seed=seed)
        at = 1.0 + 0.35 * seed  # while training, and while hops are under way
        _play(mesh, [(at, _isolate, "agent"), (at + 6.0, _heal, "agent")])
        assert len(mesh.rounds) == 3, seed
        assert max(errors_of(mesh).values()) <= 1e-6, seed


def test_a_crashed_trainer_comes_back_and_is_counted_in_a_later_round(
    build_mesh: BuildMesh, start_trainer: StartTrainer
) -> None:
    mesh = build_mesh(4, rounds=5, min_peers=2)
    _play(mesh, [(9.0, _crash, "p02"), (12.0, partial(start_trainer, incarnation=2), "p02")])
    counted = [int(summary.theta) for summary in mesh.rounds]
    assert 3 in counted
    assert counted[-2:] == [4, 4]
    assert "p02" in mesh.rounds[-1].contributors


def test_a_newcomer_is_counted_as_soon_as_it_has_the_model(build_mesh: BuildMesh, start_trainer: StartTrainer) -> None:
    mesh = build_mesh(3, rounds=4)
    _play(mesh, [(2.0, start_trainer, "late")])
    assert [int(summary.theta) for summary in mesh.rounds] == [3, 4, 4, 4]


def test_a_model_that_was_lost_with_everybody_who_had_it_does_not_stop_the_mesh(
    build_mesh: BuildMesh, start_trainer: StartTrainer
) -> None:
    mesh = build_mesh(2, rounds=3)
    mesh.run(60, stop=lambda: len(mesh.rounds) == 1)
    lost_at, back_at = mesh.now + 0.1, mesh.now + 6.0
    plan: Plan = [(lost_at, _crash, "p00"), (lost_at, _crash, "p01")]
    plan += [(back_at, start_trainer, "new0"), (back_at, start_trainer, "new1")]
    mesh.invariants = [check_disjoint, check_theta]  # round 1 comes twice, knowingly
    _play(mesh, plan)
    assert len(mesh.rounds) == 3
    assert mesh.rounds[-1].contributors == ("new0", "new1")


def test_a_trainer_alone_in_a_network_that_heals_has_the_meshs_model_in_the_end(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(4, rounds=6)
    _play(mesh, [(3.0, _isolate, "p01"), (12.0, _heal, "p01")])
    assert mesh.rounds[-1].theta == 4.0
    models = {
        node.machine.digest  # type: ignore[attr-defined]
        for node in mesh.nodes.values()
        if node.info.role is Role.TRAINER
    }
    assert len(models) == 1


def test_an_agent_cut_off_at_any_time_gives_no_round_two_results(build_mesh: BuildMesh, errors_of: ErrorsOf) -> None:
    for seed in range(20):
        mesh = build_mesh(5, seed=seed, loss=0.1, duplication=0.1, jitter_s=0.3)
        rng = np.random.default_rng([seed, 4])
        at = float(rng.uniform(1.0, 20.0))
        _play(mesh, [(at, _isolate, "agent"), (at + float(rng.uniform(1.0, 8.0)), _heal, "agent")])
        assert len(mesh.rounds) == 3, seed
        assert max(errors_of(mesh).values()) <= 1e-6, seed
