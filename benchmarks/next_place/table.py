"""What comes of the seeds: Table 1 with the paper's figures beside it, and paired differences with their intervals."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.tool.table import show

RIVALS = ("DT", "CT", "DT-ws")
COLLA, EXTENDED = "Colla", "Colla + counts"
# Table 1 (best percentage, mean, median after the last update); Fig. 5's medians after the first; 5.2.2; Fig. 14.
PAPER: dict[str, Any] = {
    "DT": {"best_share": 0.0, "mean": 0.40, "median": 0.40},
    "CT": {"best_share": 0.28, "mean": 0.40, "median": 0.39},
    "DT-ws": {"best_share": 0.04, "mean": 0.41, "median": 0.42},
    COLLA: {"best_share": 0.68, "mean": 0.47, "median": 0.51},
    "first update": {"M-RNN": 0.39, "RNN": 0.18},
    "random 100": {"CT, 10,000 in the cloud": 0.33, "Colla, least": 0.32, "Colla, most": 0.39},
    "best 70 % teach, gain": 0.0346,
}
_DRAWS = 2000


def summarise(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Devices are the same in every seed without donors: a device's accuracy is its mean over the seeds."""
    cycles = range(len(seeds[0]["scores"][COLLA]))
    after = [{name: _by_device(seeds, name, cycle) for name in seeds[0]["scores"]} for cycle in cycles]
    return {
        "table": [{name: _describe(seeds, name, cycle) for name in seeds[0]["scores"]} for cycle in cycles],
        "best_share": [
            {one: _count_wins(seeds, one, cycle) for one in (COLLA, EXTENDED)} for cycle in cycles
        ],
        "pairs": [
            {f"{one} - {other}": pair(values[one], values[other]) for one in (COLLA, EXTENDED)
             for other in (*RIVALS, "DT-ws + counts", "counts", "Markov")}
            for values in after
        ],
        "median_over_best_rival": [
            {one: [_over(seed, one, cycle) for seed in seeds] for one in (COLLA, EXTENDED)} for cycle in cycles
        ],
    }  # fmt: skip


def describe_variants(seeds: list[dict[str, Any]], variants: dict[str, Any]) -> list[dict[str, Any]]:
    """By cycle and variant: mean and median accuracy, and how much it is above Colla on the same devices and seeds."""
    run = [seed for seed in seeds if str(seed["seed"]) in variants]
    found = [{"scores": variants[str(seed["seed"])]} for seed in run]
    return [
        {
            name: _describe(found, name, cycle)
            | {"above Colla": pair(_by_device(found, name, cycle), _by_device(run, COLLA, cycle))}
            for name in found[0]["scores"]
            if all(name in it["scores"] for it in found)
        }
        for cycle in range(len(run[0]["scores"][COLLA]))
    ]


def show_tables(result: dict[str, Any]) -> None:
    """Print how all methods stand after the last cycle."""
    shares, rows = result["best_share"][-1], []
    for name, row in result["table"][-1].items():
        share = f"{shares[name][name]:.0%}" if name in shares else f"{shares[COLLA].get(name, 0):.0%}"
        paper = PAPER.get(name)
        told = f"{paper['best_share']:.0%}, {paper['mean']:.2f}, {paper['median']:.2f}" if paper else None
        rows.append((name, share if name in (*RIVALS, COLLA, EXTENDED) else None, *_cells(row), told))
    show(("", "best on", "mean", "median", "precision", "paper: best, mean, median"), rows)
    variants = (result.get("variants_table") or [{}])[-1]
    if variants:
        rows = [(name, *_cells(row), _interval(row["above Colla"])) for name, row in variants.items()]
        show(("variants", "mean", "median", "precision", "above Colla"), rows)
    if sizes := result.get("initial_table"):
        rows = [
            (size, *(f"{it['mean']:.3f} ({it['median']:.3f})" for it in row.values())) for size, row in sizes.items()
        ]
        show(("people in the cloud, drawn devices", *next(iter(sizes.values()))), rows)
    over = result["median_over_best_rival"][-1]
    rows = [(name, ", ".join(f"{value:+.1%}" for value in values)) for name, values in over.items()]
    show(("by seed", f"median over the best of {', '.join(RIVALS)}"), rows)
    show(("less", "difference"), [(name, _interval(pair)) for name, pair in result["pairs"][-1].items()])


def _cells(row: dict[str, float]) -> list[str]:
    return [f"{row[name]:.3f}" for name in ("mean", "median", "precision")]


def _interval(pair: dict[str, float]) -> str:
    return f"{pair['mean']:+.3f} [{pair['low']:+.3f}, {pair['high']:+.3f}]"


def pair(values: list[list[float]], others: list[list[float]]) -> dict[str, float]:
    """Mean difference over devices and seeds; the interval of 95 % draws devices again."""
    width = min(map(len, values))
    differences = np.mean([np.array(a[:width]) - np.array(b[:width]) for a, b in zip(values, others, strict=True)], 0)
    rng = np.random.default_rng(0)
    drawn = differences[rng.integers(len(differences), size=(_DRAWS, len(differences)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"mean": round(float(differences.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def _by_device(seeds: list[dict[str, Any]], name: str, cycle: int) -> list[list[float]]:
    return [seed["scores"][name][cycle]["accuracy"] for seed in seeds]


def _describe(seeds: list[dict[str, Any]], name: str, cycle: int) -> dict[str, float]:
    """Medians over the seeds."""
    found = [seed["scores"][name][cycle] for seed in seeds]
    return {
        "mean": round(median(mean(it["accuracy"]) for it in found), 4),
        "median": round(median(median(it["accuracy"]) for it in found), 4),
        "precision": round(median(mean(it["precision"]) for it in found), 4),
    }


def _over(seed: dict[str, Any], name: str, cycle: int) -> float:
    medians = {it: median(seed["scores"][it][cycle]["accuracy"]) for it in (*RIVALS, name)}
    over: float = medians[name] / max(medians[it] for it in RIVALS) - 1
    return round(over, 4)


def _count_wins(seeds: list[dict[str, Any]], one: str, cycle: int) -> dict[str, float]:
    """Share of devices on which each of `one` and its rivals is the best, ties for each; median over the seeds."""
    names = (*RIVALS, one)
    shares: dict[str, list[float]] = {name: [] for name in names}
    for seed in seeds:
        rows = list(zip(*(seed["scores"][name][cycle]["accuracy"] for name in names), strict=True))
        for at, name in enumerate(names):
            shares[name].append(mean(row[at] == max(row) for row in rows))
    return {name: round(median(values), 4) for name, values in shares.items()}
