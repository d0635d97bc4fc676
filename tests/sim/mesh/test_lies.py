"""Devices that lie, among faults: nothing of theirs is merged, and nothing of the others is lost or counts twice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.roles.agent.doubt import JudgedDevices
from mdl.peers.roles.trainer.guard import DeltaGuard
from mdl.peers.trials.campaign import Campaign, silent_machines
from mdl.peers.trials.run_plan import run_guarded, run_plan
from mdl.protocol.vector_work import Check
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_plan, with_liars
from mdl.sim.plans.fault_plan import Lie, dump_plan, load_plan
from tests.portions import in_portions

_SEEDS = in_portions(range(60), 5)


def _run(seed: int, exchange: Exchange = "chain", level: str = "hard", peers: int = 6, liars: int = 2) -> RunVerdict:
    with silent_machines():
        return run_guarded(with_liars(draw_plan(seed, peers, 5, level, exchange=exchange), liars), 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", _SEEDS)
@pytest.mark.parametrize("exchange", ["chain", "shares"])
def test_what_liars_give_is_never_merged_and_no_mesh_is_stuck(exchange: Exchange, seeds: list[int]) -> None:
    failed = [verdict for seed in seeds if (verdict := _run(seed, exchange)).kind]
    assert not failed


@pytest.mark.parametrize("seeds", _SEEDS)
def test_a_mesh_of_three_lives_with_one_liar(seeds: list[int]) -> None:
    assert not [verdict for seed in seeds if (verdict := _run(seed, peers=3, liars=1)).kind]


def test_liars_are_left_out_and_their_work_comes_when_they_are_honest_again() -> None:
    plan = with_liars(draw_plan(3, 6, 8, "none"), 1)
    (lie,) = (fault for fault in plan.faults if isinstance(fault, Lie))
    with silent_machines():
        verdict, mesh = run_plan(plan)
    assert not verdict.kind
    assert any(lie.peer in summary.quarantined for summary in mesh.rounds)
    assert all(lie.peer not in summary.contributors for summary in mesh.rounds if lie.peer in summary.quarantined)


def test_no_more_than_a_minority_lies_and_the_plan_survives_its_file() -> None:
    plan = with_liars(draw_plan(1, 4, 3, "hard"), 20)
    assert sum(isinstance(fault, Lie) for fault in plan.faults) == 1
    assert load_plan(dump_plan(plan)) == plan
    assert Campaign(liars=1).plan(1) != Campaign().plan(1)


@pytest.fixture
def merges_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sums beyond their share pass."""
    for place in ("protocol.vector_work", "peers.roles.trainer.exchange"):
        monkeypatch.setattr(f"mdl.{place}.check_sums", lambda sums, theta, room: None)


def _judge_nothing(self: DeltaGuard, *asked: Any) -> Check | None:
    return None


@pytest.mark.usefixtures("merges_any_size")
def test_a_device_that_does_not_judge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaGuard, "check", _judge_nothing)
    assert {_run(seed, level="none").kind for seed in range(5)} >= {"mean"}


@pytest.mark.usefixtures("merges_any_size")
def test_an_owner_that_does_not_judge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaGuard, "admits", lambda self, *piece: True)
    monkeypatch.setattr(
        JudgedDevices, "is_due", lambda self, round_id: False
    )  # else a liar is out before it gives a piece
    kinds = {_run(seed, "shares", "none").kind for seed in range(5)}
    assert kinds & {"mean", "segment"}


def test_the_share_of_a_weight_alone_keeps_lies_out_that_are_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first round's grid is wide: a share is 32,768 there."""
    monkeypatch.setattr(DeltaGuard, "check", _judge_nothing)
    kinds = set()
    for seed in range(5):
        plan = with_liars(draw_plan(seed, 6, 5, "none", exchange="chain"), 2)
        faults = tuple(replace(each, times=1e6) if isinstance(each, Lie) else each for each in plan.faults)
        with silent_machines():
            kinds.add(run_guarded(replace(plan, faults=faults), 10.0).kind)
    assert kinds == {""}
