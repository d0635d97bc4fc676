"""What two options gain: a round that ends without its slowest, and hops that let go of their ends when they stall."""

from __future__ import annotations

import sys
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from benchmarks.chain.early_close import play_with_quorum
from mdl.devices.scenario import Scenario
from mdl.devices.usage import active_end_s, active_s
from mdl.scheduler.policies.chain import Policy, Wait
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.judging import half_width
from mdl.scheduler.study.play import play, view_of
from mdl.sim.timing.iteration import Iteration, TimedHop
from mdl.sim.timing.scenario import draw_scenario

# How many of nine a round waits for; and when it goes on without those who still train: seconds after its opening,
# where half of the devices are ready within half a second and stragglers need one to four seconds more.
_QUORA = (8 / 9, 7 / 9)
_DEADLINES_S = (1.5, 2.5)
_LEAST_READY = 0.75
# The planner takes seconds a round at N = 16.
_DETACHED = {9: ("greedy", "dp", "dqn"), 16: ("greedy", "dqn")}


def measure_quorum(count: int, name: str = "dqn") -> dict[str, Any]:
    """Time saved, and contributions left out, N = 9; under one policy."""
    policy, found = make_policy(name), {}
    for family in ("paper", "hetero", "dynamic"):
        scenarios = [draw_scenario(family, 9, seed) for seed in range(count)]
        whole_s = [play(scenario, policy).makespan_s for scenario in scenarios]
        row: dict[str, Any] = {}
        for quorum in _QUORA:
            closed = [play_with_quorum(scenario, policy, quorum, 0.0) for scenario in scenarios]
            left_out = [9 - each.contributions for each in closed]
            row[f"{round(9 * quorum)} of 9"] = _saved([each.ended_s for each in closed], whole_s, left_out)
        for deadline_s in _DEADLINES_S:
            played = [play(_leave_out_the_late(scenario, deadline_s), policy) for scenario in scenarios]
            left_out = [len(each.lost) for each in played]
            row[f"deadline of {deadline_s:g} s"] = _saved([each.makespan_s for each in played], whole_s, left_out)
        found[family] = row
        print(f"quorum: {family} done", file=sys.stderr, flush=True)
    return {"by_family": found, "policy": name, "n": 9, "scenarios": count}


def measure_detaching(count: int) -> dict[str, Any]:
    """How much less time rounds of the dynamic family take if hops that stand still let go of their ends.

    Each way against the best policy that leaves hops alone. "in hindsight": for each scenario the best of all ways,
    against the best of those policies: more than anybody could choose beforehand.
    """
    found: dict[str, Any] = {}
    for n, names in _DETACHED.items():
        scenarios = [draw_scenario("dynamic", n, seed) for seed in range(count)]
        without = {name: [play(each, make_policy(name)).makespan_s for each in scenarios] for name in names}
        usual = min(without, key=lambda name: fmean(without[name]))
        tried = {
            f"{name}, {how}": [play_detaching(each, make_policy(name), resume) for each in scenarios]
            for name in names
            for how, resume in (("resumed first", True), ("left to the policy", False))
        }
        row = {way: _saved(taken_s, without[usual]) for way, taken_s in tried.items()}
        best_without = [min(each) for each in zip(*without.values(), strict=True)]
        best = [min(each) for each in zip(best_without, *tried.values(), strict=True)]
        found[str(n)] = {"against": usual} | row | {"in hindsight": _saved(best, best_without)}
        print(f"detaching: N = {n} done", file=sys.stderr, flush=True)
    return {"less_time_by_n": found, "scenarios": count}


class Detaching(Iteration):
    """A hop lets go of both ends as soon as one of them is busy; started again, it goes on from where it was.

    More than a real mesh could have: what was sent is never lost, even if the sender's load has changed since, and to
    let go and to resume cost nothing.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.sent_s: dict[tuple[int, int], float] = {}

    def time_hop(self, sender: int, receiver: int, start_s: float) -> TimedHop:
        whole = super().time_hop(sender, receiver, start_s)
        transfer_s = max(0.0, whole.transfer_s - self.sent_s.get((sender, receiver), 0.0))
        busy = (self.scenario.devices[sender].busy, self.scenario.devices[receiver].busy)
        sent_s = active_end_s(busy, start_s, transfer_s)
        merged_s = active_end_s(busy[1:], sent_s, whole.merge_s)
        return TimedHop(sender, receiver, start_s, sent_s, merged_s, transfer_s, whole.merge_s)

    def advance(self) -> bool:
        moved = super().advance()
        for hop in [hop for hop in self.hops if hop.sent_s > self.now_s]:
            if any(self._period(end) for end in (hop.sender, hop.receiver)):
                self._detach(hop)
        return moved

    def _detach(self, hop: TimedHop) -> None:
        busy = tuple(self.scenario.devices[end].busy for end in (hop.sender, hop.receiver))
        pair = hop.sender, hop.receiver
        self.sent_s[pair] = self.sent_s.get(pair, 0.0) + active_s(busy, hop.start_s, self.now_s)
        self.hops.remove(hop)
        for end in pair:
            self._devices[end].hop, self._devices[end].free_since_s = None, self.now_s


def play_detaching(scenario: Scenario, policy: Policy, resume: bool) -> float:
    """The makespan. resume: a detached hop goes on as soon as both ends are free, before the policy is asked."""
    iteration = Detaching(scenario)
    while not iteration.ended:
        for pair in iteration.sent_s if resume else ():
            if set(pair) <= set(iteration.idle()):
                iteration.start(*pair)
        while len(iteration.idle()) >= 2:
            decision = policy.decide(view_of(iteration))
            if isinstance(decision, Wait):
                break
            iteration.start(int(decision.sender), int(decision.receiver))
        if not iteration.advance():
            break
    return iteration.makespan_s


def _leave_out_the_late(scenario: Scenario, deadline_s: float) -> Scenario:
    """Lose devices that still train at the deadline for this round, if three quarters are ready."""
    late = [device.ready_s > deadline_s for device in scenario.devices]
    if sum(late) > (1.0 - _LEAST_READY) * len(late):
        return scenario
    devices = (
        replace(device, dies_at_s=deadline_s if is_late else None)
        for device, is_late in zip(scenario.devices, late, strict=True)
    )
    return replace(scenario, devices=tuple(devices))


def _saved(values: list[float], whole: list[float], left_out: list[int] | None = None) -> dict[str, float]:
    """Percent of the mean, with the 95 % interval of the paired differences."""
    differences = [all_s - value for value, all_s in zip(values, whole, strict=True)]
    scale = 100.0 / fmean(whole)
    told = {
        "less_time_percent": round(scale * fmean(differences), 2),
        "interval95": round(scale * half_width(differences), 2),
    }
    return told | ({} if left_out is None else {"left_out": round(fmean(left_out), 3)})
