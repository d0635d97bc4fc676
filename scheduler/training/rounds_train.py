"""Trains a participation rule by DQN, compares it on the way with the best shipped one, and keeps the best.

stable-baselines3's DQN learns on `mdl/Rounds-v0` (`mdl[train]`). It begins with a network that chooses as the rule
`best-ratio`. Another choice has to be worth more than that one by a margin, which the network carries in a unit of its
own (`with_margin`). From scratch there is no margin. A helper process plays the held-out worlds while training goes on,
so a comparison is told later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from mdl.errors import MdlError
from mdl.scheduler.rounds.env import ROUNDS_ENV_ID, RoundsEnv
from mdl.scheduler.rounds.judge import Cells, Reference, find_best_rule, less_time_than
from mdl.scheduler.rounds.learned import COLUMNS, Layer, best_ratio_choices, save_rounds_policy, valid_choices
from mdl.scheduler.rounds.world import World
from mdl.scheduler.training.dqn import Actions, FollowSteps, MaskedDQN
from mdl.scheduler.training.train import Report
from mdl.workers import ProcessPool, result_of
from mdl.writing import save_or_rescue

logger = logging.getLogger(__name__)


# Environments side by side, so that a batch holds several worlds.
_AT_ONCE = 8
_SETTINGS: dict[str, Any] = {
    "buffer_size": 50_000,
    "learning_rate": 5e-4,
    # A round takes five to ten decisions: rewards of about ten rounds count.
    "gamma": 0.98,
    "batch_size": 128,
    "target_update_interval": 2_000,
    "train_freq": 1,
    "policy_kwargs": {"net_arch": [64, 64]},
    "device": "cpu",
}
# Decisions before the first gradient step.
_BLIND = 2_000
# The share of decisions that explore, from the first to the last over the first half of the training: from scratch,
# and beside the rule that it begins with.
_RATES_FROM_SCRATCH, _RATES = (1.0, 0.05), (0.2, 0.05)
# In rewards: rounds of all devices. A round of the rule brings about half of one.
MARGIN = 0.2
# A set that can give within a thousandth of the scale of seconds, log(1 + s), counts as one that can give now.
_NOW = 1e3


class RoundsDQN(MaskedDQN):
    """`MaskedDQN` with no choice that is not possible, and a margin in favour of the choices of `best-ratio`."""

    def __init__(self, *args: Any, margin: float, **kwargs: Any) -> None:
        self._margin = margin
        super().__init__(*args, valid=valid_choices, **kwargs)
        if margin:  # before it has learned anything, the rule's choices are all that counts
            with torch.no_grad():
                for network in (self.q_net, self.q_net_target):
                    for values in list(network.parameters())[-2:]:
                        values.zero_()

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[Actions, Actions]:
        assert isinstance(self._last_obs, np.ndarray)
        rate = max(self.exploration_rate, float(self.num_timesteps < learning_starts) * self._first_rate())
        explores = self._chance.random(n_envs) < rate
        with torch.no_grad():
            best = self._pick(self.q_net, torch.from_numpy(self._last_obs)).reshape(-1).numpy()
        actions = np.where(explores, self._draw(self._last_obs), best)
        return actions, actions

    def _first_rate(self) -> float:
        return _RATES[0] if self._margin else _RATES_FROM_SCRATCH[0]

    def _pick(self, network: Any, seen: torch.Tensor) -> torch.Tensor:
        """Return the choice (B, 1) that a network makes."""
        array = seen.numpy()
        values = network(seen)
        values = values.masked_fill(~torch.from_numpy(valid_choices(array)), -torch.inf)
        ruled = torch.from_numpy(best_ratio_choices(array)).reshape(-1, 1)
        best: torch.Tensor = values.scatter_add(1, ruled, torch.full(ruled.shape, self._margin)).argmax(1, keepdim=True)
        return best


def train_rounds(
    n: int,
    steps: int,
    seed: int,
    *,
    from_scratch: bool = False,
    draw: Callable[[np.random.Generator], World] | None = None,
    share: Callable[[], float] | None = None,
    every: int = 1_000,
    on_network: Callable[[int, list[Layer]], bool | None] = lambda step, layers: None,
) -> tuple[list[Layer], int]:
    """Train for `steps` decisions on meshes of n devices; return the network's layers and the decisions made.

    draw: makes a world to train on; by default those of `RoundsEnv`. share: of the training that is over, 0 to 1; by
    default by its steps. on_network gets the decisions so far and the network, every so many decisions, and ends
    training by returning True. The same n, steps and seed give the same network on the same machine.
    """
    torch.set_num_threads(1)
    vector = DummyVecEnv([lambda: _Drawing(n, draw) for _ in range(_AT_ONCE)])
    starts = min(_BLIND, steps // 4)
    margin = 0.0 if from_scratch else MARGIN
    model = RoundsDQN("MlpPolicy", vector, margin=margin, seed=seed, learning_starts=starts, **_SETTINGS)
    first, last = _RATES_FROM_SCRATCH if from_scratch else _RATES

    def over() -> float:
        return share() if share else model.num_timesteps / max(1, steps)

    model.explore_by(lambda: max(last, first - 2.0 * (first - last) * over()))

    def network() -> list[Layer]:
        values = [array.detach().numpy().astype(np.float32) for array in model.q_net.q_net.parameters()]
        return with_margin(list(zip(values[::2], values[1::2], strict=True)), n, margin)

    def follow(step: int) -> bool:
        is_due = step // every > (step - _AT_ONCE) // every
        return is_due and bool(on_network(step, network()))

    model.learn(steps, callback=FollowSteps(follow))
    return network(), model.num_timesteps


def rule_layers(n: int) -> list[Layer]:
    """Return the layers of a network that chooses as `best-ratio` does, and has learned nothing."""
    hidden = (np.zeros((0, n * len(COLUMNS)), np.float32), np.zeros(0, np.float32))
    return with_margin([hidden, (np.zeros((n + 2, 0), np.float32), np.zeros(n + 2, np.float32))], n, MARGIN)


def with_margin(layers: Sequence[Layer], n: int, margin: float) -> list[Layer]:
    """Return the network with one unit more in each hidden layer, which favours the choice of `best-ratio`.

    The unit is 1 if no later set is better than those that can give now, else 0. Then the best set has the margin, else
    the wait.
    """
    if not margin:
        return list(layers)
    made: list[Layer] = []
    for number, (weight, bias) in enumerate(layers[:-1]):
        added = 0 if number == 0 else 1
        wider = np.zeros((weight.shape[0] + 1, weight.shape[1] + added), np.float32)
        wider[:-1, : weight.shape[1]] = weight
        wider[-1, -1 if added else COLUMNS.index("best_later_in_s")] = 1.0 if added else -_NOW
        made.append((wider, np.append(bias, np.float32(1 - added))))
    weight, bias = layers[-1][0], layers[-1][1].copy()
    for_best = np.zeros((n + 2, 1), np.float32)
    for_best[-1] = 2.0 * margin
    bias[0] += margin
    made.append((np.hstack([weight, for_best]), bias))
    return made


class _Drawing(RoundsEnv):
    """The environment with worlds from elsewhere. make: draws one; None: as `RoundsEnv`."""

    def __init__(self, n: int, make: Callable[[np.random.Generator], World] | None) -> None:
        super().__init__(n=n)
        self._make = make

    def draw(self, rng: np.random.Generator) -> World:
        return self._make(rng) if self._make else super().draw(rng)


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
    with ProcessPool(1) if processes else nullcontext() as pool:
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

    def __init__(self, reference: Reference, watched: Cells, n: int, pool: ProcessPool | None) -> None:
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
