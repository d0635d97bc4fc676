"""Whole rounds of the real roles in virtual time, without faults: exact for any policy and any number of devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mdl.delta import Contributor, ModelDelta, apply_delta
from mdl.machine import LocalDeltaReady, StopRequested
from mdl.messages import Role, TrainingReport
from peers.agent import Phase
from peers.trainer import Trainer, TrainerSettings
from scheduler.policies import POLICIES
from sim.mesh import SimMesh

BuildMesh = Callable[..., SimMesh]
ErrorsOf = Callable[[SimMesh], dict[int, float]]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_round_closes_with_the_central_mean_of_all(
    policy: str, count: int, build_mesh: BuildMesh, errors_of: ErrorsOf
) -> None:
    mesh = build_mesh(count, policy)
    assert mesh.run(300)
    assert [summary.theta for summary in mesh.rounds] == [count] * 3
    assert [len(summary.hops) for summary in mesh.rounds] == [count - 1] * 3
    assert mesh.refused == 0
    assert sorted(errors_of(mesh)) == [1, 2, 3]
    assert max(errors_of(mesh).values()) <= 1e-6


def test_weights_of_any_size_give_the_weighted_central_mean(build_mesh: BuildMesh, errors_of: ErrorsOf) -> None:
    mesh = build_mesh(5, thetas=[1.0, 10_000.0, 37.5, 2.0, 481.0])
    assert mesh.run(300)
    assert mesh.rounds[-1].theta == pytest.approx(10_521.5)
    assert max(errors_of(mesh).values()) <= 1e-6


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_tells_the_same_story(policy: str, build_mesh: BuildMesh) -> None:
    def run(seed: int) -> SimMesh:
        mesh = build_mesh(4, policy, seed=seed, loss=0.2, duplication=0.1, jitter_s=0.05)
        mesh.run(300)
        return mesh

    one, same, another = run(3), run(3), run(4)
    assert (one.story, one.rounds, one.messages) == (same.story, same.rounds, same.messages)
    assert one.story != another.story


def test_every_device_ends_with_the_sum_of_all_global_deltas(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(3)
    mesh.run(300)
    for peer_id in ("p00", "p01", "p02"):
        expected = np.zeros(8, np.float32)
        for round_id in (1, 2, 3):
            expected = apply_delta(expected, mesh.kept[round_id, peer_id, "global"].values, 1.0)
        np.testing.assert_array_equal(mesh.saved[peer_id][1], expected)


def test_a_slow_device_delays_the_round_and_not_the_others_hops(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(5)
    mesh.nodes["p04"].train_s = 30.0
    mesh.run(60, stop=lambda: len(mesh.rounds) == 1 or mesh.now > 20)
    agent = mesh.nodes["agent"].machine
    assert len([hop for hop in agent.ledger.hops.values() if hop.decided_at]) == 3  # type: ignore[attr-defined]


def test_a_tree_on_equal_devices_takes_log2_of_n_hops_of_time(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(8, "tree", rounds=1)
    for node in mesh.nodes.values():
        node.train_s = 1.0
    mesh.run(300)
    assert 3.0 <= mesh.rounds[0].seconds["aggregate"] < 3.2  # three hops of a second one after the other
    assert 3.0 <= mesh.rounds[0].seconds["broadcast"] < 4.2


def test_a_stop_ends_every_process_and_says_so_in_the_exit_code(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(3, rounds=0)
    mesh.run(10)
    mesh.post("agent", StopRequested())
    mesh.post("agent", StopRequested())
    assert mesh.run(13)
    assert mesh.nodes["agent"].finished.exit_code == 130  # type: ignore[union-attr]
    assert [mesh.nodes[f"p0{number}"].finished.exit_code for number in range(3)] == [0, 0, 0]  # type: ignore[union-attr]
    assert mesh.nodes["agent"].machine.phase is Phase.FINISHED  # type: ignore[attr-defined]


def test_a_trainer_that_stops_is_not_waited_for(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(4, rounds=2)
    mesh.run(0.8)
    mesh.post("p03", StopRequested())
    assert mesh.run(60)
    assert mesh.rounds[0].lost == ("p03",)
    assert [summary.theta for summary in mesh.rounds] == [3.0, 3.0]
    assert mesh.rounds[0].seconds["total"] < 6.0


def test_another_model_is_refused_with_a_message_that_names_both(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(2, rounds=1)
    other = Trainer(Contributor("late", 1), np.zeros(3, np.float32), "other", "alexnet", TrainerSettings())
    mesh.run(0.5)
    mesh.add("late", Role.TRAINER, other)
    assert mesh.run(60)
    end = mesh.nodes["late"].finished
    assert end is not None
    assert end.exit_code == 2
    assert end.problem == "your model (alexnet, 3 values) differs from the mesh's (model, 8 values)"
    assert mesh.rounds[0].theta == 2.0


def test_a_device_whose_training_diverged_leaves_and_the_others_go_on(build_mesh: BuildMesh) -> None:
    mesh = build_mesh(4, rounds=2)
    mesh.run(0.5)
    nan = ModelDelta(np.full(8, np.nan, np.float32), 1.0, frozenset([Contributor("p03", 1)]))
    mesh.post("p03", LocalDeltaReady(1, nan, TrainingReport(float("nan"), 100, 1.0)))
    assert mesh.run(60)
    assert [summary.theta for summary in mesh.rounds] == [3.0, 3.0]
    assert mesh.nodes["p03"].finished.exit_code == 4  # type: ignore[union-attr]
