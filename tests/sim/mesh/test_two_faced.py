"""A member tells some devices another result than others: what most have stands, and it is named and left out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import run_guarded, run_plan
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_plan
from mdl.sim.plans.fault_plan import FaultPlan, TwoFaced, dump_plan, load_plan
from tests.portions import in_portions

_LIAR = "p0"


def _plan(
    seed: int, to: tuple[str, ...], peers: int = 4, level: str = "none", exchange: Exchange = "shares", rounds: int = 5
) -> FaultPlan:
    """It tells no checksums: nobody has to where pieces are coded."""
    drawn = draw_plan(seed, peers, rounds, level, has_agent=True, exchange=exchange)
    lie = TwoFaced(at_s=0.0, peer=_LIAR, to=to, more=0.5, for_s=2.0 * rounds)
    return replace(drawn, faults=(lie, *drawn.faults), compress="int8")


def _run(plan: FaultPlan) -> tuple[RunVerdict, SimMesh]:
    with silent_machines():
        return run_plan(plan)


@pytest.mark.parametrize("seed", range(8))
def test_an_owner_that_tells_one_device_something_else_changes_nothing_and_owns_nothing_from_then_on(seed: int) -> None:
    verdict, mesh = _run(_plan(seed, ("p2",)))
    assert not verdict.kind, verdict.problem  # each round's result is the mean, on all devices
    lied = next(number for number, summary in enumerate(mesh.rounds) if summary.doubts)
    assert {told.split(":")[0] for told in mesh.rounds[lied].doubts} == {"p2", f"p2 says of {_LIAR}"}
    after = [summary.shares for summary in mesh.rounds[lied + 1 :]]
    assert after
    assert all(shares and not shares[_LIAR] for shares in after)


@pytest.mark.parametrize("seed", range(4))
def test_of_three_devices_the_two_that_agree_have_the_round(seed: int) -> None:
    verdict, mesh = _run(_plan(seed, ("p1",), peers=3))
    assert not verdict.kind, verdict.problem
    assert any(f"p1 says of {_LIAR}" in told for summary in mesh.rounds for told in summary.doubts)


@pytest.mark.parametrize("seeds", in_portions(range(20), 4))
@pytest.mark.parametrize("to", [("p2",), ("p2", "p4")])
@pytest.mark.parametrize("exchange", ["shares", "chain"])
def test_among_other_faults_no_mesh_is_stuck_and_what_is_applied_is_the_mean(
    exchange: Exchange, to: tuple[str, ...], seeds: list[int]
) -> None:
    with silent_machines():
        verdicts = [run_guarded(_plan(seed, to, 6, "mild", exchange), 10.0) for seed in seeds]
    assert not [verdict for verdict in verdicts if verdict.kind]


def test_of_two_devices_that_differ_the_round_is_that_of_the_first_and_both_hear_of_it() -> None:
    _, mesh = _run(_plan(1, ("p1",), peers=2))
    assert any(_LIAR in told for summary in mesh.rounds for told in summary.doubts)


@pytest.mark.parametrize("exchange", ["shares", "chain"])
@pytest.mark.parametrize("seed", range(4))
def test_a_device_that_tells_no_checksums_where_nothing_is_coded_is_in_no_round(seed: int, exchange: Exchange) -> None:
    verdict, mesh = _run(replace(_plan(seed, ("p2",), exchange=exchange), compress="none"))
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
