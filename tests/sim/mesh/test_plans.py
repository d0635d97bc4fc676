"""Hard plans over many seeds: nothing lost, nothing counted twice, every mesh gets through."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.errors import LocalProtocolError
from mdl.peers.trials import run_plan as simulate
from mdl.peers.trials.campaign import Campaign, Totals, run_campaign, silent_machines
from mdl.peers.trials.run_plan import build_mesh, run_guarded, tell_plan
from mdl.peers.trials.story_file import tell_story
from mdl.protocol.machine import Received, Send
from mdl.protocol.round_messages import BroadcastOrdered, RoundClosed
from mdl.sim.mesh.driver import SimMesh, Watch
from mdl.sim.mesh.invariants import patience_s
from mdl.sim.mesh.process import Node
from mdl.sim.plans.draw_plan import LENGTHS, LEVELS, SEGMENTS_SAY, SIZES, STEPS_OF_SEGMENTS, draw_plan, draw_wide
from mdl.sim.plans.fault_plan import (
    ANYBODY,
    ITSELF,
    Burst,
    Crash,
    CrashOn,
    Cut,
    DiskFull,
    Fault,
    FaultPlan,
    Restart,
    Split,
    Step,
    Suspend,
    dump_plan,
    load_plan,
    shrink_plan,
)
from tests.portions import in_portions

ROOT = Path(__file__).resolve().parents[3]
PLANS = sorted(Path(__file__).with_name("plans").glob("*.json"))
_BLOCK = 50
# Ends with the whole story, so that two processes can be compared; sets of strings have another order in each.
_TELL = """
import logging
from mdl.peers.trials.campaign import Campaign
from mdl.peers.trials.run_plan import tell_plan
from mdl.peers.trials.story_file import tell_story
logging.disable(logging.CRITICAL)
for seed in (3, 7, 14):
    verdict, mesh = tell_plan(Campaign().plan(seed))
    print(verdict)
    print("\\n".join(tell_story(mesh.story)))
"""


_ANEW = (Crash(at_s=0.0, peer=ITSELF), Restart(at_s=0.5, peer=ITSELF))


def _failures(totals: Totals) -> list[str]:
    return [f"seed {verdict.seed}: {verdict.kind}: {verdict.problem}" for verdict in totals.failing]


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in (1, 2))])
def test_hard_plans_lose_nothing_and_count_nothing_twice(block: int) -> None:
    totals = run_campaign(Campaign(), range(block * _BLOCK, (block + 1) * _BLOCK), processes=1)
    assert _failures(totals) == []
    assert (totals.seeds, totals.lost, totals.double, totals.stuck) == (_BLOCK, 0, 0, 0)
    assert totals.rounds_closed >= 3 * (_BLOCK - totals.without_quorum)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_a_stored_plan_gets_through(plan: Path) -> None:
    """What once failed, or catches a broken rule (`test_teeth.py`); README.md beside the plans tells why."""
    with silent_machines():
        verdict = run_guarded(load_plan(plan.read_bytes()))
    assert (verdict.kind, verdict.problem) == ("", "")


def test_patience_grows_with_rounds_and_loss() -> None:
    """Of 6 devices and 10 rounds one plan in forty needs more than a minute after its last fault: 6x10-9700047 does."""
    assert (
        patience_s(FaultPlan(1, 6, 1))
        < 70
        < patience_s(FaultPlan(1, 6, 10))
        < patience_s(FaultPlan(1, 6, 10, loss=0.3))
    )


def test_a_stuck_mesh_tells_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nothing is wrong but the patience of the judge: the mesh is in the middle of round 5."""
    monkeypatch.setattr(simulate, "patience_s", lambda plan: 16.0)
    with silent_machines():
        verdict = run_guarded(load_plan((PLANS[0].parent / "6x10-9700068.json").read_bytes()))
    assert verdict.kind == "stuck"
    assert re.search(r"in office: p\d by the view of (p\d ?)+, (aggregating|broadcasting|gathering)", verdict.problem)
    assert [line.partition("/")[0] for line in verdict.waits] == [f"p{number}" for number in range(6)]
    leads = [line for line in verdict.waits if "leads under term" in line]
    obeys = [line for line in verdict.waits if "gives it up in" in line]
    assert len(leads) + len(obeys) == 6
    for claim in (r"round \d of base (p\d ?)+, moved [\d.]+ s ago", r"p\d \(heard [\d.]+ s ago, .*at \d", "acts in "):
        assert re.search(claim, leads[0])
    assert all(
        re.search(r": at \d of p0\.1\.\d+, .*reports or asks again in [\d.]+ s; obeys p\d", line) for line in obeys
    )


@pytest.mark.parametrize("seeds", in_portions(range(len(SIZES) * len(LENGTHS)), 5))
def test_wide_plans_lose_nothing_and_count_nothing_twice(seeds: list[int]) -> None:
    """Each size of 2 to 9 devices with each length of 1 to 12 rounds once, in both portions together."""
    totals = run_campaign(Campaign(wide=True), seeds, processes=1)
    assert _failures(totals) == []
    assert {size.seeds for size in totals.by_size()} == {1}
    assert len(totals.by_size()) == len(seeds)


class _CutOffRoot(Watch):
    """Whoever is to broadcast round 2 loses its links to the other devices at that moment, not those to the agent."""

    def __init__(self, mesh: SimMesh, peer_ids: list[str]) -> None:
        self.mesh, self.peer_ids, self.root = mesh, peer_ids, ""

    def saying(self, node: Node, send: Send) -> None:
        message = send.message
        if isinstance(message, BroadcastOrdered) and message.round_id == 2 and not self.root:
            self.root = message.order[0].peer_id
            for other in self.peer_ids:
                if other != self.root:
                    self.mesh.network.cut(other, self.root)
                    self.mesh.network.cut(self.root, other)


def test_nobody_decides_alone_whom_only_the_agent_can_reach() -> None:
    """It has the round's result, and all who decide are heard; but nobody else can have it, if it dies."""
    plan = FaultPlan(1, 3, 3, on_partition="wait")
    mesh, _ = build_mesh(plan)
    mesh.watch = watch = _CutOffRoot(mesh, plan.peer_ids())
    with silent_machines():
        mesh.run(25.0)
    rounds = {peer_id: node.holder.round_id for peer_id, node in mesh.nodes.items() if node.holder}
    assert rounds.pop(watch.root) == 1
    assert min(rounds.values()) >= 3


@pytest.mark.parametrize("policy", ["fifo", "tree", "ring"])
def test_every_policy_gets_through_hard_plans(policy: str) -> None:
    assert _failures(run_campaign(Campaign(policy=policy), range(12), processes=1)) == []


@pytest.mark.parametrize("peers", [1, 2, 3, 9])
def test_meshes_of_any_size_get_through(peers: int) -> None:
    assert _failures(run_campaign(Campaign(peers=peers), range(8), processes=1)) == []


def test_without_faults_no_training_is_lost_for_any_reason() -> None:
    totals = run_campaign(Campaign(level="none"), range(8), processes=1)
    assert (_failures(totals), totals.lost_with_owner, totals.rounds_closed) == ([], 0, 24)


@pytest.mark.slow
def test_the_same_seed_tells_the_same_story_in_another_process() -> None:
    def run(hash_seed: str) -> bytes:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", _TELL], capture_output=True, timeout=60, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    one = run("1")
    assert len(one) > 10_000
    assert one == run("2")


def test_another_seed_tells_another_story() -> None:
    plan = Campaign().plan(3)
    with silent_machines():
        one, another = (list(tell_story(tell_plan(p)[1].story or [])) for p in (plan, replace(plan, seed=4)))
    assert one != another


@pytest.mark.parametrize("level", LEVELS)
def test_a_plan_is_the_same_for_its_seed_and_survives_its_file(level: str) -> None:
    for seed in range(200):
        plan = draw_plan(seed, 6, 3, level)
        assert load_plan(dump_plan(plan)) == plan == draw_plan(seed, 6, 3, level)


def test_plans_keep_what_a_mesh_is_promised() -> None:
    plans = [draw_plan(seed, 6, 3, "hard") for seed in range(2000)]
    assert all(len(plan.stays_away()) <= 2 for plan in plans)
    assert any(plan.stays_away() for plan in plans)
    assert {type(fault).__name__ for plan in plans for fault in plan.faults} >= {
        "Crash", "Restart", "Suspend", "Cut", "CutOneWay", "Split", "ClockJump", "DiskFull", "TornFile", "CrashOn",
    }  # fmt: skip
    assert 0.25 < max(plan.loss for plan in plans) <= 0.3


def test_wide_plans_have_all_sizes_and_faults_in_every_round() -> None:
    plans = [draw_wide(seed, "hard") for seed in range(960)]
    assert Counter((plan.peers, plan.rounds) for plan in plans) == {(n, r): 10 for n in SIZES for r in LENGTHS}
    assert all(load_plan(dump_plan(plan)) == plan == draw_wide(plan.seed, "hard") for plan in plans[:96])
    assert all(len(plan.stays_away()) <= (plan.peers - 1) // 2 for plan in plans)
    assert {(plan.has_agent, plan.on_partition) for plan in plans} == {
        (agent, partition) for agent in (False, True) for partition in ("wait", "continue")
    }
    bursts = [fault for plan in plans for fault in plan.faults if isinstance(fault, Burst)]
    assert {burst.step for burst in bursts} == set(Step) - set(STEPS_OF_SEGMENTS)
    assert {burst.round_id for burst in bursts} == set(LENGTHS)
    assert {type(fault) for burst in bursts for fault in burst.faults} == {Crash, Restart, Suspend, Split, DiskFull}
    assert 0.2 < sum(plan.late > 0 for plan in plans) / len(plans) < 0.3
    by_round = [sum(len(plan.faults) for plan in plans if plan.rounds == rounds) / 80 for rounds in LENGTHS]
    assert by_round[0] > 2 * (by_round[11] - by_round[0]) / 11 > 1


def test_plans_in_segments_have_moments_of_their_own() -> None:
    plans = [draw_wide(seed, "hard", exchange="shares") for seed in range(960)]
    moments = [fault.message for plan in plans for fault in plan.faults if isinstance(fault, CrashOn)]
    assert set(moments) > set(SEGMENTS_SAY)
    assert {fault.step for plan in plans for fault in plan.faults if isinstance(fault, Burst)} == set(Step)
    assert all(load_plan(dump_plan(plan)) == plan for plan in plans[:200])


def test_plans_of_hops_are_what_they_were() -> None:
    """Stored figures name seeds: a seed gives the plan that it gave when they were measured."""
    digest = hashlib.sha256()
    for seed in range(200):
        for plan in (draw_plan(seed, 6, 3, "mild"), draw_plan(seed, 6, 3, "hard"), draw_wide(seed, "hard")):
            since = b'  "compress": "none",\n  "outer_momentum": 0.0,\n  "overlap": false,\n  "slow": false,\n'
            assert since in dump_plan(plan)
            digest.update(dump_plan(plan).replace(since, b""))
    assert digest.hexdigest()[:16] == "84745fbf77185229"


def test_any_exchange_takes_each_in_turn() -> None:
    plans = [Campaign(wide=True, exchange="any").plan(seed) for seed in range(288)]
    assert [plan.exchange for plan in plans] == ["chain"] * 96 + ["shares"] * 96 + ["auto"] * 96
    assert plans[:96] == [draw_wide(seed, "hard") for seed in range(96)]


@pytest.mark.parametrize("seeds", in_portions(range(2 * _BLOCK), 5))
def test_hard_plans_in_segments_lose_nothing_and_count_nothing_twice(seeds: list[int]) -> None:
    totals = run_campaign(Campaign(exchange="shares"), seeds, processes=1)
    assert _failures(totals) == []
    assert totals.rounds_closed >= 3 * (len(seeds) - totals.without_quorum)


@pytest.mark.parametrize("step", Step)
def test_a_burst_comes_at_its_step(step: Step) -> None:
    burst = Burst(at_s=0.0, peer=ANYBODY, round_id=2, step=step, nth=1, before=True, faults=_ANEW)
    with silent_machines():
        exchange: Exchange = "shares" if step in STEPS_OF_SEGMENTS else "chain"
        verdict, mesh = tell_plan(FaultPlan(1, 4, 3, exchange=exchange, faults=(burst,)))
    assert not verdict.kind
    told = [(place, line.event) for place, line in enumerate(mesh.story or []) if isinstance(line.event, str)]
    place, begins = told[0]
    hit = begins.rpartition("by ")[2]
    assert begins == f"a burst before step {step.value} of round 2, by {hit}"
    assert [text for _, text in told[1:]] == [f"{hit} crashes", f"{hit} starts again"]
    before = [line for line in (mesh.story or [])[:place] if line.who and line.who.peer_id == hit]
    closed = [line for line in before if isinstance(line.event, Received) and type(line.event.message) is RoundClosed]
    assert len(closed) == (0 if hit == "agent" else 1)  # of round 1


class _Comet(Fault, frozen=True):
    """A kind of fault that nobody knows."""


def test_a_fault_of_an_unknown_kind_is_refused() -> None:
    plan = FaultPlan(1, 3, 1, faults=(_Comet(at_s=0.1),))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="unknown kind: _Comet"):
        shrink_plan(plan, lambda smaller: bool(smaller.faults))
    with silent_machines():
        verdict = run_guarded(plan)
    assert (verdict.kind, verdict.problem) == ("LocalProtocolError", "a fault of an unknown kind: _Comet")


def test_who_crashes_once_more_after_its_restart_stays_away() -> None:
    faults = (Crash(at_s=1.0, peer="p0"), Restart(at_s=2.0, peer="p0"), Crash(at_s=1.0, peer="p1"))
    assert FaultPlan(1, 6, 3, faults=faults).stays_away() == {"p1"}
    assert FaultPlan(1, 6, 3, faults=(*faults, Crash(at_s=3.0, peer="p0"))).stays_away() == {"p0", "p1"}


def test_a_failing_plan_is_shrunk_to_what_makes_it_fail() -> None:
    cause = Cut(at_s=2.0, a="p1", b="p2", for_s=1.0)
    noise = (Crash(at_s=1.0, peer="p5"), Restart(at_s=3.0, peer="p5"), Suspend(at_s=0.5, peer="p0", for_s=1.0))
    plan = FaultPlan(1, 6, 3, loss=0.2, jitter_s=0.1, late=0.1, faults=(noise[2], noise[0], cause, noise[1]))
    shortest = shrink_plan(plan, lambda smaller: cause in smaller.faults)
    assert shortest == FaultPlan(1, 3, 1, has_agent=False, faults=(cause,))


def test_shrinking_never_leaves_a_crash_without_its_restart() -> None:
    crash, restart = Crash(at_s=1.0, peer="p1"), Restart(at_s=3.0, peer="p1")
    seen: list[FaultPlan] = []

    def fails(plan: FaultPlan) -> bool:
        seen.append(plan)
        return len(plan.faults) == 2

    shrink_plan(FaultPlan(1, 4, 2, faults=(crash, restart)), fails)
    assert all(plan.faults in ((), (crash, restart)) for plan in seen)


def test_a_plan_that_is_run_twice_gives_one_verdict() -> None:
    plan = Campaign().plan(11)
    with silent_machines():
        assert run_guarded(plan) == run_guarded(plan) == tell_plan(plan)[0]
