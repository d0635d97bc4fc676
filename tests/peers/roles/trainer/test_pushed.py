"""Small sums and results travel as soon as they are ordered: nobody has to ask for them, and asking still works."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.roles.trainer.trainer import TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.machine import Effect, LocalDeltaReady, Received, Send, Tick
from mdl.protocol.round_messages import (
    PUSHED_BYTES,
    BroadcastOrdered,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    GlobalWanted,
    HopOrdered,
    RoundOpened,
)
from mdl.protocol.vector_work import MergeDeltas
from mdl.protocol.vocabulary import Activity, Role, TrainingReport
from mdl.sim.mesh import driver, process
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from tests.peers.roles.at_once import TrainerAtOnce, as_sent, on_way, sum_of
from tests.peers.roles.desk import A, B, Desk

AGENT = Contributor("agent", 1)
ME, ANN, BOB, CLEO = (Contributor(name, 1) for name in ("me", "ann", "bob", "cleo"))
ALL = (ANN, BOB, CLEO, ME)
ZEROS, ONES = np.zeros(4, np.float32), np.ones(4, np.float32)
RESULT = sum_of((0.25, 0.5, 0.75, 1.0), ALL)
LARGE = PUSHED_BYTES // 4 + 1


def holding(values: np.ndarray = ONES) -> TrainerAtOnce:
    """A trainer that has trained for round 1, in which all take part."""
    start = np.zeros_like(values)
    trainer = TrainerAtOnce(ME, start, "schema", "lenet", TrainerSettings(retry_s=0.5))
    trainer.handle(Received(AGENT, RoundOpened(1, 1, digest_of(start), ALL, attempt=1)), 1.0)
    delta = ModelDelta(values, 1.0, frozenset([ME]))
    trainer.handle(LocalDeltaReady(1, delta, TrainingReport(0.5, 100, 1.0)), 2.0)
    return trainer


def ordered(sender: Contributor, receiver: Contributor) -> Received:
    return Received(AGENT, HopOrdered(1, 1, 0, 10, sender, receiver=receiver))


def sent(effects: list[Effect], kind: type) -> list[tuple[str, object]]:
    found = [effect for effect in effects if isinstance(effect, Send) and type(effect.message) is kind]
    return [(effect.receiver, effect.message) for effect in found]


def test_an_agent_orders_a_small_hop_at_both_ends_and_a_large_one_at_its_receiver() -> None:
    for size, ends in ((LARGE - 1, {"a", "b"}), (LARGE, {"b"})):
        desk = Desk(min_peers=2)
        for peer in (A, B):
            desk.report(peer, size=size)
        for peer in (A, B):
            desk.hold(peer)
        assert set(desk.told(HopOrdered)) == ends
        assert (desk.last(HopOrdered).receiver is None) is (size == LARGE)


def test_a_sender_gives_at_once_and_again_if_it_is_asked() -> None:
    trainer = holding()
    assert [to for to, _ in sent(trainer.handle(ordered(ME, ANN), 3.0), DeltaMessage)] == ["ann"]
    assert sent(trainer.handle(ordered(ME, BOB), 3.0), DeltaMessage) == [], "it is given away"
    asked = Received(ANN, DeltaWanted(1, 1, 0, 10))
    assert [to for to, _ in sent(trainer.handle(asked, 3.5), DeltaMessage)] == ["ann"]


def test_a_receiver_asks_only_if_nothing_has_come_for_a_while() -> None:
    trainer = holding()
    assert sent(trainer.handle(ordered(ANN, ME), 3.0), DeltaWanted) == []
    assert sent(trainer.handle(Tick(), 3.4), DeltaWanted) == []
    assert [to for to, _ in sent(trainer.handle(Tick(), 3.5), DeltaWanted)] == ["ann"]


def test_a_sum_that_overtakes_its_order_is_asked_for_again() -> None:
    trainer = holding()
    came = Received(ANN, DeltaMessage(1, 0, 10, 1.0, (ANN,)), on_way(ONES))
    trainer.handle(came, 2.9)
    assert trainer.report(1, "agent", 2.9).holdings[0].contributors == (ME,)
    trainer.handle(ordered(ANN, ME), 3.0)
    assert sent(trainer.handle(Tick(), 3.5), DeltaWanted)
    trainer.handle(came, 3.6)
    assert trainer.report(1, "agent", 3.6).holdings[0].contributors == (ANN, ME)


def test_an_order_for_others_changes_nothing() -> None:
    trainer = holding()
    effects = trainer.handle(Received(AGENT, HopOrdered(1, 1, 0, 10, ME)), 3.0)  # its receiver asks
    assert not sent(effects, DeltaMessage)
    assert trainer.report(1, "agent", 3.0).activity is Activity.HOLDING
    assert not any(isinstance(effect, MergeDeltas) for effect in effects)


def test_a_small_result_goes_to_all_children_at_once_and_a_large_one_to_those_that_ask() -> None:
    for values, children in ((ONES, ["bob", "ann"]), (np.ones(LARGE, np.float32), [])):
        trainer = holding(values)
        order = BroadcastOrdered(1, 1, digest_of(np.zeros_like(values)), 1, (CLEO, ME, ANN, BOB), 4.0, ALL)
        effects = trainer.handle(Received(AGENT, order), 3.0)
        assert (sent(effects, GlobalWanted) == []) is bool(children), "its own parent is root"
        result = sum_of(values / 2, ALL)
        effects = trainer.handle(Received(CLEO, GlobalMessage(1, 4.0, ALL, 1, 1), as_sent(result)), 3.2)
        assert [to for to, _ in sent(effects, GlobalMessage)] == children[:1]


def test_a_child_asks_its_parent_if_nothing_has_come_for_a_while() -> None:
    trainer = holding()
    order = BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (CLEO, ME, ANN, BOB), 4.0, ALL)
    trainer.handle(Received(AGENT, order), 3.0)
    assert sent(trainer.handle(Tick(), 3.4), GlobalWanted) == []
    assert [to for to, _ in sent(trainer.handle(Tick(), 3.5), GlobalWanted)] == ["cleo"]


def count_trips(peers: int, monkeypatch: pytest.MonkeyPatch, latency_s: float = 0.005, train_s: float = 0.2) -> float:
    """Return the one-way trips of a later round by hops, where nothing but the way takes time."""
    for module, name in (
        (process, "_EVALUATION_S"),
        (process, "_VECTOR_WORK_S"),
        (process, "_MERGED_S"),
        (driver, "SAVE_S"),
    ):
        monkeypatch.setattr(module, name, 1e-7)
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    parameters = np.zeros(1024, np.float32)
    network = Network(np.random.default_rng(1), latency_s=latency_s, default_mb_s=1e6)
    mesh, ends = SimMesh(network, Accounts(parameters), 1000), [0.0]
    for name in [f"p{number}" for number in range(peers)]:
        start = TrainerStart(parameters.size, b"")
        told = simulated_start(Contributor(name, 1), "greedy", peers, "wait", start, 0.0, "chain")
        mesh.add(name, Role.TRAINER, build_machine(told, parameters), train_s=train_s)

    def is_over() -> bool:
        if len(mesh.rounds) == len(ends):
            ends.append(mesh.now)
        return len(ends) == 6

    mesh.run(60.0, is_over)
    return (ends[-1] - ends[-2] - train_s) / latency_s


@pytest.mark.parametrize(("peers", "trips"), [(2, 8), (4, 13), (8, 16)])
def test_a_round_of_a_small_model_takes_so_many_one_way_trips(
    peers: int, trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count_trips(peers, monkeypatch) == pytest.approx(trips, abs=0.1)
