"""Policies on the simulated mesh: Fig. 10, families and N against the optimum, energy, dying devices, times."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean, median, pvariance, stdev
from typing import Any

from benchmarks.chain.many_rounds import draw_rounds, play_rounds
from benchmarks.chain.optimum import PaperOptimum
from benchmarks.chain.paper import train_or_load
from mdl.devices.scenario import Scenario
from mdl.scheduler.paper.policy import PaperRules
from mdl.scheduler.policies.chain import ChainView, Decision, Policy
from mdl.scheduler.policies.fixed import FollowOrder
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.judging import half_width
from mdl.scheduler.study.optimal import solve
from mdl.scheduler.study.play import PlayedScenario, play
from mdl.sim.timing.scenario import draw_scenario

Keep = Callable[[dict[str, Any]], None]

CELLS = (
    *(("paper", n) for n in range(3, 10)),
    ("hetero", 5),
    ("hetero", 9),
    ("dynamic", 5),
    ("dynamic", 9),
    ("hetero", 16),
    ("dynamic", 16),
    ("hetero", 32),
    ("dynamic", 32),
    ("hetero", 64),
    ("dynamic", 64),
)
# Stand for the literal variant among the names of policies: the optima of its reward, and its DQN (a minute to train).
LITERAL = ("eq7", "paper")
PAPER_DQN = "paper: DQN (MLP, TDGE)"
_LARGEST_SOLVED = 9
# From here on all but these play the first third of the scenarios: the figures that are claimed are theirs.
_LARGE = 32
_CLAIMED = ("greedy-risk", "greedy", "dqn")
_ROUNDS = 20
_PAPER_TRAININGS = 4
_LEAST_DECISIONS = 200
# What 4.4.4 states of its scheduler, in percent, averaged over N: less latency (Fig. 10a), less energy variance (10b).
_PAPER_LATENCY = {"tree": 23.0, "ring": 53.0}
_PAPER_ENERGY = {"tree": 40.0}


class Timed:
    """A policy whose decisions are timed in CPU seconds."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self.seconds: list[float] = []

    def decide(self, view: ChainView) -> Decision:
        began = time.process_time()
        decision = self._policy.decide(view)
        self.seconds.append(time.process_time() - began)
        return decision


@dataclass
class Scores:
    """One policy on the scenarios of a cell, in order. quit: where it picked what cannot be, and was helped out."""

    makespans_s: list[float] = field(default_factory=list)
    variances_j2: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    wasted_s: list[float] = field(default_factory=list)
    quit: list[bool] = field(default_factory=list)


def measure_figure_10(runs: int, names: list[str], folder: Path, keep: Keep) -> dict[str, Any]:
    """Fig. 10: latency and energy variance of one round on equal devices, up to half of them busy, N = 3 to 9.

    names: with tree and ring, which the others are compared with; eq7 and paper are the literal variant. folder: its
    policy files. keep is told what is there after each N.
    """
    found: dict[str, Any] = {}
    for n in range(3, 10):
        scenarios = [draw_scenario("paper", n, seed) for seed in range(runs)]
        policies: dict[str, Callable[[], Policy]] = {name: _maker(name) for name in names if name not in LITERAL}
        policies |= _optima_of_the_reward(n) if "eq7" in names else {}
        scores = {name: _score(make, scenarios) for name, make in policies.items()}
        optimum = [solve(scenario).makespan_s for scenario in scenarios]
        found[str(n)] = {"optimum": _mean(optimum)} | {
            name: _mean(score.makespans_s)
            | {"energy_j2": round(fmean(score.variances_j2), 4), "quits": sum(score.quit)}
            | {"energy_of_tree": round(fmean(score.variances_j2) / fmean(scores["tree"].variances_j2), 3)}
            for name, score in scores.items()
        }
        if "paper" in names:
            found[str(n)][PAPER_DQN] = _dqn_of_the_reward(n, folder, scenarios, scores, optimum)
        keep({"by_n": found})
        print(f"fig10: N = {n} done", file=sys.stderr, flush=True)
    paper = {"less_latency_percent": _PAPER_LATENCY, "less_energy_percent": _PAPER_ENERGY}
    return {"by_n": found, "less_than": _average_gains(found), "paper": paper, "runs": runs}


def measure_cells(count: int, names: list[str], cells: list[str], keep: Keep) -> dict[str, Any]:
    """Makespans over the exact optimum (N up to 9) and under greedy-risk, by family and N, on the test seeds.

    cells: such as "hetero 9"; none means all. keep is told what is there after each.
    """
    found: dict[str, Any] = {}
    for family, n in CELLS:
        if cells and f"{family} {n}" not in cells:
            continue
        scenarios = [draw_scenario(family, n, seed) for seed in range(count)]
        few = scenarios if n < _LARGE else scenarios[: max(1, count // 3)]
        scores = {name: _score(_maker(name), scenarios if name in _CLAIMED else few) for name in names}
        row = {name: _mean(score.makespans_s) for name, score in scores.items()}
        for name, score in scores.items():
            row[name] |= {"energy_j2": round(fmean(score.variances_j2), 3), "scenarios": len(score.makespans_s)}
            for other in ("tree", "ring", "greedy", "greedy-risk"):
                if other in scores and other != name:
                    row[name] |= _less_than(other, score.makespans_s, scores[other].makespans_s)
        if n <= _LARGEST_SOLVED:
            optimum = [solve(scenario).makespan_s for scenario in scenarios]
            for name, score in scores.items():
                row[name] |= _over(score.makespans_s, optimum)
            row["optimum"] = _mean(optimum)
        found[f"{family} {n}"] = row
        keep({"by_cell": found})
        print(f"cells: {family} {n} done", file=sys.stderr, flush=True)
    return {"by_cell": found}


def measure_energy(meshes: int, names: list[str]) -> dict[str, Any]:
    """Variance of what devices have spent after 20 rounds, and the time of these rounds, against Tree and Ring.

    One policy more, without regard to energy, shows what the balance costs in time.
    """
    policies: dict[str, Callable[[], Policy]] = {name: _maker(name) for name in names}
    policies["greedy, energy ignored"] = lambda: Greedy(energy=0.0)
    names = list(policies)
    found: dict[str, Any] = {}
    for family in ("paper", "hetero", "dynamic"):
        variances: dict[str, list[float]] = {name: [] for name in names}
        times_s: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(meshes):
            rounds = draw_rounds(family, 9, seed, _ROUNDS)
            for name in names:
                played = play_rounds(rounds, policies[name]())
                variances[name].append(pvariance(played[-1].energy_j))
                times_s[name].append(fmean(each.makespan_s for each in played))
        found[family] = {
            name: {
                "energy_j2": round(fmean(variances[name]), 4),
                "interval95_j2": round(half_width(variances[name]), 4),
                "mean_s": round(fmean(times_s[name]), 3),
            }
            | {
                f"of_{other}": round(fmean(variances[name]) / fmean(variances[other]), 5)
                for other in ("tree", "ring")
                if other in names
            }
            for name in names
        }
        print(f"energy: {family} done", file=sys.stderr, flush=True)
    return {"after_20_rounds_of_9": found, "meshes": meshes}


def measure_dying(count: int, names: list[str]) -> dict[str, Any]:
    """What is lost where batteries give out, by policies that know the battery and one that does not."""
    policies: dict[str, Callable[[], Policy]] = {name: _maker(name) for name in names}
    policies["greedy, battery unknown"] = lambda: Greedy(battery=False)
    policies["greedy-risk, battery unknown"] = lambda: Greedy(battery=False, waiting=False)
    found: dict[str, Any] = {}
    for n in (9, 16):
        scenarios = [draw_scenario("dying", n, seed) for seed in range(count)]
        found[str(n)] = {}
        for name, make in policies.items():
            score = _score(make, scenarios)
            found[str(n)][name] = _mean(score.makespans_s) | {
                "lost_contributions": round(fmean(score.lost), 4),
                "lost_interval95": round(half_width(score.lost), 4),
                "wasted_s": round(fmean(score.wasted_s), 3),
            }
        print(f"dying: N = {n} done", file=sys.stderr, flush=True)
    return {"by_n": found, "scenarios": count}


def measure_times(names: list[str]) -> dict[str, Any]:
    """Median CPU milliseconds of a decision, dynamic family."""
    found: dict[str, Any] = {}
    for n in (9, 64):
        found[str(n)] = {}
        for name in names:
            seconds: list[float] = []
            seed = 0
            while len(seconds) < _LEAST_DECISIONS:
                timed = Timed(make_policy(name))
                play(draw_scenario("dynamic", n, seed), timed)
                seconds += timed.seconds
                seed += 1
            found[str(n)][name] = round(1000.0 * median(seconds), 4)
    return {"median_cpu_ms": found}


def _optima_of_the_reward(n: int) -> dict[str, Callable[[], Policy]]:
    """What Eq. 7 asks for, exactly, with either sign of the busy penalty; quitting is left out: it makes no round."""
    optima = {
        "paper: optimum of Eq. 7": PaperOptimum(n, PaperRules(), may_quit=False),
        "paper: optimum of Eq. 7, printed sign": PaperOptimum(n, PaperRules(printed_sign=True), may_quit=False),
    }
    return {name: functools.partial(FollowOrder, name, optimum.best_order) for name, optimum in optima.items()}


def _dqn_of_the_reward(
    n: int, folder: Path, scenarios: list[Scenario], others: dict[str, Scores], optimum: list[float]
) -> dict[str, Any]:
    """DQNs trained on Eq. 7 (the MLP on five states, TDGE), one a seed, on the rounds that they order to the end.

    Where one quits there is no round of its own; `less_than` compares with the others on the same rounds.
    """
    networks = [train_or_load(n, seed, folder) for seed in range(_PAPER_TRAININGS)]
    scores = [_score(functools.partial(FollowOrder, "paper", network.order), scenarios) for network in networks]
    kept = [(score, row) for score in scores for row, quit_there in enumerate(score.quit) if not quit_there]
    told: dict[str, Any] = {
        "trainings": len(scores),
        "quits": sum(sum(score.quit) for score in scores),
        "quits_by_training": [sum(score.quit) for score in scores],
        "rounds": len(kept),
    }
    if not kept:
        return told
    own_s, own_j2 = ([getattr(score, name)[row] for score, row in kept] for name in ("makespans_s", "variances_j2"))
    tree_j2 = fmean(others["tree"].variances_j2[row] for _, row in kept)
    told |= _mean(own_s) | _over(own_s, [optimum[row] for _, row in kept])
    told |= {"energy_j2": round(fmean(own_j2), 4), "energy_of_tree": round(fmean(own_j2) / tree_j2, 3)}
    for name in ("tree", "ring"):
        told |= _less_than(name, own_s, [others[name].makespans_s[row] for _, row in kept])
    return told


def _maker(name: str) -> Callable[[], Policy]:
    """One policy for all scenarios: loading a network each time would be most of the work."""
    policy = make_policy(name)
    return lambda: policy


def _score(make: Callable[[], Policy], scenarios: list[Scenario]) -> Scores:
    scores = Scores()
    for scenario in scenarios:
        policy = make()
        played: PlayedScenario = play(scenario, policy)
        scores.makespans_s.append(played.makespan_s)
        scores.variances_j2.append(pvariance(played.energy_j))
        scores.lost.append(len(played.lost))
        scores.wasted_s.append(played.wasted_s)
        scores.quit.append(isinstance(policy, FollowOrder) and policy.quits)
    return scores


def _mean(values: list[float]) -> dict[str, Any]:
    return {"mean_s": round(fmean(values), 4), "interval95_s": round(half_width(values), 4)}


def _over(values: list[float], optimum: list[float]) -> dict[str, Any]:
    """Percent of mean over mean; the interval is that of the paired differences."""
    differences = [value - best for value, best in zip(values, optimum, strict=True)]
    scale = 100.0 / fmean(optimum)
    return {
        "over_optimum_percent": round(scale * fmean(differences), 2),
        "over_optimum_interval95": round(scale * half_width(differences), 2),
    }


def _less_than(name: str, values: list[float], others: list[float]) -> dict[str, float]:
    """By how many percent the mean is below that of `name`, on the scenarios that both have played (the first ones)."""
    both = min(len(values), len(others))
    values, others = values[:both], others[:both]
    scale = 100.0 / fmean(others)
    differences = [other - value for value, other in zip(values, others, strict=True)]
    return {
        f"less_than_{name}_percent": round(scale * fmean(differences), 2),
        f"less_than_{name}_interval95": round(scale * half_width(differences), 2),
    }


def _average_gains(found: dict[str, Any]) -> dict[str, Any]:
    """How much less time than Tree and Ring, in percent: the mean over N of each N's gain, and at N = 9."""
    policies = [
        name
        for name in found["9"]
        if name not in ("tree", "ring") and all("mean_s" in row[name] for row in found.values())
    ]
    gains: dict[str, Any] = {}
    for name in policies:
        gains[name] = {}
        for other in ("tree", "ring"):
            by_n = [_less_on_average(row, name, other) for row in found.values()]
            gains[name][other] = {
                "mean_percent": round(fmean(by_n), 1),
                "spread_over_n": round(stdev(by_n) / sqrt(len(by_n)) * 1.96, 1),
                "at_9_percent": round(by_n[-1], 1),
            }
        energies = [row[name]["energy_of_tree"] for row in found.values() if "energy_of_tree" in row[name]]
        if energies:
            gains[name]["energy_less_than_tree_percent"] = round(100.0 * (1.0 - fmean(energies)), 1)
    return gains


def _less_on_average(row: dict[str, Any], name: str, other: str) -> float:
    """Percent of time saved at one N; of the paper's DQN on the rounds that it orders to the end."""
    paired = row[name].get(f"less_than_{other}_percent")
    return float(paired) if paired is not None else 100.0 * (1.0 - row[name]["mean_s"] / row[other]["mean_s"])
