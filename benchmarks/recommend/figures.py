"""Figures 4 and 7: for whom a device's vector pays, and what the vectors tell of their users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recommend.learning import Options, Ranks, learn_on_devices, learn_stale
from benchmarks.recommend.picture import draw
from benchmarks.recommend.report import paired
from benchmarks.recommend.tables import FAIR, STALE, table3
from benchmarks.tool.table import show
from mdl.peers.dccl.model.interactions import TEST_NEGATIVES, Interactions, last_places

GROUPS = 20
_SHOWN = (STALE, "DCCL-e", FAIR, "DCCL-m")
# Genres of Figure 7's colours; who likes another one best is grey.
_COLOURS = ("Drama", "Comedy", "Action", "Thriller", "Romance", "Sci-Fi")
_NEIGHBOURS = 10

Points = NDArray[np.float32]


def group_by_activity(counts: NDArray[np.int64], groups: int) -> list[NDArray[np.int64]]:
    """Cut users into equal groups by their number of samples, most first (4.2.2); return rows of `counts`."""
    return list(np.array_split(np.argsort(-counts, kind="stable"), groups))


def figure4(data: Interactions, seeds: Sequence[int], options: Options) -> dict[str, Any]:
    """Macro-AUC of each group, most active first, mean over seeds; and DCCL-e over stale with its interval."""
    found = [table3(data, seed, options) for seed in seeds]
    groups = group_by_activity(data.lengths[last_places(data, 1).users], GROUPS)
    auc = {name: np.mean([_auc(rows[name]) for rows in found], axis=0) for name in _SHOWN}
    told: dict[str, Any] = {
        name: [round(float(each[group].mean()), 2) for group in groups] for name, each in auc.items()
    }
    differences = [paired(auc["DCCL-e"][group], auc[STALE][group]) for group in groups]
    told["DCCL-e over stale"] = [(round(it.mean, 3), round(it.low, 3), round(it.high, 3)) for it in differences]
    rows = [
        (at + 1, *(f"{told[name][at]:.1f}" for name in _SHOWN), f"{it.mean:+.2f} ({it.low:+.2f} .. {it.high:+.2f})")
        for at, it in enumerate(differences)
    ]
    show(("group, most active first", *_SHOWN, "DCCL-e over stale"), rows)
    told["samples"] = [int(data.lengths[last_places(data, 1).users][group].mean()) for group in groups]
    return told


def plot_groups(found: dict[str, Any], path: Path | None) -> None:
    if path is None:
        return
    axes, save = draw(path)
    for name in _SHOWN:
        axes.plot(range(1, GROUPS + 1), found[name], "o-", markersize=3, label=name)
    axes.set(xlabel="group of users, most active first", ylabel="macro-AUC, %", xticks=range(1, GROUPS + 1))
    axes.legend()
    save()


def figure7(
    data: Interactions, seed: int, options: Options, genres: Path
) -> tuple[dict[str, float], tuple[Points, list[str]]]:
    """t-SNE of the devices' vectors, and each user's most frequent genre; how often neighbours have the same one.

    genres: movies.dat of MovieLens-1M.
    """
    from sklearn.manifold import TSNE

    favourite = _favourites(data, genres)
    start, vectors = (each.numpy() for each in learn_on_devices(learn_stale(data, seed, options), data, seed, options))
    by_chance = float(np.mean([favourite == other for other in np.random.default_rng(seed).permutation(favourite)]))
    found = {"same by chance": by_chance}
    for name, points in (("vectors", vectors), ("where they began", start), ("what they learned", vectors - start)):
        found[name] = _agreement(points, favourite, seed)
    show(("neighbours with the same genre", "%"), [(name, f"{100 * share:.1f}") for name, share in found.items()])
    flat = TSNE(random_state=seed, init="pca").fit_transform(vectors - start).astype(np.float32)
    return found, (flat, list(favourite))


def plot_vectors(picture: tuple[Points, list[str]], path: Path | None) -> None:
    if path is None:
        return
    axes, save = draw(path, 7, 7)
    points, genres = picture[0], np.array(picture[1])
    named = np.isin(genres, _COLOURS)
    axes.scatter(*points[~named].T, s=2, color="lightgrey", label="others")
    for genre in _COLOURS:
        axes.scatter(*points[genres == genre].T, s=2, label=genre)
    axes.set(xticks=[], yticks=[])
    axes.legend(markerscale=4)
    save()


def _auc(rank: Ranks) -> NDArray[np.float64]:
    """Of each user, in percent: the share of the others that stand behind the true item."""
    found: NDArray[np.float64] = 100 * (1 + TEST_NEGATIVES - rank) / TEST_NEGATIVES
    return found


def _favourites(data: Interactions, genres: Path) -> NDArray[np.str_]:
    """The genre that most of a user's films have, as in the paper."""
    lines = (line.split("::") for line in genres.read_text("latin-1").splitlines())
    of_film = {film: kinds.split("|") for film, _, kinds in lines}
    names = sorted({kind for kinds in of_film.values() for kind in kinds})
    table = np.array([[name in of_film.get(title, ()) for name in names] for title in data.titles], np.float64)
    counts = np.array([table[data.of(user) - 1].sum(axis=0) for user in range(len(data.users))])
    found: NDArray[np.str_] = np.array(names)[counts.argmax(axis=1)]
    return found


def _agreement(points: Points, favourite: NDArray[np.str_], seed: int) -> float:
    """The share of the nearest neighbours of 2,000 drawn users that have the user's own favourite."""
    from sklearn.neighbors import NearestNeighbors

    drawn = np.random.default_rng(seed).permutation(len(points))[:2000]
    near = NearestNeighbors(n_neighbors=_NEIGHBOURS + 1).fit(points).kneighbors(points[drawn], return_distance=False)
    same = [
        favourite[own] == favourite[[other for other in others if other != own][:_NEIGHBOURS]]
        for own, others in zip(drawn, near, strict=True)
    ]
    return float(np.mean(same))
