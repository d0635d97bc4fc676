"""A user's own model over its batches, as `mdl.join(...).run()` trains it in every round: one pass, and its batches.

Gradient accumulation is a step of the optimizer every so many batches, which count alike. Mixed precision is a forward
pass under autocast while parameters stay float32; for float16 the loss is scaled. `Replay` gives batches of a stream
that goes on, for `mdl.join(..., data=)`: windows since the last pass join a bounded, seeded sample of all windows, in
which each is as likely as any other (`mdl/data/watch.py`). Knows no rounds and no mesh.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.data.watch import Reservoir
from mdl.errors import ConfigError, DataError

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Parts that one pass takes from a source that never pauses.
_MOST_PARTS = 1_000


@dataclass
class Loop:
    """The parts of a pass. scheduler: any with `step`, called once a pass. accumulate: batches a step of the optimizer.

    scaler: of the loss in float16; made here if none is given. proximal: mu of FedProx, which keeps a pass near its
    first parameters (arXiv 1812.06127, Eq. 2). Raises ConfigError for invalid values.
    """

    optimizer: torch.optim.Optimizer | None = None
    data: Batches | None = None
    loss: Loss | None = None
    scheduler: Any = None
    scaler: torch.amp.GradScaler | None = None
    accumulate: int = 1
    precision: Precision = "float32"
    proximal: float = 0.0

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ConfigError(f"accumulate is {self.accumulate}: it must be at least 1")
        if not 0 <= self.proximal < math.inf:
            raise ConfigError(f"proximal is {self.proximal}: it must be at least 0")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is {self.precision!r}: expected one of {', '.join(PRECISIONS)}")

    def stateful(self) -> dict[str, Any]:
        """Return the parts that have a state to keep, by name."""
        named = {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}
        return {name: value for name, value in named.items() if value is not None}

    def prepare(self, model: nn.Module) -> None:
        """Prepare the first pass. Raises ConfigError if a part is missing that a pass needs."""
        if self.optimizer is None or self.data is None or self.loss is None:
            raise ConfigError(
                "run() needs optimizer, data and loss; or iterate over the rounds with a loop of your own"
            )
        if self.precision == "float16" and self.scaler is None:
            self.scaler = torch.amp.GradScaler(device_of(model).type)

    def train(self, model: nn.Module) -> tuple[float, int]:
        """Train one pass over the batches, which go to the model's device: (mean loss in nats, samples).

        Batches left over at the end make a smaller step. Raises DataError if the loss is not finite.
        """
        assert self.optimizer is not None
        assert self.data is not None
        device, total, samples, waiting = device_of(model), 0.0, 0, 0
        anchors = [(each, each.detach().clone()) for each in model.parameters() if self.proximal and each.requires_grad]
        self.optimizer.zero_grad()
        for x, y in self.data:
            value = self._add_gradients(model, x.to(device), y.to(device))
            if not math.isfinite(value):
                raise DataError(f"the training loss is {value} after {samples} samples: try a lower learning rate")
            total, samples, waiting = total + value * len(y), samples + len(y), waiting + 1
            if waiting == self.accumulate:
                self._step(anchors)
                waiting = 0
        if waiting:
            self._step(anchors)
        if self.scheduler is not None:
            self.scheduler.step()
        return total / max(samples, 1), samples

    def _add_gradients(self, model: nn.Module, x: Tensor, y: Tensor) -> float:
        assert self.loss is not None
        kind = PRECISIONS[self.precision]
        with torch.autocast(x.device.type, kind, enabled=kind is not torch.float32):
            loss = self.loss(model(x), y)
        scaled = self.scaler.scale(loss) if self.scaler else loss
        (scaled / self.accumulate).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _step(self, anchors: list[tuple[nn.Parameter, Tensor]]) -> None:
        """Take a step. anchors: trained parameters, each with its values at the beginning of the pass."""
        assert self.optimizer is not None
        if self.scaler and anchors:
            self.scaler.unscale_(self.optimizer)
        for parameter, anchor in anchors:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.proximal)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


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
