"""A member tells some devices another result than others: they refuse it, it is named, and all have the mean."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import run_guarded, run_plan
from mdl.protocol.coding import CODINGS, Coding
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_plan
from mdl.sim.plans.fault_plan import FaultPlan, TwoFaced, dump_plan, load_plan
from tests.portions import in_portions

_LIAR = "p0"


def _plan(
    seed: int, to: tuple[str, ...], peers: int = 4, level: str = "none", exchange: Exchange = "shares", rounds: int = 5
) -> FaultPlan:
    drawn = draw_plan(seed, peers, rounds, level, has_agent=True, exchange=exchange)
    lie = TwoFaced(at_s=0.0, peer=_LIAR, to=to, more=0.5, for_s=2.0 * rounds)
    return replace(drawn, faults=(lie, *drawn.faults))


def _run(plan: FaultPlan) -> tuple[RunVerdict, SimMesh]:
    with silent_machines():
        return run_plan(plan)


@pytest.mark.slow
@pytest.mark.parametrize("compress", CODINGS)
@pytest.mark.parametrize("peers", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_an_owner_that_tells_one_device_something_else_is_named_and_all_apply_the_mean(
    seed: int, peers: int, compress: Coding
) -> None:
    verdict, mesh = _run(replace(_plan(seed, ("p1",), peers), compress=compress))
    assert not verdict.kind, verdict.problem
    assert len(mesh.rounds) >= (5 if peers > 2 else 3)
    told = [line for summary in mesh.rounds for line in summary.doubts]
    assert any(line.startswith(f"p1 says of {_LIAR}: not the sum of its deltas") for line in told)
    assert {line.split(":")[0] for line in told} == {f"p1 says of {_LIAR}"}


@pytest.mark.parametrize("seeds", in_portions(range(20), 4))
@pytest.mark.parametrize("to", [("p2",), ("p2", "p4")])
@pytest.mark.parametrize("exchange", ["shares", "chain"])
def test_among_other_faults_no_mesh_is_stuck_and_what_is_applied_is_the_mean(
    exchange: Exchange, to: tuple[str, ...], seeds: list[int]
) -> None:
    with silent_machines():
        verdicts = [run_guarded(_plan(seed, to, 6, "mild", exchange), 10.0) for seed in seeds]
    assert not [verdict for verdict in verdicts if verdict.kind]


@pytest.mark.parametrize("exchange", ["shares", "chain"])
@pytest.mark.parametrize("seed", range(4))
def test_a_device_that_tells_no_checksums_is_in_no_round(seed: int, exchange: Exchange) -> None:
    plan = _plan(seed, ("p2",), exchange=exchange)
    verdict, mesh = _run(replace(plan, faults=tuple(replace(fault, hides=True) for fault in plan.faults)))
    assert not verdict.kind, verdict.problem
    assert len(mesh.rounds) >= 5
    lied = [summary for summary in mesh.rounds if _LIAR in summary.lost]
    assert lied
    told = {device.lost for summary in lied for device in summary.devices if device.peer_id == _LIAR}
    assert told == {"it does not tell the checksum of its delta"}
    assert all(_LIAR not in summary.contributors for summary in lied)


def test_the_plan_survives_its_file() -> None:
    plan = _plan(1, ("p1", "p2"))
    assert load_plan(dump_plan(plan)) == plan
