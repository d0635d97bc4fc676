"""Hard plans over many seeds: nothing lost, nothing counted twice, every mesh gets through."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from mdl.machine import Send
from mdl.messages import BroadcastOrdered
from peers import simulate
from peers.campaign import Campaign, Totals, run_campaign, silent_machines
from peers.simulate import build_mesh, run_guarded, tell_plan
from sim.faults import LEVELS, Crash, Cut, FaultPlan, Restart, Suspend, draw_plan, dump_plan, load_plan
from sim.mesh import SimMesh, Watch
from sim.node import Node
from sim.shrink import shrink_plan
from sim.telling import tell_story
from sim.verdict import patience_s

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = 50
# Ends with the whole story, so that two processes can be compared; sets of strings have another order in each.
_TELL = """
import logging
from peers.campaign import Campaign
from peers.simulate import tell_plan
from sim.telling import tell_story
logging.disable(logging.CRITICAL)
for seed in (3, 7, 14):
    verdict, mesh = tell_plan(Campaign().plan(seed))
    print(verdict)
    print("\\n".join(tell_story(mesh.story)))
"""


def _failures(totals: Totals) -> list[str]:
    return [f"seed {verdict.seed}: {verdict.kind}: {verdict.problem}" for verdict in totals.failing]


@pytest.mark.parametrize("block", range(6))
def test_hard_plans_lose_nothing_and_count_nothing_twice(block: int) -> None:
    totals = run_campaign(Campaign(), range(block * _BLOCK, (block + 1) * _BLOCK), processes=1)
    assert _failures(totals) == []
    assert (totals.seeds, totals.lost, totals.double, totals.stuck) == (_BLOCK, 0, 0, 0)
    assert totals.rounds_closed >= 3 * (_BLOCK - totals.without_quorum)


@pytest.mark.parametrize(
    "seed",
    [
        2149,
        13964,
        20586,
        23119,
        28615,
        29500,
        30551,
        64407,
        70359,
        70661,
        70964,
        73791,
        82569,
        83315,
        84474,
        85856,
        86998,
        90941,
        96317,
        201911,
        208281,
    ],
)
def test_plans_that_once_failed_do_not(seed: int) -> None:
    assert _failures(run_campaign(Campaign(), range(seed, seed + 1), processes=1)) == []


def test_patience_grows_with_rounds_and_loss() -> None:
    """Of 6 devices and 10 rounds at 30 % loss one in forty needs more than a minute (seed 9700047: 69 s)."""
    assert (
        patience_s(FaultPlan(1, 6, 1))
        < 70
        < patience_s(FaultPlan(1, 6, 10))
        < patience_s(FaultPlan(1, 6, 10, loss=0.3))
    )
    assert _failures(run_campaign(Campaign(6, 10), range(9700047, 9700048), processes=1)) == []


def test_a_stuck_mesh_tells_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nothing is wrong but the patience of the judge: seed 9700068 is in the middle of round 5."""
    monkeypatch.setattr(simulate, "patience_s", lambda plan: 20.0)
    with silent_machines():
        verdict = run_guarded(Campaign(6, 10).plan(9700068))
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


def test_who_crashes_once_more_after_its_restart_stays_away() -> None:
    faults = (Crash(at_s=1.0, peer="p0"), Restart(at_s=2.0, peer="p0"), Crash(at_s=1.0, peer="p1"))
    assert FaultPlan(1, 6, 3, faults=faults).stays_away() == {"p1"}
    assert FaultPlan(1, 6, 3, faults=(*faults, Crash(at_s=3.0, peer="p0"))).stays_away() == {"p0", "p1"}


def test_a_failing_plan_is_shrunk_to_what_makes_it_fail() -> None:
    cause = Cut(at_s=2.0, a="p1", b="p2", for_s=1.0)
    noise = (Crash(at_s=1.0, peer="p5"), Restart(at_s=3.0, peer="p5"), Suspend(at_s=0.5, peer="p0", for_s=1.0))
    plan = FaultPlan(1, 6, 3, loss=0.2, jitter_s=0.1, faults=(noise[2], noise[0], cause, noise[1]))
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


# Plans that have failed once: a fork left for the w that it began at, with an attempt that was forgotten (42, 831); a
# sender taken for free after its receiver was started anew (576, 1321); an agent that frees itself of a hop (1961); a
# share in a fork that is gone with its owner (4776); an agent that is started anew under the same term (4869); two
# agents that start a mesh each, since neither was heard for long enough (5889, 9039, 9214); work kept back (829).
FAILED_ONCE = (42, 468, 576, 655, 829, 831, 1321, 1961, 2777, 4776, 4869, 5889, 9039, 9214)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_plan_that_failed_once_does_not_fail(seed: int) -> None:
    assert _failures(run_campaign(Campaign(), range(seed, seed + 1), processes=1)) == []
