"""A simulated mesh of the real roles, and ways to hurt it: what the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from mdl.delta import Contributor, ModelDelta, central_mean
from mdl.messages import Role
from peers.agent import AgentSettings, MobileAgent
from peers.trainer import Trainer, TrainerSettings
from scheduler.policies import make_policy
from sim.invariants import all_invariants
from sim.mesh import SimMesh
from sim.network import Network

# 5 MB at 5 MB/s: a hop takes a second, so that faults find hops under way.
_SIZE_BYTES = 5_000_000
_VALUES = 8


def make_mesh(
    count: int,
    policy: str = "greedy",
    rounds: int = 3,
    seed: int = 0,
    min_peers: int | None = None,
    thetas: Iterable[float] = (),
    stalls_s: tuple[float, float] = (10.0, 15.0),
    **network: float,
) -> SimMesh:
    """An agent and `count` trainers p00, p01, ... that begin from zeros. network: options of sim.network.Network.

    stalls_s: after how long a receiver, and the agent, give a hop up.
    """
    rng = np.random.default_rng(seed)
    mesh = SimMesh(Network(rng, **network), seed, _SIZE_BYTES, all_invariants())
    enough = count if min_peers is None else min_peers
    settings = AgentSettings(rounds=rounds, min_peers=enough, stall_s=stalls_s[1])
    mesh.add("agent", Role.AGENT, MobileAgent(Contributor("agent", 1), make_policy(policy), settings))
    weights = list(thetas) or [1.0] * count
    for number in range(count):
        add_trainer(
            mesh, f"p{number:02d}", theta=weights[number], train_s=1.0 + float(rng.random()), stall_s=stalls_s[0]
        )
    return mesh


def add_trainer(
    mesh: SimMesh,
    peer_id: str,
    incarnation: int = 1,
    theta: float = 1.0,
    train_s: float = 1.0,
    stall_s: float = 10.0,
    keep_deltas: bool = True,
) -> Trainer:
    """Start a trainer from what it saved before, if anything."""
    round_id, parameters = mesh.saved.get(peer_id, (0, np.zeros(_VALUES, np.float32)))
    settings = TrainerSettings(keep_deltas=keep_deltas, stall_s=stall_s)
    trainer = Trainer(Contributor(peer_id, incarnation), parameters, "schema", "model", settings, round_id)
    mesh.add(peer_id, Role.TRAINER, trainer, incarnation, train_s, theta)
    return trainer


def relative_errors(mesh: SimMesh) -> dict[int, float]:
    """Round -> largest distance of any device's global delta from the central mean of its contributors."""
    errors: dict[int, float] = {}
    for (round_id, _, name), delta in mesh.kept.items():
        if name == "global":
            exact = central_mean(own_deltas(mesh, round_id, delta))
            error = float(np.abs(delta.values - exact).max() / np.abs(exact).max())
            errors[round_id] = max(error, errors.get(round_id, 0.0))
    return errors


def own_deltas(mesh: SimMesh, round_id: int, delta: ModelDelta) -> list[ModelDelta]:
    return [mesh.own_deltas[round_id, contributor] for contributor in sorted(delta.contributors)]


@pytest.fixture
def build_mesh() -> Callable[..., SimMesh]:
    return make_mesh


@pytest.fixture
def start_trainer() -> Callable[..., Trainer]:
    return add_trainer


@pytest.fixture
def errors_of() -> Callable[[SimMesh], dict[int, float]]:
    return relative_errors
