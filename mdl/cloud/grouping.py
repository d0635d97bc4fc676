"""Groups of devices with similar models (Colla 3.2): distances of their outputs, groups by affinity propagation.

All models answer the same rows of the cloud's data; models with similar answers belong together, and each group gets a
teacher of its own. Affinity propagation takes no K: a preference decides how many exemplars arise, and it is searched
for each K of the paper's {2, 3, 5, 10}. Needs scikit-learn, which only a cloud has (the extra `cloud`).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from collections.abc import Iterable
from types import ModuleType

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.errors import ConfigError, DataError

Matrix = NDArray[np.float64]

GROUP_COUNTS = (2, 3, 5, 10)
# A client gives missing classes exactly 0, and the logarithm of 0 would outweigh all else: 1 in 1,000 is "never".
_LEAST_PROBABILITY = 1e-3
# Halvings of the preference's range: the last step is a millionth of it.
_HALVINGS = 20


class Grouping(msgspec.Struct, frozen=True):
    """groups: each model's group, 0..k-1. exemplars: the model at the centre of each. silhouettes: by every K that
    affinity propagation could be brought to; empty if there were too few models or no K was reached: one group.
    """

    groups: tuple[int, ...]
    exemplars: tuple[int, ...]
    silhouettes: dict[int, float]

    @property
    def count(self) -> int:
        return len(self.exemplars)


def can_group() -> bool:
    """Return True if scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def model_distances(outputs: NDArray[np.floating]) -> Matrix:
    """Return distances (M, M) of M models from their probabilities (M, N, C) for the same N rows; classes padded alike.

    A distance is the mean over the rows of the cross-entropy H(p_i, p_j), made symmetric, less the mean of the two
    models' own entropies: a model is at 0 from itself. Without this, the vaguest model would be the furthest from all
    others. Raises DataError if a probability is negative or not finite.
    """
    if outputs.ndim != 3 or not outputs.size:
        raise DataError(f"outputs of shape {outputs.shape}: expected (models, rows, classes), none of them 0")
    if not np.isfinite(outputs).all() or outputs.min() < 0:
        raise DataError("outputs hold a negative probability, NaN or infinity")
    p = np.maximum(outputs, _LEAST_PROBABILITY).astype(np.float64)
    p /= p.sum(axis=2, keepdims=True)
    flat = p.reshape(len(p), -1)
    cross = -(flat @ np.log(flat).T) / outputs.shape[1]
    own = np.diag(cross)
    distances = (cross + cross.T) / 2 - (own[:, None] + own[None, :]) / 2
    np.fill_diagonal(distances, 0.0)
    return np.asarray(np.maximum(distances, 0.0))


def group_models(distances: Matrix, counts: Iterable[int] = GROUP_COUNTS, seed: int = 0) -> Grouping:
    """Return the grouping with the highest silhouette among those of K groups for a K in `counts`; ties: fewer groups.

    A K that no preference yields is left out, as is one that is not below the number of models.
    Raises ConfigError if scikit-learn is missing, DataError if `distances` is not a matrix of distances (M, M).
    """
    _check_distances(distances)
    (_, metrics), found = _import_cluster(), {}
    for count in sorted(set(counts)):
        if 2 <= count < len(distances) and (grouping := propagate_affinity(distances, count, seed)) is not None:
            score = metrics.silhouette_score(distances, grouping[0], metric="precomputed")
            found[count] = (float(score), *grouping)
    if not found:
        return Grouping((0,) * len(distances), (_medoid(distances),), {})
    best = max(found, key=lambda count: (found[count][0], -count))
    _, groups, exemplars = found[best]
    silhouettes = {count: round(score, 6) for count, (score, _, _) in found.items()}
    return Grouping(tuple(groups), tuple(exemplars), silhouettes)


def propagate_affinity(distances: Matrix, count: int, seed: int = 0) -> tuple[list[int], list[int]] | None:
    """Return (group of each model, exemplars) with exactly `count` groups, or None if no preference tried yields them.

    A higher preference makes more exemplars, roughly: the range is halved towards `count`, from "one group for all" to
    "each its own". If the count jumps over `count`, an even scan of the range decides.
    """
    low, high = preference_range(distances)
    ends = low, high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        result = _run(distances, middle, seed)
        if len(result[1]) == count:
            return result
        if 0 < len(result[1]) < count:
            low = middle
        else:
            # Too many, or no convergence: the higher the preference the likelier the second.
            high = middle
    for preference in np.linspace(*ends, 2 * _HALVINGS):
        result = _run(distances, float(preference), seed)
        if len(result[1]) == count:
            return result
    return None


def preference_range(distances: Matrix) -> tuple[float, float]:
    """Return the range from one exemplar for all to every model its own (similarities are -distances)."""
    off_diagonal = distances[~np.eye(len(distances), dtype=bool)]
    # One exemplar costs the smallest column sum; two save at most that.
    return -float(distances.sum(axis=0).min()) - 1e-9, -float(off_diagonal.min()) + 1e-9


def _run(distances: Matrix, preference: float, seed: int) -> tuple[list[int], list[int]]:
    """Run affinity propagation; return ([], []) if its messages do not converge."""
    cluster, _ = _import_cluster()
    with warnings.catch_warnings():
        # Its warning only repeats the labels of -1.
        warnings.simplefilter("ignore")
        fitted = cluster.AffinityPropagation(
            damping=0.8, max_iter=500, preference=preference, affinity="precomputed", random_state=seed
        ).fit(-distances)
    exemplars = [int(index) for index in fitted.cluster_centers_indices_]
    groups = [int(label) for label in fitted.labels_]
    return (groups, exemplars) if groups and min(groups) >= 0 else ([], [])


def _check_distances(distances: Matrix) -> None:
    square = distances.ndim == 2 and distances.shape[0] == distances.shape[1] and len(distances) > 0
    if not square or not np.isfinite(distances).all() or not np.allclose(distances, distances.T):
        raise DataError(f"distances of shape {distances.shape}: expected a symmetric, finite (models, models)")
    if distances.min() < 0 or not math.isclose(float(np.abs(np.diag(distances)).max()), 0.0):
        raise DataError("distances hold a negative one, or a model that is not at 0 from itself")


def _medoid(distances: Matrix) -> int:
    return int(distances.sum(axis=0).argmin())


def _import_cluster() -> tuple[ModuleType, ModuleType]:
    """Import sklearn.cluster and sklearn.metrics. Raises ConfigError if scikit-learn is missing."""
    try:
        return importlib.import_module("sklearn.cluster"), importlib.import_module("sklearn.metrics")
    except ImportError:
        raise ConfigError("grouping models needs scikit-learn: pip install 'mdl[cloud]'") from None
