"""`mdl schedule rounds`: participation rules on the same worlds, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mdl.errors import ConfigError, did_you_mean
from mdl.peers.interrupts import handled, interrupt
from mdl.scheduler.rounds.judge import LEVELS, Cell, RuleScore, describe_cell, judge_cell
from mdl.scheduler.rounds.registry import make_rule
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
