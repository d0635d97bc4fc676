"""Policies on the same scenarios, as a table: `mdl schedule compare`, and `mdl scheduler eval`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mdl.devices.scenario import Scenario
from mdl.own import Own
from mdl.peers.interrupts import handled, interrupt
from mdl.scheduler.explain.watched_play import Bench, play_named
from mdl.scheduler.paper.problem import energy_variance, objectives
from mdl.scheduler.policies.registry import OPTIMAL, SHARES_BY
from mdl.scheduler.study.judging import half_width
from mdl.scheduler.study.play import PlayedScenario


@dataclass
class PolicyScore:
    """The results of one policy; lists by scenario. objective: N(T) + N(E), Eq. 4. decision_s: of each decision.

    everywhere_s: until all devices have the result. Rounds in segments have that and `lost` only.
    """

    makespan_s: list[float] = field(default_factory=list)
    everywhere_s: list[float] = field(default_factory=list)
    energy_variance_j2: list[float] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)


@dataclass
class Comparison:
    """The results of all policies. planned: scenarios to be played; interrupted: by Ctrl-C, after `played` of them.

    scenarios: ids of the played ones.
    """

    policies: tuple[str, ...]
    what: str
    planned: int
    scores: dict[str, PolicyScore] = field(default_factory=dict)
    interrupted: bool = False
    scenarios: list[str] = field(default_factory=list)

    @property
    def played(self) -> int:
        return len(self.scores[self.policies[0]].everywhere_s)

    @property
    def chains(self) -> list[str]:
        """The policies without rounds in segments: no device ever holds such a round alone."""
        return [name for name in self.policies if name not in SHARES_BY]

    @property
    def reference(self) -> str | None:
        """The policy that the others are compared with: the optimum, if it is there, else the best order of hops."""
        if OPTIMAL in self.policies:
            return OPTIMAL
        return min(self.chains, key=lambda name: fmean(self.scores[name].everywhere_s), default=None)


def compare(
    policies: Sequence[str | Own],
    what: str,
    scenarios: Iterable[Scenario],
    planned: int,
    show: Callable[[int, int], None],
) -> Comparison:
    """Play each scenario under every policy before the next one: after Ctrl-C all have played the same.

    show: is given the numbers of played and planned scenarios.
    """
    names = tuple(str(name) for name in policies)
    found = Comparison(names, what, planned, {name: PolicyScore() for name in names})
    bench = Bench()
    try:
        with handled(interrupt):
            for scenario in scenarios:
                rows = {str(name): play_named(scenario, name, bench) for name in policies}
                for name, (played, _) in rows.items():
                    found.scores[name].everywhere_s.append(played.everywhere_s)
                    found.scores[name].lost.append(len(played.lost))
                _score_chains(found, {name: rows[name] for name in found.chains})
                found.scenarios.append(scenario.scenario_id)
                show(found.played, planned)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def describe_comparison(found: Comparison) -> dict[str, Any]:
    """Return the object that `--json` prints.

    over_percent: mean time until all devices have the result over the reference's, with the 95 % interval of that ratio
    over these scenarios. over_percent_paired: the mean of the ratios.
    """
    reference = found.scores[found.reference].everywhere_s if found.played and found.reference else []
    return {
        "scenarios": found.what,
        "planned": found.planned,
        "played": found.played,
        "interrupted": found.interrupted,
        "reference": found.reference if found.played else None,
        "policies": [_describe(name, found.scores[name], reference) for name in found.policies if found.played],
    }


def list_results(found: Comparison) -> Iterator[dict[str, object]]:
    """Yield the rows that `--csv` writes, one for each scenario and policy.

    Rounds in segments lack figures of a chain.
    """
    for number, scenario in enumerate(found.scenarios):
        for name in found.policies:
            score = found.scores[name]
            yield {
                "scenario": scenario,
                "policy": name,
                "makespan_s": _one(score.makespan_s, number),
                "everywhere_s": _one(score.everywhere_s, number),
                "energy_variance_j2": _one(score.energy_variance_j2, number),
                "objective_eq4": _one(score.objective, number),
                "lost": score.lost[number],
            }


def _one(values: Sequence[float], number: int) -> float | None:
    return round(values[number], 6) if values else None


def show_comparison(found: Comparison, console: Console) -> None:
    if not found.played:
        return
    described = describe_comparison(found)
    over = "optimum" if found.reference == OPTIMAL else found.reference or "-"
    table = Table(title=f"{found.what}: {found.played} scenarios", title_justify="left", box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in ("all have it s", f"over {over}", "one holder s", "var J²", "Eq. 4", "lost", "ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in described["policies"]:
        decision_ms = row["decision_ms_median"]
        table.add_row(
            row["policy"],
            f"{row['everywhere_s']:.2f} ± {row['everywhere_interval_95_s']:.2f}",
            "" if row["policy"] == found.reference else _tell_over(row),
            "-" if row["makespan_s"] is None else f"{row['makespan_s']:.2f}",
            "-" if row["energy_variance_j2"] is None else f"{row['energy_variance_j2']:.2f}",
            "-" if row["objective_eq4"] is None else f"{row['objective_eq4']:.2f}",
            f"{row['lost_per_scenario']:.2f}" if row["lost"] else "0",
            "-" if decision_ms is None else f"{decision_ms:.3f}",
        )
    console.print(table)


def _score_chains(found: Comparison, rows: dict[str, tuple[PlayedScenario, list[float]]]) -> None:
    """Add the figures of one scenario that only a chain has: one holder, energy, decisions."""
    variances = {name: energy_variance(np.array(played.energy_j)) for name, (played, _) in rows.items()}
    both = objectives([played.makespan_s for played, _ in rows.values()], list(variances.values())) if rows else []
    for value, (name, (played, seconds)) in zip(both, rows.items(), strict=True):
        score = found.scores[name]
        score.objective.append(value)
        score.makespan_s.append(played.makespan_s)
        score.energy_variance_j2.append(variances[name])
        # The optimum plans everything before its first decision: its decisions are no work.
        score.decision_s += [] if name == OPTIMAL else seconds


def _describe(name: str, score: PolicyScore, reference: Sequence[float]) -> dict[str, Any]:
    mean_s = fmean(score.everywhere_s)
    pairs = zip(score.everywhere_s, reference, strict=True) if reference else ()
    ratios = [own / best for own, best in pairs if best > 0]
    known = bool(ratios) and fmean(reference) > 0
    told: dict[str, Any] = {
        "policy": name,
        "makespan_s": None,
        "everywhere_s": round(mean_s, 6),
        "everywhere_interval_95_s": round(half_width(score.everywhere_s), 6),
        "over_percent": round(100.0 * (mean_s / fmean(reference) - 1.0), 3) if known else None,
        "over_percent_interval_95": _over_interval(score.everywhere_s, reference) if known else None,
        "over_percent_paired": round(100.0 * (fmean(ratios) - 1.0), 3) if known else None,
        "energy_variance_j2": None,
        "objective_eq4": None,
        "lost": sum(score.lost),
        "lost_per_scenario": round(fmean(score.lost), 4),
        "decisions": len(score.decision_s),
        "decision_ms_median": round(1e3 * median(score.decision_s), 4) if score.decision_s else None,
    }
    if not score.makespan_s:
        return told
    spread_s = stdev(score.makespan_s) if len(score.makespan_s) > 1 else 0.0
    return told | {
        "makespan_s": round(fmean(score.makespan_s), 6),
        "makespan_s_deviation": round(spread_s, 6),
        "interval_95_s": round(half_width(score.makespan_s), 6),
        "energy_variance_j2": round(fmean(score.energy_variance_j2), 6),
        "objective_eq4": round(fmean(score.objective), 4),
    }


def _tell_over(row: dict[str, Any]) -> str:
    if row["over_percent"] is None:
        return ""
    return f"{row['over_percent']:+.1f} ± {row['over_percent_interval_95']:.1f} %"


def _over_interval(own_s: Sequence[float], reference_s: Sequence[float]) -> float | None:
    """Return the 95 % interval of the ratio of two means over the same scenarios.

    It is in percent, and linearised (Cochran, ratio estimators).
    """
    mean_s = fmean(reference_s)
    if mean_s <= 0.0 or len(own_s) < 2:
        return None if mean_s <= 0.0 else 0.0
    ratio = fmean(own_s) / mean_s
    rest_s = [own - ratio * best for own, best in zip(own_s, reference_s, strict=True)]
    return round(100.0 * half_width(rest_s) / mean_s, 3)
