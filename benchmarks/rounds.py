"""Really trains by the rounds that participation rules play, and compares the time to an accuracy.

    python -m benchmarks rounds --har uci_har/uci_har.npz --family dynamic --worlds 20
    python -m benchmarks rounds --har uci_har/uci_har.npz --part fit --seed-from 500000

The data are UCI HAR's windows, of which 21 people train and 9 test. People are dealt to the devices; with
`--split lacking` each device lacks three of the six activities. A network of 5,526 values learns from 108 features of a
window. A local period is 8 steps of SGD. The rounds are those of `mdl schedule rounds`: each device trains as much as
it did there, from the parameters that it had there. A result is the mean of the members' sums.

`--part time`: seconds to eight targets beside the first rule, with paired 95 % intervals over worlds.
`--part fit`: the constants of `mdl.scheduler.rounds.participation` that make progress at a target most alike over
rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.scheduler.rounds.judge import over_reference
from mdl.scheduler.rounds.learned import make_rule
from mdl.scheduler.rounds.simulate import PlayedWorld, play_world
from mdl.scheduler.rounds.world import (
    FAMILIES,
    HORIZON_S,
    PARTS,
    World,
    draw_recorded_world,
    draw_world,
    of_part,
    read_phones,
)

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

ACTIVITIES, HIDDEN, BINS = 6, 48, 8
# A local period, chosen so that rounds of all devices reach 90 % of the test windows after some thirty.
STEPS, BATCH, RATE = 8, 32, 0.1
# Accuracies on the test people; where devices lack activities, the higher ones are never reached.
TEST_TARGETS = {"people": (0.78, 0.82, 0.86, 0.90), "lacking": (0.72, 0.76, 0.80, 0.83)}
# Accuracies of the worst device on its own windows.
WORST_TARGETS = (0.60, 0.65, 0.70, 0.75)
# Each of so many windows is looked at after a round.
LOOKED_AT = 3
# Rounds of all devices that a world is played for: targets are reached well before.
LEVEL = 60.0


@dataclass(frozen=True)
class People:
    """Features and labels of each device's windows, and of the people for testing."""

    devices: list[tuple[Floats, Integers]]
    test: tuple[Floats, Integers]


@dataclass(frozen=True)
class Run:
    """A world's rounds, really trained: after each round the accuracy on test people, and of the worst device."""

    played: PlayedWorld
    test: list[float]
    worst: list[float]

    def round_of(self, target: float, worst: bool) -> int | None:
        """The index of the first round that reaches the target."""
        return next((at for at, value in enumerate(self.worst if worst else self.test) if value >= target), None)

    def seconds_to(self, target: float, worst: bool) -> float:
        at = self.round_of(target, worst)
        return HORIZON_S if at is None else self.played.rounds[at].ended_s


def read_people(path: Path, n: int, split: str, seed: int) -> People:
    """Deal the training people to n devices."""
    train, labels, subjects, test, test_labels = read_har(path)
    rng = np.random.default_rng([seed, n])
    order = rng.permutation(np.unique(subjects))
    devices = []
    for index in range(n):
        own = np.isin(subjects, order[index::n]) if n <= len(order) else subjects == order[index % len(order)]
        if split == "lacking":
            own &= np.isin(labels, rng.permutation(ACTIVITIES)[: ACTIVITIES // 2])
        devices.append((train[own], labels[own]))
    return People(devices, (test, test_labels))


@cache
def read_har(path: Path) -> tuple[Floats, Integers, Integers, Floats, Integers]:
    """Features, labels and people of the training windows, features and labels of those for testing."""
    found = np.load(path, allow_pickle=False)
    train, test = (features_of(found[f"{part}_X"]) for part in ("train", "test"))
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    labels, tested = (found[f"{part}_y"].astype(np.int64) - 1 for part in ("train", "test"))
    subjects = found["train_subject"].astype(np.int64)
    return (train - mean) / deviation, labels, subjects, (test - mean) / deviation, tested


def features_of(windows: npt.NDArray[np.float32]) -> Floats:
    """Mean, deviation, least and most of each channel, and the first bins of its spectrum."""
    spectrum = np.abs(np.fft.rfft(windows, axis=1))[:, 1 : BINS + 1]
    parts = [windows.mean(axis=1), windows.std(axis=1), windows.min(axis=1), windows.max(axis=1)]
    return np.concatenate([*parts, np.log1p(spectrum).reshape(len(windows), -1)], axis=1).astype(np.float32)


def begin(features: int, seed: int) -> list[Floats]:
    rng = np.random.default_rng(seed)
    first = rng.normal(0.0, (2.0 / features) ** 0.5, (features, HIDDEN))
    second = rng.normal(0.0, (1.0 / HIDDEN) ** 0.5, (HIDDEN, ACTIVITIES))
    return [each.astype(np.float32) for each in (first, np.zeros(HIDDEN), second, np.zeros(ACTIVITIES))]


def scores(values: Sequence[Floats], seen: Floats) -> tuple[Floats, Floats]:
    hidden = np.maximum(seen @ values[0] + values[1], 0.0)
    return hidden, hidden @ values[2] + values[3]


def accuracy(values: Sequence[Floats], seen: Floats, labels: Integers) -> float:
    return float((scores(values, seen)[1].argmax(axis=1) == labels).mean())


def step(values: list[Floats], seen: Floats, labels: Integers) -> None:
    """One step of SGD on the cross entropy, in place."""
    hidden, out = scores(values, seen)
    out = np.exp(out - out.max(axis=1, keepdims=True))
    out /= out.sum(axis=1, keepdims=True)
    out[np.arange(len(labels)), labels] -= 1.0
    out /= len(labels)
    back = (out @ values[2].T) * (hidden > 0.0)
    for value, slope in zip(values, (seen.T @ back, back.sum(axis=0), hidden.T @ out, out.sum(axis=0)), strict=True):
        value -= RATE * slope


def train(played: PlayedWorld, people: People, split: str, seed: int) -> Run:
    """Train as the rounds say, until all targets are reached; each device draws its batches from its own generator."""
    draws = [np.random.default_rng([seed, index]) for index in range(len(people.devices))]
    versions = [begin(people.test[0].shape[1], seed)]
    test, worst = [], []
    # Steps are whole: the rest of a device's last part is carried on.
    rest = [0.0] * len(people.devices)
    for each in played.rounds:
        total = [np.zeros_like(value) for value in versions[0]]
        for index, work in each.members.items():
            seen, labels = people.devices[index]
            own = [np.zeros_like(value) for value in total]
            for version, periods in work:
                local = [base + moved for base, moved in zip(versions[version], own, strict=True)]
                rest[index] += periods * STEPS
                for _ in range(int(rest[index] + 1e-6)):
                    rows = draws[index].integers(len(labels), size=BATCH)
                    step(local, seen[rows], labels[rows])
                rest[index] -= int(rest[index] + 1e-6)
                own = [now - base for now, base in zip(local, versions[version], strict=True)]
            for value, moved in zip(total, own, strict=True):
                value += moved / len(each.members)
        versions.append([value + moved for value, moved in zip(versions[-1], total, strict=True)])
        looked_at = [(seen[::LOOKED_AT], labels[::LOOKED_AT]) for seen, labels in (people.test, *people.devices)]
        reached = [accuracy(versions[-1], *part) for part in looked_at]
        test.append(reached[0])
        worst.append(min(reached[1:]))
        if max(test) >= TEST_TARGETS[split][-1] and max(worst) >= WORST_TARGETS[-1]:
            break
    return Run(played, test, worst)


def times(runs: dict[str, list[Run]], split: str) -> list[dict[str, object]]:
    """Seconds to each target, and all targets together, beside the first rule."""

    def whole(run: Run) -> float:
        found = [run.seconds_to(target, False) for target in TEST_TARGETS[split]]
        found += [run.seconds_to(target, True) for target in WORST_TARGETS]
        return exp(fmean(log(seconds) for seconds in found))

    reference = [whole(run) for run in next(iter(runs.values()))]
    rows = []
    for rule, own in runs.items():
        row: dict[str, object] = {"rule": rule, "over_percent": _rounded(over_reference([*map(whole, own)], reference))}
        for worst, targets in ((False, TEST_TARGETS[split]), (True, WORST_TARGETS)):
            for target in targets:
                name = f"{'worst' if worst else 'test'} {100 * target:.0f} %"
                row[name] = round(fmean(run.seconds_to(target, worst) for run in own), 1)
        row["unreached"] = sum(run.round_of(TEST_TARGETS[split][-1], False) is None for run in own)
        rows.append(row)
    return rows


def _rounded(over: tuple[float, float, float]) -> list[float]:
    return [round(each, 1) for each in over]


def progress_at(run: Run, at: int, constants: tuple[float, float, float, float]) -> float:
    """Progress after round `at`, by the formula of `mdl.scheduler.rounds.participation` with other constants."""
    together, fresh, alone, covers = constants
    n, gaps, total = len(run.played.joules), [0] * len(run.played.joules), 0.0
    for each in run.played.rounds[: at + 1]:
        given = 0.0
        for work in each.members.values():
            given += sum(periods * fresh ** (each.number - 1 - version) for version, periods in work) ** alone
        gaps = [0 if index in each.members else gap + 1 for index, gap in enumerate(gaps)]
        covered: float = sum(fresh**gap for gap in gaps) / n
        total += covered**covers * (given / n) ** together
    return total


def spread(worlds: Sequence[Sequence[Run]], split: str, constants: tuple[float, float, float, float]) -> float:
    """Return the deviation of the logarithm of progress at a target, between rules on the same world."""
    apart: list[float] = []
    for runs in worlds:
        for worst, targets in ((False, TEST_TARGETS[split]), (True, WORST_TARGETS)):
            for target in targets:
                reached = [(run, at) for run in runs if (at := run.round_of(target, worst)) is not None]
                logs = [log(progress_at(run, at, constants)) for run, at in reached]
                apart += [each - fmean(logs) for each in logs]
    return float(fmean(each**2 for each in apart) ** 0.5)


def fit(worlds: Sequence[Sequence[Run]], split: str) -> dict[str, object]:
    """The constants with the least spread on a grid, one after the other, twice; the spread of the shipped ones too.

    spread_of_rounds: if each round counted one; spread_of_members: if it counted k ** 0.58.
    """
    grids = (
        tuple(0.2 + 0.1 * at for at in range(9)),
        (0.7, 0.8, 0.85, 0.9, 0.95, 1.0),
        (0.0, 0.25, 0.5, 0.75, 1.0),
        (0.0, 0.25, 0.5, 1.0, 2.0),
    )
    best = [0.58, 0.9, 0.5, 0.5]
    shipped = spread(worlds, split, (0.58, 0.9, 0.5, 0.5))
    for _ in range(2):
        for place, grid in enumerate(grids):
            tried = {value: spread(worlds, split, tuple([*best[:place], value, *best[place + 1 :]])) for value in grid}  # type: ignore[arg-type]
            best[place] = min(tried, key=lambda value: tried[value])
    return {
        "constants": dict(
            zip(("together", "fresh", "alone", "coverage"), (round(each, 2) for each in best), strict=True)
        ),
        "spread": round(spread(worlds, split, tuple(best)), 4),  # type: ignore[arg-type]
        "spread_shipped": round(shipped, 4),
        "spread_of_rounds": round(spread(worlds, split, (0.0, 1.0, 0.0, 0.0)), 4),
        "spread_of_members": round(spread(worlds, split, (0.58, 1.0, 0.0, 0.0)), 4),
    }


def worlds_of(options: Namespace) -> list[World]:
    seeds = range(options.seed_from, options.seed_from + options.worlds)
    if options.family in FAMILIES:
        return [draw_world(options.family, options.n, options.size, seed) for seed in seeds]
    part = next(part for part in PARTS if options.family == f"recorded-{part}")
    phones = of_part(read_phones(options.recordings), part)
    return [draw_recorded_world(phones, options.n, options.size, seed) for seed in seeds]


def add_options(parser: Parser) -> None:
    parser.add_argument("--har", type=Path, required=True, help="uci_har.npz")
    parser.add_argument("--part", choices=("time", "fit"), default="time")
    parser.add_argument("--rules", default="third,all,deadline,k-of-n,best-ratio", help="the first is compared with")
    parser.add_argument("--family", choices=(*FAMILIES, *(f"recorded-{part}" for part in PARTS)), default="dynamic")
    parser.add_argument("--recordings", type=Path, help="phone_traces.csv.gz, for the recorded worlds")
    parser.add_argument("--split", choices=("people", "lacking"), default="people")
    parser.add_argument("--n", type=int, default=9)
    parser.add_argument("--size", type=float, default=10.0, help="MB of a delta")
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--seed-from", type=int, default=0)


def run(options: Namespace, sheet: Sheet) -> None:
    """Train by the rounds of each rule on the same worlds. Raises ConfigError or DataError."""
    runs: dict[str, list[Run]] = {rule: [] for rule in options.rules.split(",")}
    for at, world in enumerate(worlds_of(options)):
        people = read_people(options.har, options.n, options.split, options.seed_from + at)
        for rule, done in runs.items():
            done.append(train(play_world(world, make_rule(rule), LEVEL), people, options.split, options.seed_from + at))
    if options.part == "fit":
        sheet.tell(fit(list(zip(*runs.values(), strict=True)), options.split))
        return
    rows = times(runs, options.split)
    show(list(rows[0]), [list(row.values()) for row in rows])
    sheet.tell({"rules": rows})
