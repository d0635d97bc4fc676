"""Trains the Q-network on labels: policy iteration by trying every pick (see `mdl.scheduler.training.branching`).

The first labels come from the layout (mdl.scheduler.policies.layout) played to the end, later ones from the network
itself, so that each generation improves on the last. The network learns how much better one pick is than another in the
same state (their luck is the same, so it cancels out), and beside it the value of the state. NumPy alone: a device
learns beside the mesh (`mdl.scheduler.training.relearn`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError
from mdl.scheduler.policies.chain_arrays import Floats
from mdl.scheduler.policies.qnet_numpy import Weights, draw_weights
from mdl.scheduler.training.branching import LabelJob, Labels, produce_labels
from mdl.scheduler.training.qnet_gradient import Adam, Passes
from mdl.workers import Workers, result_of

# Chunks by size of mesh: least and greatest N, scenarios a chunk. One cycle; small and middle sizes come more often.
_CYCLE: tuple[tuple[tuple[int, int], int], ...] = (
    ((7, 10), 400),
    ((11, 16), 160),
    ((3, 6), 300),
    ((7, 10), 400),
    ((11, 16), 160),
    ((17, 24), 70),
    ((11, 16), 160),
    ((25, 40), 12),
)
# Scenarios a chunk while re-learning, in the sizes of the mesh.
_SEEN_SCENARIOS = 96
# Chunks in the air, so that workers are never idle; the weights of a chunk are that much older.
_AHEAD = 3
# Share of the steps in which rollouts follow the layout alone.
_LAYOUT_SHARE = 0.35
# At least so many: a network that knows nothing yet keeps waiting in its rollouts.
_LEAST_LAYOUT = 24
# Chunks kept for training: enough to smooth, few enough that all come from recent policies.
_REPLAY = 128
_UPDATES_A_STEP = 4
_MINIBATCH = 1024
_RATE = 7e-4
_LAST_RATE = 1e-5
_STATE_VALUE_WEIGHT = 0.01
# Labels beyond so many transfers from the mean of their state are cut: rare long calls would drown the rest.
_CUT = 5.0
# The policy that is kept is a running mean of the weights.
_MEAN_DECAY = 0.995


@dataclass(frozen=True)
class Progress:
    """After a step: its number out of `steps`, advantage loss (squared transfers), states seen, network so far."""

    step: int
    steps: int
    loss: float
    states: int
    network: Weights


def train_on_labels(
    steps: int,
    seed: int = 0,
    processes: int = 1,
    *,
    start: Weights | None = None,
    seen: tuple[Scenario, ...] = (),
    on_progress: Callable[[Progress], bool | None] | None = None,
) -> Weights:
    """Train for `steps` chunks of labels. The same steps, seed and number of processes give the same network.

    processes: workers beside this process that produce labels; 0 produces them here. start: a network to go on from
    (then it makes the first labels, too). seen: scenarios like a real mesh, to learn it above all
    (`mdl.scheduler.training.relearn`). on_progress is called after every step and ends training early by returning
    True. Raises ConfigError for steps below 1.
    """
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, not {steps}")
    network = draw_weights(np.random.default_rng(seed)) if start is None else start
    network = {name: values.copy() for name, values in network.items()}
    mean = {name: values.copy() for name, values in network.items()}
    rng = np.random.default_rng([seed, 1])
    optimiser = Adam(network)
    replay: deque[Labels] = deque(maxlen=_REPLAY)
    states = 0
    counts = [len(scenario.devices) for scenario in seen] or [2]
    seen_sizes = (min(counts), max(counts))

    def job(number: int) -> LabelJob:
        first = start is None and number < max(_LAYOUT_SHARE * steps, _LEAST_LAYOUT)
        sizes, scenarios = (seen_sizes, _SEEN_SCENARIOS) if seen else _CYCLE[number % len(_CYCLE)]
        return LabelJob(seed, number, scenarios, sizes, None if first else mean, seen)

    for step, labels in enumerate(_produce(job, steps, processes), 1):
        if len(labels):
            replay.append(labels)
        states += len(labels)
        rate = _LAST_RATE + 0.5 * (_RATE - _LAST_RATE) * (1.0 + float(np.cos(np.pi * step / steps)))
        loss = 0.0
        for _ in range(_UPDATES_A_STEP if replay else 0):
            gradients, advantage = find_gradients(network, _draw_rows(replay[int(rng.integers(len(replay)))], rng))
            optimiser.step(gradients, rate)
            loss += advantage / _UPDATES_A_STEP
            decay = min(_MEAN_DECAY, step / (step + 10.0))
            mean = {name: decay * mean[name] + (1.0 - decay) * now for name, now in network.items()}
        if on_progress is not None and on_progress(Progress(step, steps, loss, states, mean)):
            break
    return mean


def _produce(job: Callable[[int], LabelJob], steps: int, processes: int) -> Iterator[Labels]:
    """Yield labels in the order of their numbers, always equally far ahead, for any number of processes."""
    with Workers(processes) if processes else nullcontext() as pool:
        pending: deque[Callable[[], Labels]] = deque()
        for number in range(steps + _AHEAD):
            if number < steps:
                pending.append(_soon(pool, job(number)) if pool else _later(job(number)))
            if number >= _AHEAD:
                yield pending.popleft()()


def _soon(pool: Workers, job: LabelJob) -> Callable[[], Labels]:
    future = pool.submit(produce_labels, job)
    return lambda: result_of(future)


def _later(job: LabelJob) -> Callable[[], Labels]:
    return lambda: produce_labels(job)


def _draw_rows(labels: Labels, rng: np.random.Generator) -> Labels:
    rows = rng.permutation(len(labels))[:_MINIBATCH]
    features, exists, valid = labels.features[rows], labels.exists[rows], labels.valid[rows]
    return Labels(features, exists, valid, labels.tried[rows], labels.values[rows])


def find_gradients(network: Weights, labels: Labels) -> tuple[Weights, float]:
    """Return the gradient of the loss by each weight, and the loss of the advantages, squared transfers.

    The loss of the state's value beside it is smooth L1 (Huber with 1 transfer), of the mean of the tried picks.
    """
    passes, tried = Passes(network), labels.tried.astype(np.float32)
    q = passes.forward(labels.features, labels.exists) * tried
    count = np.maximum(1.0, tried.sum(axis=1, keepdims=True))
    mean_q, mean_value = (each.sum(axis=1, keepdims=True) / count for each in (q, labels.values))
    target = np.clip(labels.values - mean_value, -_CUT, _CUT)
    error: Floats = ((q - mean_q) - target) * tried
    of_state = np.clip(mean_q - mean_value, -1.0, 1.0)
    # Each tried pick moves the mean that is subtracted from all of them.
    gradient = (2.0 * (error - tried * error.sum(axis=1, keepdims=True) / count)) / len(labels)
    gradient += _STATE_VALUE_WEIGHT * of_state * tried / count / len(labels)
    return passes.backward(gradient), float(np.square(error).sum(axis=1).mean())
