"""A member alters one value of what it merges, alike for all: it is found in that round, and the mesh goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.roles.trainer.exchange import SegmentExchange as Segments
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import run_guarded, run_plan
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_plan
from mdl.sim.plans.fault_plan import Alters, Cut, FaultPlan, dump_plan, load_plan
from tests.portions import in_portions

_LIAR = "p0"


def _plan(seed: int, peers: int = 4, level: str = "none", exchange: Exchange = "shares", rounds: int = 5) -> FaultPlan:
    drawn = draw_plan(seed, peers, rounds, level, has_agent=True, exchange=exchange)
    return replace(drawn, faults=(Alters(at_s=0.0, peer=_LIAR, for_s=2.0 * rounds), *drawn.faults))


def _run(plan: FaultPlan) -> tuple[RunVerdict, SimMesh]:
    with silent_machines():
        return run_plan(plan)


@pytest.mark.parametrize("exchange", ["shares", "chain"])
@pytest.mark.parametrize("peers", [3, 4, 6, 9])
@pytest.mark.parametrize("seed", range(3))
def test_a_device_that_alters_sums_is_found_and_no_round_has_its_values(
    exchange: Exchange, peers: int, seed: int
) -> None:
    verdict, mesh = _run(_plan(seed, peers, exchange=exchange))
    assert not verdict.kind, verdict.problem  # each round's result is the sum, on all devices
    assert len(mesh.rounds) >= 5
    accused = {
        each.peer_id
        for node in mesh.nodes.values()
        if node.holder is not None
        for each in node.machine.trainer.guard.accusations()
    }
    assert accused <= {_LIAR}
    if exchange == "shares":
        assert accused


@pytest.mark.parametrize("seeds", in_portions(range(20), 4))
@pytest.mark.parametrize("exchange", ["shares", "chain", "auto"])
def test_among_other_faults_no_mesh_is_stuck_and_what_is_applied_is_the_sum(
    exchange: Exchange, seeds: list[int]
) -> None:
    with silent_machines():
        verdicts = [run_guarded(_plan(seed, 6, "mild", exchange), 10.0) for seed in seeds]
    assert not [verdict for verdict in verdicts if verdict.kind]


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "level"), [(4, "none"), (5, "mild"), (7, "mild")])
def test_a_device_that_checks_nothing_has_the_others_apply_nothing_altered(
    peers: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Segments._is_altered
    monkeypatch.setattr(Segments, "_is_altered", lambda self, *it: self._me.peer_id != "p1" and looks(self, *it))
    monkeypatch.setattr(SimMesh, "liars", property(lambda _: {_LIAR, "p1"}, lambda *_: None), raising=False)
    with silent_machines():
        verdicts = [run_guarded(_plan(seed, peers, level), 10.0) for seed in range(100, 115)]
    assert not [(verdict.kind, verdict.problem) for verdict in verdicts if verdict.kind]


@pytest.mark.parametrize(("level", "rounds"), [("none", 7), ("mild", 1)])
@pytest.mark.parametrize("peers", [3, 4, 5])
@pytest.mark.parametrize("seed", [1003, 1004, 1009, 1010, 1011])
def test_devices_that_do_not_reach_each_other_apply_nothing_altered(
    peers: int, seed: int, level: str, rounds: int
) -> None:
    """They cannot tell each other their checksums, also where one of them is lost; three devices have one owner."""
    plan = _plan(seed, peers, level, rounds=8)
    verdict, mesh = _run(replace(plan, faults=(*plan.faults, Cut(at_s=0.0, a="p1", b="p2", for_s=30.0))))
    assert not verdict.kind, verdict.problem
    assert len(mesh.rounds) >= rounds


@pytest.mark.parametrize(
    ("peers", "seed", "level"),
    [
        (5, 4012, "mild"),
        (5, 4016, "mild"),
        (5, 7026, "mild"),
        (4, 7129, "hard"),
        (4, 11033, "hard"),
        (6, 11013, "hard"),
    ],
)
def test_an_agent_that_takes_over_counts_no_sum_that_it_cannot_check(peers: int, seed: int, level: str) -> None:
    """Only the agent before knew the checksum of a lost device; a sum is named before it is handed on."""
    plan = _plan(seed, peers, level, "chain", rounds=8)
    cut = (Cut(at_s=0.0, a="p1", b="p2", for_s=30.0),) if level == "mild" else ()
    verdict, _ = _run(replace(plan, faults=(*plan.faults, *cut)))
    assert not verdict.kind, verdict.problem


def test_the_plan_survives_its_file() -> None:
    plan = _plan(1)
    assert load_plan(dump_plan(plan)) == plan
