"""Tables of ranks over seeds: the five measures beside the paper's, and differences paired over users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.recommend.learning import Ranks, Rows
from benchmarks.tool import table
from mdl.peers.dccl.model.interactions import Floats, gains, hits, top_metrics

MEASURES = ("HR@1", "HR@5", "HR@10", "NDCG@5", "NDCG@10")
# Table 2, MovieLens-1M, in the order of MEASURES. DCCL is one round, DCCL-m.
PAPER = {
    "MF": (14.60, 44.85, 63.54, 29.87, 35.89),
    "FM": (14.90, 47.13, 64.40, 30.27, 36.49),
    "NeuMF": (16.45, 46.24, 65.36, 31.71, 37.90),
    "DeepFM": (15.41, 47.35, 65.46, 31.82, 37.68),
    "SASRec": (34.85, 69.17, 80.69, 53.18, 56.94),
    "DIN": (37.45, 70.71, 81.25, 55.22, 58.65),
    "DCCL": (38.69, 71.97, 82.23, 56.43, 59.77),
}


def show(found: Sequence[Rows], over: Sequence[str]) -> dict[str, Any]:
    """Print, and return, each row's measures, the spread over seeds, and differences to the rows named in `over`.

    found: rows of each seed. A difference is each user's mean over seeds, with the 95 % interval over users.
    """
    told: dict[str, Any] = {}
    cells: list[tuple[str, ...]] = []
    for name in found[0]:
        each = np.array([[top_metrics(rows[name])[measure] for measure in MEASURES] for rows in found])
        differences = {other: [difference(found, name, other, measure) for measure in (hits, gains)] for other in over}
        beside = ("  ".join(tell(it) for it in both) for both in differences.values())
        cells.append((name, *(f"{value:.2f}" for value in each.mean(axis=0)), *beside))
        told[name] = {
            "mean": dict(zip(MEASURES, each.mean(axis=0).round(3).tolist(), strict=True)),
            "by_seed": each.round(3).tolist(),
            "over": {other: [asdict(it) for it in both] for other, both in differences.items()},
        }
    table.show(("", *MEASURES, *(f"HR@10, NDCG@10 - {it}" for it in over)), cells)
    return told


def show_paper(names: Sequence[str]) -> None:
    table.show(("paper", *MEASURES), [(name, *(f"{value:.2f}" for value in PAPER[name])) for name in names])


@dataclass(frozen=True)
class Difference:
    """The mean lead of one ranking over another, over users, with its 95 % interval."""

    mean: float
    low: float
    high: float


def paired(mine: Floats, theirs: Floats) -> Difference:
    """Return the mean difference over the same users in the same order, (U,), +- 1.96 standard errors."""
    difference = mine - theirs
    error = 1.96 * float(difference.std(ddof=1)) / np.sqrt(len(difference))
    mean = float(difference.mean())
    return Difference(mean, mean - error, mean + error)


def difference(found: Sequence[Rows], name: str, other: str, measure: Callable[[Ranks, int], Floats]) -> Difference:
    """What one row has more than another at 10, in points: users' means over seeds, with the interval over users."""
    mine, theirs = (np.mean([100 * measure(rows[row], 10) for rows in found], axis=0) for row in (name, other))
    return paired(mine, theirs)


def tell(it: Difference) -> str:
    return f"{it.mean:+5.2f} ({it.low:+.2f} .. {it.high:+.2f})"
