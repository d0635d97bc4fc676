"""The quality of a ranking (Eq. 8): HitRate@K, NDCG@K and macro-AUC; ties count against us.

The paper prints NDCG with the indicator inside the logarithm too, which would make it HitRate; log2(R + 1) is meant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def ranks(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the rank of the first candidate among all, (B,), 1 is best. scores: (B, 1 + n). NaN is worst.

    An equal score of another candidate stands before it.
    """
    first, others = scores[:, :1], scores[:, 1:]
    found: NDArray[np.int64] = 1 + others.shape[1] - (others < first).sum(axis=1)
    return found


def hits(rank: NDArray[np.int64], k: int) -> Floats:
    """Return 1 if the item is among the first k, (B,); the mean over users is HitRate@K."""
    return (rank <= k).astype(np.float64)


def gains(rank: NDArray[np.int64], k: int) -> Floats:
    """Return 1 / log2(R + 1) if the item is among the first k, else 0, (B,); the mean over users is NDCG@K."""
    return np.where(rank <= k, 1 / np.log2(rank + 1), 0.0)


def top_metrics(rank: NDArray[np.int64]) -> dict[str, float]:
    """Return Table 2's five metrics, in percent."""
    hit = {f"HR@{k}": 100 * float(hits(rank, k).mean()) for k in (1, 5, 10)}
    return hit | {f"NDCG@{k}": 100 * float(gains(rank, k).mean()) for k in (5, 10)}
