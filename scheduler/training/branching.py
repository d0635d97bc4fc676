"""Labels for the Q-network: the outcome of each pick, found by trying it in copies of the simulation. Pure, no torch.

States come from play that mixes the current policy with chance. In each, every valid pick is tried in a copy of the
same scenario (so that luck is shared), and the policy plays the copy to its end. Coming busy periods are hidden from
the network, which therefore learns the mean over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from mdl.devices.scenario import Scenario
from mdl.scheduler.policies.chain_arrays import Bools, Doubles, Floats, Integers
from mdl.scheduler.policies.features import look_at, observe_receivers, observe_senders
from mdl.scheduler.policies.picks import Picks
from mdl.scheduler.policies.qnet_numpy import NumpyQ, Weights
from mdl.scheduler.study.parallel_play import finish, stand_of_rows
from mdl.sim.timing.batch import Batch, Packed, pack
from mdl.sim.timing.scenario import draw_scenario, vary_scenario

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


def _draw_packed(job: LabelJob, rng: np.random.Generator) -> Packed:
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
