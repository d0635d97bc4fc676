"""Segments that were planned before any link was known, and once more when the exchange had shown them."""

from __future__ import annotations

import pytest

from mdl.peers.roles.agent.aggregation import Aggregation
from mdl.peers.roles.trainer import exchange
from mdl.peers.trials import run_plan
from mdl.peers.trials.campaign import Campaign, run_campaign
from mdl.scheduler.policies.segment_plan import SegmentPlan
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.plans.fault_plan import FaultPlan


@pytest.fixture(autouse=True)
def _links_as_slow_as_simulated_values_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an exchange measures them as they are, and takes a while."""
    monkeypatch.setattr(run_plan, "SIZE_BYTES", 3072)
    monkeypatch.setattr(run_plan, "RATES_MB_S", (0.01, 0.05))
    monkeypatch.setattr(exchange, "_SEEN_BYTES", 1)
    monkeypatch.setattr(exchange, "_SEEN_S", 0.1)
    monkeypatch.setattr(exchange, "_INSTANT_S", 0.02)


def _first_round() -> SimMesh:
    """Play a round of many segments and six devices, one of which has a tenth of the others' link."""
    mesh, _ = run_plan.build_mesh(FaultPlan(seed=3, peers=6, rounds=60, exchange="shares"))
    mesh.network.is_shared = True
    mesh.network.rates_mb_s = dict.fromkeys(mesh.nodes, 0.01) | {"p3": 0.001}
    mesh.run(100.0, lambda: len(mesh.rounds) > 0)
    assert len(mesh.rounds) == 1
    return mesh


def test_the_first_round_of_unequal_links_is_planned_anew_and_takes_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    anew = _first_round()
    assert anew.rounds[0].shares["p3"] == 0
    assert anew.rounds[0].bound_s > 0.0
    monkeypatch.setattr(Aggregation, "is_better_anew", lambda *_: False)
    as_it_was = _first_round()
    assert as_it_was.rounds[0].shares["p3"] > 0
    assert anew.now < 0.9 * as_it_was.now


@pytest.mark.slow
def test_under_faults_nothing_is_lost_or_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    anew, judge = [0], Aggregation.is_better_anew

    def count(self: Aggregation, plan: SegmentPlan, elapsed_s: float, now: float) -> bool:
        is_better = judge(self, plan, elapsed_s, now)
        anew[0] += is_better
        return is_better

    monkeypatch.setattr(Aggregation, "is_better_anew", count)
    totals = run_campaign(Campaign(level="mild", exchange="shares"), range(7000, 7040), processes=1)
    assert not [(verdict.seed, verdict.problem) for verdict in totals.failing]
    assert anew[0] >= 8
