"""Batches of a stream that goes on, for `mdl.join(..., data=)`: windows since the last pass join the kept ones.

A bounded, seeded sample of all windows is kept in which each is as likely as any other (`mdl/data/replay.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdl.data.replay import Reservoir
from mdl.errors import ConfigError, DataError

# Parts that one pass takes from a source that never pauses.
_MOST_PARTS = 1_000


class Replay:
    """See the module. source: parts (x, y) of several windows each, x float32 (n, ...), y (n,); None: no more for now.

    capacity: windows to keep at most. batch_size: of each pass over all kept windows, in a new order each time. Raises
    ConfigError; a pass raises DataError while nothing has come.
    """

    def __init__(
        self, source: Iterable[tuple[Any, Any] | None] = (), *, capacity: int, batch_size: int = 32, seed: int = 0
    ) -> None:
        if capacity < 1 or batch_size < 1:
            raise ConfigError(f"capacity is {capacity}, batch_size is {batch_size}: both must be at least 1")
        self._source = iter(source)
        self._waiting: deque[tuple[Any, Any]] = deque(maxlen=_MOST_PARTS)
        self._kept = Reservoir(capacity, seed)
        self._batch_size, self._seed, self._passes = batch_size, seed, 0

    def __len__(self) -> int:
        """Return the number of windows kept by now."""
        return len(self._kept)

    def add(self, x: Any, y: Any) -> None:
        """Add a part for the next pass, from any thread; if a thousand wait, the oldest is dropped."""
        self._waiting.append((x, y))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one pass."""
        self._take_in()
        if not len(self._kept):
            raise DataError("nothing to train on: the stream has given no window so far")
        self._passes += 1
        order = np.random.default_rng([self._seed, self._passes]).permutation(len(self._kept))
        for rows in np.array_split(order, -(-len(order) // self._batch_size)):
            yield torch.from_numpy(self._kept.x[rows]), torch.from_numpy(self._kept.y[rows])

    def _take_in(self) -> None:
        for _, part in zip(range(_MOST_PARTS), self._source, strict=False):
            if part is None:
                break
            self._keep(*part)
        while self._waiting:
            self._keep(*self._waiting.popleft())

    def _keep(self, x: Any, y: Any) -> None:
        self._kept.add(_array(x, np.float32), _array(y, np.int64))


def _array(values: Any, kind: type[np.generic]) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, kind)
