"""Tables of comparisons: policies on the same scenarios, and participation rules on the same worlds.

They are those of `mdl schedule compare`, `mdl scheduler eval` and `mdl schedule rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError, did_you_mean
from mdl.own import Own
from mdl.peers.interrupts import handled, interrupt
from mdl.scheduler.explain.watched_play import Bench, play_named
from mdl.scheduler.paper.policy import energy_variance, objectives
from mdl.scheduler.policies.registry import OPTIMAL, SHARES_BY
from mdl.scheduler.rounds.judge import LEVELS, Cell, RuleScore, describe_cell, judge_cell
from mdl.scheduler.rounds.learned import make_rule
from mdl.scheduler.rounds.world import (
    FAMILIES,
    PARTS,
    World,
    check_size,
    draw_recorded_world,
    draw_world,
    of_part,
    read_phones,
)
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


# Rules beyond these would not fit a table, nor their time a day.
_MOST_RULES, _MOST_CELLS = 16, 64


@dataclass(frozen=True)
class WorldsWanted:
    """The worlds to judge on. recordings: a table of recorded phones, for the families `recorded-...`."""

    families: tuple[str, ...]
    sizes_of_mesh: tuple[int, ...]
    sizes_mb: tuple[float, ...]
    count: int
    seed_from: int


@dataclass
class JudgedCells:
    """All cells. interrupted: by Ctrl-C, so that the last cell may have fewer worlds."""

    rules: tuple[str, ...]
    cells: list[Cell] = field(default_factory=list)
    interrupted: bool = False


def parse_wanted(family: str, n: str, size: str, count: int, seed_from: int, with_phones: bool) -> WorldsWanted:
    """Parse lists with commas. Raises ConfigError for one that is wrong."""
    known = [*FAMILIES, *(f"recorded-{part}" for part in PARTS)]
    families = tuple(family.split(","))
    for each in families:
        if each not in known:
            raise ConfigError(
                f"--family {each!r}: no such worlds{did_you_mean(each, known)} (valid: {', '.join(known)})"
            )
        if each not in FAMILIES and not with_phones:
            raise ConfigError(f"--family {each}: give --recordings FILE, a table of recorded phones")
    wanted = WorldsWanted(families, _numbers("--n", n, int), _numbers("--size", size, float), count, seed_from)
    for devices in wanted.sizes_of_mesh:
        for size_mb in wanted.sizes_mb:
            check_size(devices, size_mb)
    if len(families) * len(wanted.sizes_of_mesh) * len(wanted.sizes_mb) > _MOST_CELLS:
        raise ConfigError(f"--family, --n and --size: at most {_MOST_CELLS} combinations are judged at once")
    return wanted


def parse_rules(text: str) -> tuple[str, ...]:
    """Parse rules with commas, the reference first. Raises ConfigError for one that is wrong or comes twice."""
    rules = tuple(text.split(","))
    for rule in rules:
        make_rule(rule)
    if len(set(rules)) != len(rules) or len(rules) > _MOST_RULES:
        raise ConfigError(f"--rules {text[:80]!r}: expected at most {_MOST_RULES} rules, each once")
    return rules


def judge_rules(
    rules: tuple[str, ...], wanted: WorldsWanted, recordings: Path | None, show: Callable[[int, int], None]
) -> JudgedCells:
    """Judge the rules on all worlds. show: is given the numbers of played and planned worlds."""
    phones = read_phones(recordings) if recordings else []
    judged, done = JudgedCells(rules), 0
    draws = list(_cells(wanted, phones))
    planned = len(draws) * wanted.count
    try:
        with handled(interrupt):
            for what, worlds in draws:
                cell = Cell(what, [RuleScore(rule) for rule in rules])
                judged.cells.append(cell)
                before = done
                judge_cell(what, rules, worlds, make_rule, lambda played, so=before: show(so + played, planned), cell)  # type: ignore[misc]
                done += wanted.count
    except KeyboardInterrupt:
        judged.interrupted = True
        judged.cells = [cell for cell in judged.cells if cell.worlds]
    return judged


def describe_judged(judged: JudgedCells) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    return {
        "reference": judged.rules[0],
        "levels": list(LEVELS),
        "interrupted": judged.interrupted,
        "cells": [describe_cell(cell) for cell in judged.cells],
    }


def show_judged(judged: JudgedCells, console: Console) -> None:
    for cell in judged.cells:
        title = f"{cell.what}: {cell.worlds} worlds"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("rule", no_wrap=True)
        for column in (*(f"s to {level:g}" for level in LEVELS), f"over {judged.rules[0]}"):
            table.add_column(column, justify="right", no_wrap=True)
        for column in ("rounds", "least share", "longest gap", "J a device"):
            table.add_column(column, justify="right")
        for row in describe_cell(cell)["rules"]:
            table.add_row(*_tell(row, judged.rules[0], cell.worlds))
        console.print(table)


def _tell(row: dict[str, Any], reference: str, worlds: int) -> list[str]:
    over = row["over_percent"]
    told = "" if row["rule"] == reference else f"{over['mean']:+.0f} % ({over['low']:+.0f} to {over['high']:+.0f})"
    times = [f"{level['mean_s']:.0f}" for level in row["levels"]]
    if row["unreached"]:
        times[-1] = f">{times[-1]}"
        told += f"; {row['unreached']} of {worlds} never"
    fair = [f"{row['rounds']:.0f}", f"{row['least_share']:.2f}", str(row["longest_gap"])]
    return [row["rule"], *times, told, *fair, f"{row['joules_a_device']:.0f}"]


def _cells(wanted: WorldsWanted, phones: Sequence[Any]) -> Iterator[tuple[str, Iterable[World]]]:
    seeds = range(wanted.seed_from, wanted.seed_from + wanted.count)
    for family in wanted.families:
        for n in wanted.sizes_of_mesh:
            for size_mb in wanted.sizes_mb:
                what = f"{family}, {n} devices, {size_mb:g} MB, seeds {seeds[0]} to {seeds[-1]}"
                yield what, _draw(family, n, size_mb, seeds, phones)


def _draw(family: str, n: int, size_mb: float, seeds: range, phones: Sequence[Any]) -> Iterator[World]:
    if family in FAMILIES:
        yield from (draw_world(family, n, size_mb, seed) for seed in seeds)
        return
    part = next(part for part in PARTS if family == f"recorded-{part}")
    chosen = of_part(phones, part)
    yield from (draw_recorded_world(chosen, n, size_mb, seed) for seed in seeds)


def _numbers(option: str, text: str, kind: type[Any]) -> tuple[Any, ...]:
    try:
        found = tuple(kind(part) for part in text.split(",") if len(part) < 24)
    except ValueError:
        found = ()
    if not found or len(found) != text.count(",") + 1:
        raise ConfigError(
            f"{option} {text[:40]!r}: expected numbers with commas, like {'3,9' if kind is int else '0.5,5'}"
        )
    return found
