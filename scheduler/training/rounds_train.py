"""Trains a participation rule, compares it on the way with the best shipped rule, and keeps the best. Needs mdl[train].

A helper process plays the held-out worlds while training goes on, so a comparison is told later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import stable_baselines3

from mdl.errors import MdlError
from mdl.scheduler.rounds.env import ROUNDS_ENV_ID
from mdl.scheduler.rounds.held_out import Cells, Reference, find_best_rule, less_time_than
from mdl.scheduler.rounds.learned import Layer, save_rounds_policy
from mdl.scheduler.rounds.world import World
from mdl.scheduler.training.rounds_dqn import rule_layers, train_rounds
from mdl.scheduler.training.train import Report
from mdl.workers import Workers, result_of
from mdl.writing import save_or_rescue

logger = logging.getLogger(__name__)

# Comparisons in the course of a training.
_COMPARISONS = 6
# Decisions from one call of `should_stop` to the next.
_FOLLOWED = 500

Less = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class TrainedRounds:
    """The best network of a training, by the comparisons on its way.

    rule: the shipped rule that it is compared with. steps: decisions done. ended: all of them were. learned: False if
    nothing was better than the network that it began with.
    """

    layers: list[Layer]
    rule: str
    steps: int
    ended: bool
    learned: bool


def train_rounds_policy(
    n: int,
    steps: int,
    seed: int,
    out: Path,
    command: str,
    *,
    watched: Cells,
    processes: int = 1,
    from_scratch: bool = False,
    draw: Callable[[np.random.Generator], World] | None = None,
    share: Callable[[], float] | None = None,
    on_report: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainedRounds:
    """Train for `steps` decisions on meshes of n devices; keep the best network in `out`, also meanwhile.

    It begins with a network that chooses as `best-ratio`. from_scratch: with random weights. watched: worlds to compare
    on. draw, share: see `train_rounds`. Without share the same arguments give the same policy on the same machine; with
    it a comparison is left out while another one is under way.
    """
    reference = find_best_rule(watched)
    logger.info("the best rule on the worlds held out is %s", reference.rule)
    first, count, compared = rule_layers(n), 0, 0.0
    with Workers(1) if processes else nullcontext() as pool:
        best = _Best(reference, watched, n, pool)

        def keep(path: Path) -> None:
            told = {"command": command, "evaluation": best.figures, "compared_with": reference.rule}
            save_rounds_policy(path, best.layers, n, _describe_training(count, seed) | told)

        def collect() -> None:
            for step, figures, is_better in best.collect():
                shown = {cell: gain for cell, (gain, _) in figures.items()}
                on_report(Report("rounds", step, steps, None, shown, f"the rule {reference.rule}"))
                if is_better:
                    try:
                        keep(out)
                    except MdlError as error:  # a later save may succeed, also at the end
                        logger.warning("%s; training goes on", error)

        def follow(step: int, layers: list[Layer]) -> bool:
            nonlocal count, compared
            count, over = step, share() if share else step / steps
            if over >= compared + 1.0 / _COMPARISONS and (share is None or best.is_free()):
                compared = over
                collect()
                best.offer(step, layers)
            on_report(Report("rounds", step, steps, None, None))
            return should_stop()

        if not from_scratch:
            best.offer(0, first)
        every = min(_FOLLOWED, max(1, steps // (2 * _COMPARISONS)))
        layers, count = train_rounds(
            n, steps, seed, from_scratch=from_scratch, draw=draw, share=share, every=every, on_network=follow
        )
        best.offer(count, layers)
        collect()
        save_or_rescue(out, keep)
    return TrainedRounds(best.layers, reference.rule, count, count >= steps, best.layers is not first)


def _describe_training(steps: int, seed: int) -> dict[str, object]:
    """Describe the training for a policy file."""
    told = f"stable-baselines3 {stable_baselines3.__version__} DQN, on {ROUNDS_ENV_ID}"
    return {"trained_by": told, "steps": steps, "seed": seed}


class _Best:
    """The network with the best mean of its figures so far. pool: plays the worlds; None: this process does."""

    def __init__(self, reference: Reference, watched: Cells, n: int, pool: Workers | None) -> None:
        self.layers: list[Layer] = []
        self.figures: Less = {}
        self._reference, self._watched, self._n, self._pool = reference, watched, n, pool
        self._pending: deque[tuple[int, list[Layer], Future[Less]]] = deque()

    def is_free(self) -> bool:
        """Return True if no comparison is under way."""
        return all(future.done() for *_, future in self._pending)

    def offer(self, step: int, layers: list[Layer]) -> None:
        """Begin to compare a network; `collect` tells the result."""
        given = (self._reference, layers, self._n, self._watched)
        if self._pool is not None:
            future = self._pool.submit(less_time_than, *given)
        else:
            future = Future()
            future.set_result(less_time_than(*given))
        self._pending.append((step, layers, future))

    def collect(self) -> Iterator[tuple[int, Less, bool]]:
        """Yield the step, the figures, and True if they are the best so far, of each network that was offered."""
        while self._pending:
            step, layers, future = self._pending.popleft()
            figures = result_of(future)
            is_better = not self.figures or _mean(figures) > _mean(self.figures)
            if is_better:
                self.layers, self.figures = layers, figures
            yield step, figures, is_better


def _mean(figures: Less) -> float:
    return fmean(gain for gain, _ in figures.values())
