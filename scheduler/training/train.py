"""Trains the shipped kind of policy from labels, evaluates it meanwhile, and keeps it on disk. Needs no torch.

Training by DQN (`mdl.scheduler.training.dqn`) needs stable-baselines3.

Trains the Q-network on labels: policy iteration by trying every pick. Pure, no torch.

States come from play that mixes the current policy with chance. In each, every valid pick is tried in a copy of the
same scenario (so that luck is shared), and the policy plays the copy to its end. Coming busy periods are hidden from
the network, which therefore learns the mean over them.

The first labels come from the layout (mdl.scheduler.policies.layout) played to the end, later ones from the network
itself, so that each generation improves on the last. The network learns how much better one pick is than another in the
same state (their luck is the same, so it cancels out), and beside it the value of the state.

The gradient and Adam are in plain NumPy: a device learns beside the mesh (`mdl.scheduler.training.relearn`). Importing
torch and its optimizer takes 270 MB and 2.3 s of processor time, more than a slot of learning itself. Layers and pools
are those of `mdl.scheduler.policies.qnet_numpy`; a test compares the gradient with that of
`mdl.scheduler.training.qnet_torch`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError, MdlError
from mdl.scheduler.policies.chain import Bools, Doubles, Floats, Integers
from mdl.scheduler.policies.features import COLUMN, look_at, observe_receivers, observe_senders
from mdl.scheduler.policies.learned import load_shipped
from mdl.scheduler.policies.qnet_numpy import NumpyQ, Picks, Weights, draw_weights, load_weights, save_weights
from mdl.scheduler.study.judging import Cells, finish, stand_of_rows, watch, watched_cells
from mdl.sim.timing.batch import Batch, PackedScenarios, pack
from mdl.sim.timing.scenario import draw_scenario, vary_scenario
from mdl.workers import ProcessPool, result_of
from mdl.writing import save_or_rescue

# Scenarios of training; those of tuning and judging lie below.
FIRST_TRAINING_SEED = 1_000_000
_SEEDS = 1 << 31
# The cost of a contribution that a death takes out of a round's result, in transfers of the median link.
LOST_TRANSFERS = 2.0
# The cost of a joule per watt and transfer of standard deviation in accumulated energy, in transfers.
IMBALANCE_TRANSFERS = 0.02
# The network plays its own labels with less caution than it decides with, so that it learns from its own ideas.
PLAYED_MARGIN = 0.1
_SIZE_RANGE_MB = (0.2, 50.0)
_FAMILIES = ("paper", "hetero", "dynamic", "dying")
_FAMILY_SHARES = (0.06, 0.16, 0.64, 0.14)
# Share of scenarios of another model size than the family's own.
_RESIZED = 0.2
# While re-learning, the share of scenarios that are variants of those seen; the rest keeps earlier learning.
_SEEN_SHARE = 0.75
# Shares of chance in the play that finds states; then the share of its picks that wait, and of senders drawn at random.
_CHANCE = (0.0, 0.0, 0.1, 0.3)
_CHANCE_WAITS = 0.2
_ANY_SENDER = 0.25
# At most so many picks of one state are tried: the current ones, the best by value, and random others.
_TRIED = 12
_TRIED_BEST = 5
_STATES_A_SCENARIO = 8


class LabelJob(msgspec.Struct, frozen=True):
    """One chunk to produce. sizes: least and greatest N. weights: the policy, None for the layout alone.

    seen: scenarios like a real mesh; most scenarios are then variants of these.
    """

    seed: int
    number: int
    scenarios: int
    sizes: tuple[int, int]
    weights: Weights | None = None
    seen: tuple[Scenario, ...] = ()


@dataclass(frozen=True)
class Labels:
    """S states. features: (S, N, F). exists: (S, N). valid, tried: (S, N + 1). values: (S, N + 1), minus the remaining
    objective in transfers for tried picks, else 0."""

    features: Floats
    exists: Bools
    valid: Bools
    tried: Bools
    values: Floats

    def __len__(self) -> int:
        return len(self.features)


def produce_labels(job: LabelJob) -> Labels:
    """Produce labels; the same job gives the same labels."""
    rng = np.random.default_rng([job.seed, job.number])
    packed = _draw_packed(job, rng)
    picks = Picks(None if job.weights is None else NumpyQ(job.weights), PLAYED_MARGIN)
    states = _meet_states(Batch(packed), picks, job.sizes[1], rng)
    everyone = np.arange(len(states))
    look = look_at(stand_of_rows(states, everyone))
    first = picks.pick_senders(look)
    picked, values = first.positions, first.values
    features, valid, _ = observe_senders(look)
    features = features.copy()
    # Half of the states with a choice of receivers ask for one: for the policy's sender (unless it waits), or for any.
    chance = _any_valid(valid[:, :-1], rng)
    senders = np.where((rng.random(len(states)) < _ANY_SENDER) | (picked == valid.shape[1] - 1), chance, picked)
    rows = np.flatnonzero((rng.random(len(states)) < 0.5) & (valid[:, :-1].sum(axis=1) > 2))
    part = look.take(rows)
    features[rows], valid[rows], _ = observe_receivers(part, senders[rows])
    then = picks.pick_receivers(part, senders[rows])
    picked[rows], values[rows] = then.positions, then.values
    second = np.zeros(len(states), dtype=np.bool_)
    second[rows] = True
    senders = np.where(second, senders, -1)
    tried = _select(valid, values, picked, rng)
    found = _try(states, picks, senders, tried)
    return Labels(features, look.stand.exists, valid, tried, found)


def draw_training_scenario(sizes: tuple[int, int], rng: np.random.Generator) -> Scenario:
    family = _FAMILIES[int(rng.choice(len(_FAMILIES), p=_FAMILY_SHARES))]
    n = int(rng.integers(sizes[0], sizes[1] + 1))
    scenario = draw_scenario(family, n, FIRST_TRAINING_SEED + int(rng.integers(_SEEDS)))
    if rng.random() < _RESIZED and family != "paper":
        low, high = np.log(_SIZE_RANGE_MB)
        scenario = msgspec.structs.replace(scenario, size_mb=float(np.exp(rng.uniform(low, high))))
    return scenario


def _draw_scenario(job: LabelJob, rng: np.random.Generator) -> Scenario:
    if job.seen and rng.random() < _SEEN_SHARE:
        return vary_scenario(job.seen[int(rng.integers(len(job.seen)))], rng)
    return draw_training_scenario(job.sizes, rng)


def _draw_packed(job: LabelJob, rng: np.random.Generator) -> PackedScenarios:
    packed = pack([_draw_scenario(job, rng) for _ in range(job.scenarios)])
    # Energy of earlier rounds ranges from a fresh mesh to one that is far out of balance.
    spread = packed.unit_s[:, None] * rng.uniform(0.0, 5.0, (job.scenarios, 1))
    packed.energy_j[:] = rng.exponential(1.0, packed.energy_j.shape) * spread * packed.exists
    return packed


def _meet_states(batch: Batch, picks: Picks, largest: int, rng: np.random.Generator) -> Batch:
    """Collect copies of states with a choice, met on the way to the end."""
    chance = rng.choice(_CHANCE, len(batch))
    kept: list[Batch] = []
    rate = _STATES_A_SCENARIO / (1.5 * largest)
    over = batch.ended()
    while not over.all():
        choosing = np.flatnonzero((batch.idle().sum(axis=1) > 1) & ~over)
        waits = np.zeros(len(batch), dtype=np.bool_)
        if len(choosing):
            noted = choosing[rng.random(len(choosing)) < rate]
            if len(noted):
                kept.append(batch.take(noted))
            senders, receivers = picks(stand_of_rows(batch, choosing))
            _mix_chance(batch, choosing, senders, receivers, chance[choosing], rng)
            pairs = senders >= 0
            waits[choosing[~pairs]] = True
            batch.start(choosing[pairs], senders[pairs], receivers[pairs])
        moving = ~over & (waits | (batch.idle().sum(axis=1) < 2))
        over |= (~batch.advance(moving) & moving) | batch.ended()
    return Batch.join(kept) if kept else batch.take(np.arange(0))


def _mix_chance(
    batch: Batch, rows: Integers, senders: Integers, receivers: Integers, chance: Doubles, rng: np.random.Generator
) -> None:
    lucky = np.flatnonzero(rng.random(len(rows)) < chance)
    if not len(lucky):
        return
    idle = batch.idle()[rows[lucky]]
    any_sender = _any_valid(idle, rng)
    idle[np.arange(len(lucky)), any_sender] = False
    wait = (rng.random(len(lucky)) < _CHANCE_WAITS) & batch.may_wait()[rows[lucky]]
    senders[lucky] = np.where(wait, -1, any_sender)
    receivers[lucky] = np.where(wait, -1, _any_valid(idle, rng))


def _any_valid(valid: Bools, rng: np.random.Generator) -> Integers:
    any_one: Integers = np.where(valid, rng.random(valid.shape), -1.0).argmax(axis=1)
    return any_one


def _select(valid: Bools, values: Floats, picked: Integers, rng: np.random.Generator) -> Bools:
    """Select the picks to try: all of them if they are few."""
    rank = np.argsort(np.argsort(-values, axis=1), axis=1)
    order = rng.random(valid.shape) + (rank < _TRIED_BEST)
    order[np.arange(len(picked)), picked] = 3.0
    order = np.where(valid, order, -1.0)
    if valid.shape[1] <= _TRIED:
        return valid.copy()
    least = np.partition(order, -_TRIED, axis=1)[:, -_TRIED]
    return valid & (order >= least[:, None])


def _try(states: Batch, picks: Picks, senders: Integers, tried: Bools) -> Floats:
    """Return minus the remaining objective of every pick that is tried (S, N + 1)."""
    rows, actions = tried.nonzero()
    branches = states.take(rows)
    waiting = actions == tried.shape[1] - 1
    second = senders[rows] >= 0
    sender, receiver = np.where(second, senders[rows], actions), actions.copy()
    first = np.flatnonzero(~second & ~waiting)
    if len(first):
        receiver[first] = picks.pick_receivers(look_at(stand_of_rows(branches, first)), sender[first]).positions
    pairs = np.flatnonzero(~waiting)
    branches.start(pairs, sender[pairs], receiver[pairs])
    branches.advance(waiting)
    started, which = states.now_s[rows], branches.which
    packed = states.packed
    unit, exists = packed.unit_s[which], packed.exists[which]
    outcome = finish(branches, picks)
    mean = outcome.energy_j.sum(axis=1, keepdims=True) / exists.sum(axis=1, keepdims=True)
    variance = (np.square(outcome.energy_j - mean) * exists).sum(axis=1) / exists.sum(axis=1)
    objective = (np.maximum(outcome.makespan_s, started) - started) / unit
    objective += LOST_TRANSFERS * outcome.lost + IMBALANCE_TRANSFERS * np.sqrt(variance) / unit
    values = np.zeros(tried.shape, dtype=np.float32)
    values[rows, actions] = -objective
    return values


_MAY_PICK = COLUMN["may_pick"]
# Adam (Kingma and Ba, 2015), as in torch.optim.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
# Longest gradient (L2) of one update.
_LONGEST = 5.0
Backward = Callable[[Floats], Floats]


class Passes:
    """One pass through the network and back: `forward`, and then `backward` once.

    q (B, M + 1) of features (B, M, F); exists: (B, M). Invalid picks have a value as well: the loss leaves them out.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._gradients: Weights = {}
        self._back: Callable[[Floats], None] = lambda gradient: None

    def forward(self, features: Floats, exists: Bools) -> Floats:
        masks = (exists[:, :, None].astype(np.float32), (features[:, :, _MAY_PICK] > 0)[:, :, None].astype(np.float32))
        encoded, back1 = self._rectified("encode1", features)
        hidden, back2 = self._rectified("encode2", encoded)
        backs = []
        for around, own in (("around1", "own1"), ("around2", "own2")):
            hidden, back = self._mix(around, own, hidden, masks)
            backs.append(back)
        advantage, back_advantage = self._layer("advantage", hidden)
        pooled, back_pool = _pool(hidden, masks)
        inner, back_inner = self._rectified("state1", pooled)
        state, back_state = self._layer("state2", inner)
        q = np.concatenate([advantage[:, :, 0], state[:, 1:]], axis=1) + state[:, :1]

        def back_all(gradient: Floats) -> None:
            of_state = np.stack([gradient.sum(axis=1), gradient[:, -1]], axis=1)
            of_hidden = back_pool(back_inner(back_state(of_state)))
            of_hidden += back_advantage(np.ascontiguousarray(gradient[:, :-1, None]))
            for back in reversed(backs):
                of_hidden = back(of_hidden)
            back1(back2(of_hidden))

        self._back = back_all
        return q

    def backward(self, gradient: Floats) -> Weights:
        """Return the gradient of the loss by each weight; gradient: of the loss by q, (B, M + 1)."""
        self._gradients = {}
        self._back(gradient)
        return self._gradients

    def _mix(self, around: str, own: str, hidden: Floats, masks: tuple[Floats, Floats]) -> tuple[Floats, Backward]:
        """Mix each device with the pools over all: ReLU of both layers' sum."""
        mine, back_own = self._layer(own, hidden)
        pooled, back_pool = _pool(hidden, masks)
        context, back_around = self._layer(around, pooled)
        mine += context[:, None, :]
        mixed = np.maximum(mine, 0.0)

        def back(gradient: Floats) -> Floats:
            gradient = gradient * (mixed > 0.0)
            of_hidden = back_own(gradient)
            of_hidden += back_pool(back_around(gradient.sum(axis=1)))
            return of_hidden

        return mixed, back

    def _rectified(self, name: str, values: Floats) -> tuple[Floats, Backward]:
        linear, back_layer = self._layer(name, values)
        out = np.maximum(linear, 0.0)
        return out, lambda gradient: back_layer(gradient * (out > 0.0))

    def _layer(self, name: str, values: Floats) -> tuple[Floats, Backward]:
        weight = self._weights[f"{name}.weight"]
        flat = values.reshape(-1, values.shape[-1])
        out: Floats = flat @ weight.T
        out += self._weights[f"{name}.bias"]

        def back(gradient: Floats) -> Floats:
            rows = gradient.reshape(-1, gradient.shape[-1])
            self._gradients[f"{name}.weight"] = rows.T @ flat
            self._gradients[f"{name}.bias"] = rows.sum(axis=0)
            of_values: Floats = (rows @ weight).reshape(values.shape)
            return of_values

        return out.reshape(*values.shape[:-1], -1), back


def _pool(values: Floats, masks: tuple[Floats, Floats]) -> tuple[Floats, Backward]:
    """Return mean and maximum (B, 4 H) of values (B, M, H) over each mask (B, M, 1)."""
    parts, halves = [], []
    for mask in masks:
        masked, count = values * mask, np.maximum(1.0, mask.sum(axis=1))
        largest = masked.max(axis=1)
        at = (masked == largest[:, None, :]).astype(np.float32)
        at *= mask / at.sum(axis=1, keepdims=True)  # equals share the gradient of a maximum
        parts += [masked.sum(axis=1) / count, largest]
        halves.append((mask / count[:, None, :], at))

    def back(gradient: Floats) -> Floats:
        means, maxima = gradient.reshape(len(gradient), len(masks), 2, -1).transpose(2, 1, 0, 3)
        of_values = np.zeros_like(values)
        for (mean, at), of_mean, of_maximum in zip(halves, means, maxima, strict=True):
            of_values += mean * of_mean[:, None, :]
            of_values += at * of_maximum[:, None, :]
        return of_values

    return np.concatenate(parts, axis=1), back


class Adam:
    """Changes these weights in place, like `torch.optim.Adam` after `clip_grad_norm_`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._means = {name: np.zeros_like(values) for name, values in weights.items()}
        self._squares = {name: np.zeros_like(values) for name, values in weights.items()}
        self._steps = 0

    def step(self, gradients: Weights, rate: float) -> None:
        self._steps += 1
        length = float(np.sqrt(sum(float(np.square(each, dtype=np.float64).sum()) for each in gradients.values())))
        scale = np.float32(min(1.0, _LONGEST / (length + 1e-6)))
        first, second = (1.0 - beta**self._steps for beta in _BETAS)
        for name, values in self._weights.items():
            gradient = gradients[name] * scale
            self._means[name] += (1.0 - _BETAS[0]) * (gradient - self._means[name])
            self._squares[name] += (1.0 - _BETAS[1]) * (np.square(gradient) - self._squares[name])
            width = np.sqrt(self._squares[name] / second) + _EPSILON
            values -= (rate / first) * self._means[name] / width


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
class TrainingProgress:
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
    on_progress: Callable[[TrainingProgress], bool | None] | None = None,
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
        if on_progress is not None and on_progress(TrainingProgress(step, steps, loss, states, mean)):
            break
    return mean


def _produce(job: Callable[[int], LabelJob], steps: int, processes: int) -> Iterator[Labels]:
    """Yield labels in the order of their numbers, always equally far ahead, for any number of processes."""
    with ProcessPool(processes) if processes else nullcontext() as pool:
        pending: deque[Callable[[], Labels]] = deque()
        for number in range(steps + _AHEAD):
            if number < steps:
                pending.append(_soon(pool, job(number)) if pool else _later(job(number)))
            if number >= _AHEAD:
                yield pending.popleft()()


def _soon(pool: ProcessPool, job: LabelJob) -> Callable[[], Labels]:
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


logger = logging.getLogger(__name__)

# Steps that show the time of one: a cycle of all sizes of mesh.
_TRIAL_STEPS = 8
# The share of the given minutes for the planned steps; the rest allows for slower ones.
_PLANNED_SHARE = 0.9
# Evaluations in the course of a training, and the scenarios of each cell.
_EVALUATIONS = 10
_WATCHED_SCENARIOS = 60


@dataclass(frozen=True)
class Report:
    """The progress of training. figures: if measured, the percent by which rounds take less time than by `rule`."""

    stage: str
    step: int
    steps: int
    loss: float | None
    figures: dict[str, float] | None
    rule: str = "the greedy rule"


@dataclass(frozen=True)
class TrainedNetwork:
    """The best network of a training, by the measurements on its way.

    steps: done in all, with those of a resumed file. ended: all steps were done.
    """

    network: Weights
    steps: int
    ended: bool


def train_policy(
    steps: int,
    seed: int,
    processes: int,
    out: Path,
    command: str,
    *,
    resume: bool = False,
    from_scratch: bool = False,
    seen: tuple[Scenario, ...] = (),
    watched: Cells | None = None,
    on_report: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainedNetwork:
    """Train on labels until `steps` are done in all; keep the best network in `out`, also meanwhile.

    The same steps, seed and processes give the same policy on the same machine, unless it was stopped and resumed.
    It begins with the shipped policy. resume: with that of `out`; its weights are kept, not the labels. from_scratch:
    with random weights. seen: see `train_on_labels`. watched: scenarios to compare with the greedy rule on; by default
    those of `WATCHED`. Raises ConfigError if `out` has all the steps.
    """
    start, done = _resume(out, steps) if resume else (None if from_scratch else load_shipped()[0], 0)
    gain = watch(watched_cells(_WATCHED_SCENARIOS) if watched is None else watched)
    every = max(1, (steps - done) // _EVALUATIONS)
    best = _Best()
    count = done

    def keep(path: Path) -> None:
        told = {"trained_by": "labels", "command": command, "seed": seed, "steps": count, "evaluation": best.figures}
        save_weights(path, best.network, told)

    def follow(progress: TrainingProgress) -> bool:
        nonlocal count
        count, stops = done + progress.step, should_stop()
        # A network that began with random weights waits so often that judging it would take longer than training it.
        is_early = start is None and progress.step < 2 * every
        shown = None
        # A user that stops it need not wait half a minute for judging an early network; the last one is always judged.
        if count == steps or (progress.step % every == 0 and not (is_early or stops)):
            shown = gain(NumpyQ(progress.network))
            best.offer(progress.network, shown)
            try:
                keep(out)
            except MdlError as error:  # a later save may succeed, also at the end
                logger.warning("%s; training goes on", error)
        elif not best.figures:
            best.network = progress.network
        on_report(Report("labels", count, steps, progress.loss, shown))
        return stops

    if start is not None:
        best.offer(start, gain(NumpyQ(start)))
        on_report(Report("labels", done, steps, None, best.figures))
    # A resumed training must not see the labels of its beginning again.
    train_on_labels(steps - done, seed + done, processes, start=start, seen=seen, on_progress=follow)
    save_or_rescue(out, keep)
    return TrainedNetwork(best.network, count, count == steps)


class _Best:
    """The network with the best mean of its figures so far; the last one until there are figures."""

    def __init__(self) -> None:
        self.network: Weights = {}
        self.figures: dict[str, float] = {}

    def offer(self, network: Weights, figures: dict[str, float]) -> None:
        if not self.figures or fmean(figures.values()) > fmean(self.figures.values()):
            self.network, self.figures = network, figures


def plan_steps(
    minutes: float, seed: int, processes: int, clock: Callable[[], float], seen: tuple[Scenario, ...] = ()
) -> int:
    """Estimate the steps that fit in so many minutes here, by trying a few with the shipped policy. clock: seconds.

    An untrained network would not do: it waits so often that its rollouts take many times as long.
    """
    if not minutes > 0:
        raise ConfigError(f"--minutes {minutes}: must be above 0")
    start, _ = load_shipped()
    began_s = clock()
    train_on_labels(_TRIAL_STEPS, seed, processes, start=start, seen=seen)
    trial_s = clock() - began_s
    left_s = 60.0 * minutes - trial_s
    return max(_TRIAL_STEPS, int(_PLANNED_SHARE * left_s / trial_s * _TRIAL_STEPS))


def _resume(out: Path, steps: int) -> tuple[Weights, int]:
    if not out.is_file():
        raise ConfigError(f"--resume: {out} does not exist; leave --resume out to start")
    network, metadata = load_weights(out)
    done = metadata.get("steps")
    if not isinstance(done, int):
        raise ConfigError(f"--resume: {out} does not say how many steps it has had")
    if done >= steps:
        raise ConfigError(f"--steps {steps}: {out} has had {done} already; give more")
    return network, done
