"""Devices whose users end them, in the middle of whatever they do: the others go on, and nothing of theirs is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mdl.peers.roles.agent.conductor import Conductor
from mdl.peers.trials.campaign import Campaign, run_campaign, silent_machines
from mdl.peers.trials.run_plan import build_mesh, run_guarded, run_plan
from mdl.protocol.machine import StopRequested
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict, judge
from mdl.sim.plans.draw_plan import draw_plan, draw_wide, with_leaves
from mdl.sim.plans.fault_plan import (
    AGENT_NODE,
    AnyFault,
    Burst,
    FaultPlan,
    Leave,
    Restart,
    dump_plan,
    load_plan,
    shrink_plan,
)
from tests.portions import in_portions

_LEFT_WITH_A_DELTA_READY = Path(__file__).with_name("plans") / "2x4-left-111.json"


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_machines():
        yield


def _run(*faults: AnyFault, peers: int = 3, rounds: int = 5, has_agent: bool = True) -> tuple[RunVerdict, SimMesh]:
    plan = FaultPlan(1, peers, rounds, has_agent=has_agent, faults=faults)
    assert load_plan(dump_plan(plan)) == plan
    return run_plan(plan)


def _contributors(mesh: SimMesh) -> list[set[str]]:
    closed = sorted(mesh.accounts.closed.values(), key=lambda entry: entry.round_id)
    return [{who.peer_id for who in entry.contributors} for entry in closed[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", in_portions(range(96), 5))
@pytest.mark.parametrize("campaign", [Campaign(2, 4, leaves=True), Campaign(wide=True, leaves=True)])
def test_whoever_leaves_the_others_lose_nothing_and_go_on(campaign: Campaign, seeds: list[int]) -> None:
    totals = run_campaign(campaign, seeds, processes=1)
    assert [f"seed {verdict.seed}: {verdict.problem}" for verdict in totals.failing] == []


def test_who_leads_two_devices_may_leave_when_the_other_has_its_delta_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one decides alone. It had not answered its own new term yet, and so gave its round up, without end."""
    plan = load_plan(_LEFT_WITH_A_DELTA_READY.read_bytes())
    assert run_guarded(plan).kind == ""
    as_it_is = Conductor._has_majority

    def lacks_what_is_not_promised(self: Conductor, voters: set[str], now: float) -> bool:
        here = [member for member in self._distribution.recipients() if member.peer_id in voters]
        promised = {member.peer_id for member in here if member.report.term >= self.ledger.term}
        return as_it_is(self, promised, now)

    monkeypatch.setattr(Conductor, "_has_majority", lacks_what_is_not_promised)
    assert run_guarded(plan, 1.0).kind == "hang"


def test_the_last_two_devices_may_leave_at_once_and_come_back() -> None:
    leave = [Leave(at_s=4.0, peer="p0"), Leave(at_s=4.01, peer="p1")]
    back = [Restart(at_s=7.0, peer="p0"), Restart(at_s=7.5, peer="p1")]
    verdict, mesh = _run(*leave, *back, peers=2, has_agent=False)
    assert (verdict.kind, verdict.rounds_closed >= 5) == ("", True)
    assert _contributors(mesh)[-1] == {"p0", "p1"}


def test_one_who_leaves_is_not_waited_for_and_a_dedicated_agent_is_left_alone() -> None:
    verdict, mesh = _run(Leave(at_s=3.0, peer="p2"), Leave(at_s=3.0, peer=AGENT_NODE))
    assert (verdict.kind, verdict.lost) == ("", 0)
    finished = {peer_id: node.finished and node.finished.exit_code for peer_id, node in mesh.nodes.items()}
    assert finished == {"p0": None, "p1": None, "p2": 130, AGENT_NODE: None}
    assert _contributors(mesh)[-1] == {"p0", "p1"}


def test_who_ends_without_its_user_is_a_finding() -> None:
    plan = FaultPlan(1, 3, 3)
    mesh, _ = build_mesh(plan)
    mesh.run(2.0)
    mesh.post("p2", StopRequested())
    mesh.run(15.0)
    assert judge(mesh, plan, True, lambda node: node.peer_id).problem == "p2 left: 130"


def test_drawn_leaves_change_nothing_else_and_leave_a_majority() -> None:
    left = ends = 0
    for seed in range(200):
        for plan in (draw_wide(seed, "hard"), draw_plan(seed, 5, 4, "mild")):
            drawn = with_leaves(plan)
            kept = tuple(fault for fault in drawn.faults if fault in plan.faults)
            assert (msgspec.structs.replace(drawn, faults=kept), drawn) == (plan, with_leaves(plan))
            assert len(drawn.stays_away()) <= max(len(plan.stays_away()), (plan.peers - 1) // 2)
            assert drawn.has_leaves()
            assert not plan.has_leaves()
            inner = [each for fault in drawn.faults if isinstance(fault, Burst) for each in fault.faults]
            left += sum(isinstance(fault, Leave) for fault in (*drawn.faults, *inner))
            ends += len(drawn.stays_away()) > len(plan.stays_away())
    assert left > 600
    assert ends > 10


def test_a_shorter_plan_keeps_who_is_back_with_who_leaves() -> None:
    plan = FaultPlan(1, 4, 3, faults=(Leave(at_s=1.0, peer="p1"), Restart(at_s=2.0, peer="p1")))
    shortest = shrink_plan(plan, lambda smaller: smaller.has_leaves())
    assert [type(fault) for fault in shortest.faults] == [Leave, Restart]
