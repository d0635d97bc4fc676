"""The timing model and the simulated mesh agree: the same scenario and the same hops take the same time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mdl.devices.scenario import Scenario
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.succession import SuccessionSettings
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.trainer.trainer import TrainerSettings
from mdl.peers.trials.campaign import silent_machines
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import RoundOpened
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import Role
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Wait
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.play import play
from mdl.sim.mesh.accounts import DIMENSIONS, Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.timing.scenario import draw_scenario
from tests.peers.roles.at_once import TrainerAtOnce

# A hop of the mesh is four messages: the order, the receiver's wish, the values and the receiver's report.
MESSAGES_PER_HOP = 4


class Scripted:
    """Orders these hops; of each device in this order, and each as soon as both ends are free."""

    name = "scripted"

    def __init__(self, hops: list[tuple[str, str]]) -> None:
        self.left = list(hops)

    def decide(self, view: ChainView) -> Decision:
        free, engaged = {device.peer_id for device in view.free()}, set[str]()
        for sender, receiver in self.left:
            if not {sender, receiver} & engaged and {sender, receiver} <= free:
                self.left.remove((sender, receiver))
                return Pair(sender, receiver, "as written")
            engaged |= {sender, receiver}
        return Wait("the next in line are not free")


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_machines():
        yield


def run_mesh(scenario: Scenario, hops: list[tuple[str, str]]) -> RoundSummary:
    """The same on the simulated mesh, with the real machines."""
    ids, start = [f"{index}" for index in range(len(scenario.devices))], np.zeros(DIMENSIONS, np.float32)
    latency_s = scenario.latency_s / MESSAGES_PER_HOP
    network = Network(np.random.default_rng(0), latency_s=latency_s)
    accounts = Accounts(start)
    mesh = SimMesh(network, accounts, int(scenario.size_mb * 1e6))
    opened_at: list[float] = []

    def say(_: SimMesh, node: object, send: object) -> None:
        if isinstance(getattr(send, "message", None), RoundOpened) and not opened_at:
            opened_at.append(mesh.now)
            for peer_id, device in zip(ids, scenario.devices, strict=True):
                network.busy[peer_id] = tuple((begin + mesh.now, end + mesh.now) for begin, end in device.busy)

    mesh.on_say = say
    settings = AgentSettings(rounds=1, min_peers=len(ids), stall_s=1e4)
    script = Scripted(hops)
    agent = Peer(Contributor("agent", 1), None, lambda: script, settings, SuccessionSettings(), 0.0)
    mesh.add("agent", Role.AGENT, agent)
    for peer_id, device in zip(ids, scenario.devices, strict=True):
        me = Contributor(peer_id, 1)
        trainer = TrainerAtOnce(me, start, "schema", "model", TrainerSettings(stall_s=1e4))
        network.rates_mb_s[peer_id], network.merge_mb_s[peer_id] = device.link_mb_s, device.merge_mb_s
        peer = Peer(me, trainer, lambda: make_policy("fifo"), settings, SuccessionSettings(), 0.0)
        mesh.add(peer_id, Role.TRAINER, peer, train_s=device.ready_s)
    assert mesh.run(5000.0, lambda: bool(mesh.rounds))
    assert sorted((hop.sender, hop.receiver) for hop in mesh.rounds[0].schedule) == sorted(hops)
    return mesh.rounds[0]


def play_hops(scenario: Scenario, policy: str) -> tuple[float, list[tuple[str, str]]]:
    """On the timing model: the makespan, and its hops."""
    played = play(scenario, make_policy(policy))
    return played.makespan_s, [(str(one.hop.sender), str(one.hop.receiver)) for one in played.ordered]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "greedy", "tree", "ring"])
@pytest.mark.parametrize("family", ["paper", "hetero", "dynamic"])
@pytest.mark.parametrize("n", [3, 9])
def test_the_timing_model_and_the_simulated_mesh_agree_within_one_percent(family: str, n: int, policy: str) -> None:
    for seed in range(3):
        scenario = draw_scenario(family, n, seed)
        makespan_s, hops = play_hops(scenario, policy)
        merged_at = [hop.decided_s for hop in run_mesh(scenario, hops).schedule if hop.decided_s is not None]
        assert max(merged_at) == pytest.approx(makespan_s, rel=0.01)


def test_the_agent_learns_from_hops_how_fast_each_receiver_merges() -> None:
    scenario = draw_scenario("hetero", 9, 0)
    _, hops = play_hops(scenario, "greedy")
    receivers = {receiver for _, receiver in hops}
    learned = {device.peer_id: device.merge_mb_s for device in run_mesh(scenario, hops).devices}
    assert learned == {
        str(index): pytest.approx(device.merge_mb_s) if str(index) in receivers else None
        for index, device in enumerate(scenario.devices)
    }
