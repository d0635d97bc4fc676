"""Counts how often a word of a round has to go from one device to another, one after the other.

The figures are in docs/results/small-models.md.
"""

from __future__ import annotations

import numpy as np
import pytest

from mdl.config import Exchange
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import PeerReport, RoundClosed
from mdl.protocol.vocabulary import Role
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.mesh.process import Node
from mdl.sim.plans.fault_plan import AGENT_NODE

_WAY_S, _TRAIN_S = 0.05, 0.1


@pytest.mark.parametrize(
    ("exchange", "peers", "ways"),
    [("chain", 2, 10), ("chain", 4, 16), ("chain", 8, 22), ("auto", 2, 7), ("auto", 4, 7), ("auto", 8, 7)],
)
def test_ways_from_the_last_delta_to_the_closed_round(exchange: Exchange, peers: int, ways: int) -> None:
    """On links on which values take no time, with a segment for each device."""
    parameters = np.zeros(256, np.float32)
    network = Network(np.random.default_rng(peers), latency_s=_WAY_S, default_mb_s=1e9)
    mesh = SimMesh(network, Accounts(parameters), 1000)
    for name in (AGENT_NODE, *(f"p{number}" for number in range(peers))):
        start = None if name == AGENT_NODE else TrainerStart(parameters.size, b"")
        told = simulated_start(
            Contributor(name, 1), "greedy", peers, "wait", start, 0.0, exchange, segment_values=parameters.size // peers
        )
        role = Role.AGENT if start is None else Role.TRAINER
        mesh.add(name, role, build_machine(told, parameters), train_s=_TRAIN_S)
    ready: dict[str, float] = {}
    closed: list[float] = []

    def hear(mesh: SimMesh, node: Node, send: Send) -> None:
        match send.message:
            case PeerReport(open_round=2, holding=holding) if holding:
                ready.setdefault(node.info.peer_id, mesh.now)
            case RoundClosed(round_id=2):
                closed.append(mesh.now)

    mesh.on_say = hear
    mesh.run(100.0, lambda: len(closed) >= peers)
    assert len(ready) == peers
    assert int((closed[-1] + _WAY_S - max(ready.values())) / _WAY_S) == ways
