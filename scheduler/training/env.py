"""The Chain-scheduler's problem on the simulated mesh as a Gymnasium environment, `mdl/Chain-v0`.

`ChainVectorEnv` plays many iterations side by side, on `mdl.sim.timing.batch`.

The true objective of an iteration, and its end by the greedy rule: training rewards come from both.

J = makespan + energy_weight x imbalance + lost_weight x lost contributions, in transfers of the median link: times are
divided by its transfer time, energies by a sender's energy in that time. The rule of rollouts is simple enough for
batches: among the idle, the device with the costliest link (and kind of use) sends, the cheapest receives, none waits.
The layout (`mdl.scheduler.policies.layout`) may continue instead: slower to play, and nearer to a network's play.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, pstdev
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from msgspec.structs import replace

from mdl.devices.energy import SEND_W
from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError
from mdl.scheduler.policies.chain import BUSY_SHARE, Bools, Doubles, Integers, Stand, stand_of
from mdl.scheduler.policies.features import COLUMN, FEATURES, Look, look_at, observe_receivers, observe_senders
from mdl.scheduler.policies.layout import cost_to_keep, lay_out, prospects, receivers_for
from mdl.scheduler.policies.qnet_numpy import layout_rule
from mdl.scheduler.policies.trained_under import LAYOUT
from mdl.scheduler.study.judging import stand_of_rows, step
from mdl.scheduler.study.play import PlayedSegments, everywhere_s, play_segments, view_of
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import FAMILIES, draw_scenario

# Transfers: costs of devices that may not receive; those of devices that may not be paired are infinite.
_FULL = 1e6


@dataclass(frozen=True)
class Objective:
    """energy_weight: for the standard deviation of accumulated energy. lost_weight: for one device's contribution."""

    energy_weight: float = 0.02
    lost_weight: float = 2.0

    def value(self, iteration: Iteration, unit_s: float) -> float:
        """Return J of an iteration; at its end the true value, before that with the time so far."""
        elapsed_s = iteration.makespan_s if iteration.ended else iteration.now_s
        energy_j = [iteration.energy_j(index) for index in range(len(iteration.scenario.devices))]
        imbalance = pstdev(energy_j) / (SEND_W * unit_s)
        return elapsed_s / unit_s + self.energy_weight * imbalance + self.lost_weight * len(iteration.lost)

    def values(self, batch: Batch) -> Doubles:
        """Return the same for each row of a batch, shape (B,)."""
        packed, which = batch.packed, batch.which
        exists, unit = packed.exists[which], packed.unit_s[which]
        elapsed_s = np.where(batch.ended(), batch.makespan_s(), batch.now_s)
        count = exists.sum(axis=1)
        mean = np.where(exists, batch.energy_j, 0.0).sum(axis=1) / count
        spread = np.sqrt((np.where(exists, batch.energy_j - mean[:, None], 0.0) ** 2).sum(axis=1) / count)
        lost = batch.lost.sum(axis=1)
        values: Doubles = elapsed_s / unit + self.energy_weight * spread / (SEND_W * unit) + self.lost_weight * lost
        return values


def unit_of(scenario: Scenario) -> float:
    """Return the seconds of a transfer over the median link."""
    return scenario.latency_s + scenario.size_mb / median(device.link_mb_s for device in scenario.devices)


def rollout_costs(scenario: Scenario) -> Doubles:
    """Return the rule's costs, shape (n,), in transfers of the median link: link time, lengthened by the kind's risk.

    A device that may not receive costs more than all others: it sends first.
    """
    links = np.array([device.link_mb_s for device in scenario.devices])
    share = BUSY_SHARE[[device.kind for device in scenario.devices]]
    costs = _cost(scenario.size_mb / links / unit_of(scenario), share)
    return np.where([device.may_receive for device in scenario.devices], costs, _FULL)


def finish(iteration: Iteration, costs: Doubles, sender: int | None = None) -> None:
    """Play an iteration to its end by the rule. costs: (N,). sender: of the first pair, if it is picked already."""
    while not iteration.ended:
        idle = iteration.idle()
        while len(idle) >= 2:
            giver = max(idle, key=costs.__getitem__) if sender is None else sender
            sender = None
            idle.remove(giver)
            taker = min(idle, key=costs.__getitem__)
            idle.remove(taker)
            iteration.start(giver, taker)
        if not iteration.advance():
            return


def batch_costs(batch: Batch) -> Doubles:
    """Return `rollout_costs` of each row, shape (B, N)."""
    packed, which = batch.packed, batch.which
    time = packed.size_mb[which, None] / packed.link_mb_s[which] / packed.unit_s[which, None]
    return np.where(packed.may_receive[which], _cost(time, BUSY_SHARE[packed.kind[which]]), _FULL)


def finish_batch(batch: Batch, senders: Integers | None = None) -> None:
    """Run `finish` for every row at once. senders (B,): of the first pairs, -1 if not picked yet."""
    costs = batch_costs(batch)
    if senders is not None:
        rows = np.flatnonzero(senders >= 0)
        if len(rows):
            receivers = np.where(batch.idle()[rows], costs[rows], np.inf)
            receivers[np.arange(len(rows)), senders[rows]] = np.inf
            batch.start(rows, senders[rows], receivers.argmin(axis=1))
    moving = ~batch.ended()
    while moving.any():
        _pair_by_rule(batch, costs, moving)
        moving = batch.advance(moving) & ~batch.ended()


def finish_by_layout(iteration: Iteration, sender: int | None = None) -> None:
    """Play an iteration to its end by the layout. sender: of the first pair, if it is picked already."""
    while not iteration.ended:
        waits = False
        if len(iteration.idle()) >= 2:
            stand = stand_of(view_of(iteration))
            if sender is None:
                giver, taker = (int(each[0]) for each in layout_rule(stand))
            else:
                giver, taker, sender = sender, int(_laid_out_receivers(stand, np.array([sender]))[0]), None
            waits = giver < 0
            if not waits:
                iteration.start(giver, taker)
        if (waits or len(iteration.idle()) < 2) and not iteration.advance():
            return


def finish_batch_by_layout(batch: Batch, senders: Integers | None = None) -> None:
    """Run `finish_by_layout` for every row at once. senders (B,): of the first pairs, -1 if not picked yet."""
    if senders is not None and len(rows := np.flatnonzero(senders >= 0)):
        batch.start(rows, senders[rows], _laid_out_receivers(stand_of_rows(batch, rows), senders[rows]))
    playing = ~batch.ended()
    while playing.any():
        playing &= step(batch, layout_rule, playing) & ~batch.ended()


def _laid_out_receivers(stand: Stand, senders: Integers) -> Integers:
    expected, valid = prospects(stand), stand.free()
    valid[np.arange(len(senders)), senders] = False
    return receivers_for(lay_out(expected), expected.costs, valid, senders)


def _pair_by_rule(batch: Batch, costs: Doubles, moving: Bools) -> None:
    while True:
        idle = batch.idle()
        rows = np.flatnonzero(moving & (idle.sum(axis=1) >= 2))
        if not len(rows):
            return
        senders = np.where(idle[rows], costs[rows], -np.inf).argmax(axis=1)
        receivers = np.where(idle[rows], costs[rows], np.inf)
        receivers[np.arange(len(rows)), senders] = np.inf
        batch.start(rows, senders, receivers.argmin(axis=1))


def _cost(link_time: Doubles, share: Doubles) -> Doubles:
    """Return costs, shaped (n,) or (B, N). link_time: in transfers. share: busy share of the time, 0 to 1."""
    return cost_to_keep(link_time, share / (1.0 - share), LAYOUT.exposed_transfers)


Floats = npt.NDArray[np.float32]

CHAIN_ENV_ID = "mdl/Chain-v0"
# Columns before the features: the device exists, and may be picked now.
LEADING = 2
# Seeds of scenarios: training draws from here up; lower ones are for tuning and for judging.
FIRST_TRAINING_SEED = 1_000_000
_SEEDS = 2**31
# An illegal action costs more than the slowest rule does: this much for each device, in transfers of the median link.
ILLEGAL_COST = 10.0
# The kinds of rewards, see `ChainEnv`.
Reward = Literal["shaped", "raw", "laid-out"]
# The kinds of rounds: hops alone, or, if the policy says so at its start, segments.
ExchangeChoice = Literal["chain", "any"]
# No feature gets near it.
_BOUND = 1e4


class ChainEnv(gymnasium.Env[Floats, np.int64]):
    """One iteration of a mesh: partial sums pass from device to device until one device holds everything.

    ## Action space
    `Discrete(max_n + 1)`: pick device 0 to max_n - 1, or wait (max_n). A pair takes two picks: the sender, then the
    receiver. Both must be idle, and the receiver's owner must leave room for a delta within the limits (M_max and B_max
    of Eq. 4: `may_receive` of the scenario's devices; true for all in the families that are drawn). Waiting is possible
    if a sender is to be picked and some device trains, is busy or aggregates. Time then goes on to the next moment with
    two idle devices. Time also goes on after a pair, if fewer than two are left idle.

    With `exchange="any"` it is `Discrete(max_n + 2)`. The last action (max_n + 1) is possible as the first of an
    episode if any device may receive. It sends the round in segments (shares by bandwidth,
    `mdl.scheduler.policies.segment_plan`) as soon as all live devices are ready, and ends the episode. Observations are
    the same: a network of hops alone plays it too.

    ## Observation space
    `Box(-10000, 10000, (max_n, 2 + F), float32)`: a row a device, rows beyond n are 0. Column 0: the device exists;
    column 1: it may be picked now; then the F columns of `mdl.scheduler.policies.features.FEATURES`, free of units.
    Waiting is valid if the column `wait_valid` is 1. `split_observation` splits a batch of observations.

    ## Reward
    Minus the increase of J = makespan + energy_weight x imbalance of energy + lost_weight x lost contributions, in
    transfers of the median link (`mdl.scheduler.training.env`).
    - `reward="raw"`: the present J counts; an episode's rewards add up to J at the start minus J at the end.
    - `reward="shaped"`: with the potential "minus the remaining J if the greedy rule continued from here". So the J at
      greedy's end counts; the rewards add up to J of the greedy minus J reached, with no discount.
    - `reward="laid-out"`: the same with the layout, which networks start from, in place of the greedy rule. A pick of
      the layout's is worth 0. Any other is worth its gain or loss if the layout goes on from there, with the same luck.

    With `exchange="any"` the makespan in J lasts until every live device has the result, also after hops
    (`mdl.sim.timing.iteration`): a round in segments has no other end. Energy of segments and of a broadcast is not
    counted.

    ## Start
    `reset(seed=s)` draws the family (of `family`), n (from `n`, a number or a range (least, most), ends included) and a
    scenario. With `prior_energy_j`, each device has spent energy before, drawn with that mean.
    `reset(options={"scenario": s})` plays that scenario.

    ## Episode end
    Terminated if one holder is left and has merged everything, or nothing can change any more. An illegal action
    (a device that may not be picked, or waiting if it is not valid) terminates at once with a reward of -10 n
    (`ILLEGAL_COST`). Never truncated: at most 2 (n - 1) picks and the waits, if no device dies.

    ## Info
    `scenario_id`; `makespan_s` (so far, of hops; in segments: until every device has the result); `lost`: devices with
    a lost contribution.
    `end`: "" while it goes on, then "goal" or "illegal". `reason` (illegal only): the broken rule. `plan` (in segments
    only): the owners and their segments, in words.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(
        self,
        family: str | Sequence[str] = "dynamic",
        n: int | tuple[int, int] = 9,
        *,
        max_n: int | None = None,
        reward: Reward = "shaped",
        objective: Objective | None = None,
        prior_energy_j: float = 0.0,
        exchange: ExchangeChoice = "chain",
    ) -> None:
        self.families = (family,) if isinstance(family, str) else tuple(family)
        self.n_range = (n, n) if isinstance(n, int) else n
        self.max_n = max_n or self.n_range[1]
        self.shaped, self._laid_out = reward != "raw", reward == "laid-out"
        self.objective = objective or Objective()
        self.prior_energy_j = prior_energy_j
        self.exchange = exchange
        self._check(reward)
        actions = self.max_n + (2 if exchange == "any" else 1)
        self.action_space: spaces.Space[np.int64] = spaces.Discrete(actions)
        shape = (self.max_n, LEADING + len(FEATURES))
        self.observation_space: spaces.Space[Floats] = spaces.Box(-_BOUND, _BOUND, shape, np.float32)
        self._valid: npt.NDArray[np.bool_] = np.zeros(actions, np.bool_)
        self._segments: PlayedSegments | None = None
        self._is_first = True
        self._sender: int | None = None
        self._over = True

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """The legal actions, bool (actions,): each device, waiting, and with `exchange="any"` segments."""
        return self._valid.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        given = (options or {}).get("scenario")
        self._begin(given or self.draw(self.np_random))
        while self._over:  # so few survive that there is nothing to decide
            if given:
                raise ConfigError(f"scenario {given.scenario_id}: there is nothing to decide")
            self._begin(self.draw(self.np_random))
        self._so_far = self._value()
        self._look = self._look_around()
        return self._observe(), self._info("")

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        pick = int(action)
        if not self._valid[pick]:
            reason = self._why_illegal(pick)
            cost = -ILLEGAL_COST * len(self._scenario.devices)
            return self._observe(), cost, True, False, self._info("illegal") | {"reason": reason}
        if pick > self.max_n:
            self._segments, self._over = play_segments(self._scenario), True
        self._is_first = False
        if picks_sender := self._sender is None and pick < self.max_n:
            self._sender = pick
        elif pick == self.max_n:
            self._over = not self.iteration.advance()
            self._move_on()
        elif self._sender is not None:
            self.iteration.start(self._sender, pick)
            self._sender = None
            self._move_on()
        if not picks_sender:
            self._look = self._look_around()
        value = self._value() if self.shaped or not picks_sender else self._so_far
        reward, self._so_far = self._so_far - value, value
        return self._observe(), reward, self._over, False, self._info("goal" if self._over else "")

    def draw(self, rng: np.random.Generator) -> Scenario:
        """Draw a scenario to train on, like `reset`."""
        family = self.families[int(rng.integers(len(self.families)))]
        n = int(rng.integers(self.n_range[0], self.n_range[1] + 1))
        scenario = draw_scenario(family, n, int(rng.integers(FIRST_TRAINING_SEED, _SEEDS)))
        if not self.prior_energy_j:
            return scenario
        spent = rng.exponential(self.prior_energy_j, n).tolist()
        devices = tuple(
            replace(device, energy_j=joules) for device, joules in zip(scenario.devices, spent, strict=True)
        )
        return replace(scenario, devices=devices)

    def _begin(self, scenario: Scenario) -> None:
        if len(scenario.devices) > self.max_n:
            raise ConfigError(f"scenario {scenario.scenario_id}: {len(scenario.devices)} devices, at most {self.max_n}")
        self._scenario = scenario
        self._unit_s, self._costs = unit_of(scenario), rollout_costs(scenario)
        self.iteration = Iteration(scenario)
        self._sender, self._segments, self._is_first = None, None, True
        self._move_on()

    def _move_on(self) -> None:
        """Go to the next moment at which a pair can be made, or to the end."""
        iteration = self.iteration
        self._over = iteration.ended
        while not self._over and len(iteration.idle()) < 2:
            self._over = not iteration.advance() or iteration.ended

    def _value(self) -> float:
        if self._segments:
            return self._value_of_segments(self._segments)
        fork = self.iteration
        if self.shaped and not self._over:
            fork = fork.fork()
            if self._laid_out:
                finish_by_layout(fork, self._sender)
            else:
                finish(fork, self._costs, self._sender)
        value = self.objective.value(fork, self._unit_s)
        if self.exchange == "any" and (self._over or self.shaped):
            value += (everywhere_s(fork) - fork.makespan_s) / self._unit_s
        return value

    def _value_of_segments(self, segments: PlayedSegments) -> float:
        played, spent = segments.played, Iteration(self._scenario)  # no work that costs energy has begun there
        elapsed, lost = played.makespan_s - spent.now_s, len(played.lost) - len(spent.lost)
        return self.objective.value(spent, self._unit_s) + elapsed / self._unit_s + self.objective.lost_weight * lost

    def _look_around(self) -> Look:
        return look_at(stand_of(view_of(self.iteration)))

    def _observe(self) -> Floats:
        """Observe; the second pick of a pair changes only the columns on the sender and on valid picks."""
        if self._sender is None:
            features, valid, _ = observe_senders(self._look)
        else:
            features, valid, _ = observe_receivers(self._look, np.array([self._sender]))
        n = features.shape[1]
        table = np.zeros((self.max_n, LEADING + len(FEATURES)), np.float32)
        table[:n, 0] = 1.0
        table[:n, 1] = valid[0, :n]
        table[:n, LEADING:] = features[0]
        self._valid[:] = False
        self._valid[:n], self._valid[self.max_n] = valid[0, :n], valid[0, n]
        if self.exchange == "any":
            self._valid[-1] = self._is_first and any(device.may_receive for device in self._scenario.devices)
        return table

    def _info(self, end: str) -> dict[str, Any]:
        iteration, told = self.iteration, {"scenario_id": self._scenario.scenario_id}
        if not self._segments:
            return told | {"makespan_s": iteration.makespan_s, "lost": tuple(iteration.lost), "end": end}
        played, plan = self._segments.played, self._segments.plan
        reason = plan.reason if plan else "nobody may own a segment"
        return told | {"makespan_s": played.makespan_s, "lost": played.lost, "end": end, "plan": reason}

    def _why_illegal(self, pick: int) -> str:
        if self._over:
            return "the episode is over: reset first"
        if pick > self.max_n:
            return "segments: only the first action of a round, and only if anybody may receive"
        if pick == self.max_n:
            return "waiting: a receiver is to be picked" if self._sender is not None else "waiting: nothing will change"
        if pick >= len(self._scenario.devices):
            return f"device {pick} does not exist"
        if pick == self._sender:
            return f"device {pick} is the sender of this pair"
        if not self._scenario.devices[pick].may_receive and self._sender is not None:
            return f"device {pick} may not receive: its owner's limit"
        if self.iteration.state(pick).value == "free":
            return f"device {pick} is the only one that may receive"
        return f"device {pick} is {self.iteration.state(pick).value}"

    def _check(self, reward: str) -> None:
        unknown = [family for family in self.families if family not in FAMILIES]
        if unknown or not self.families:
            raise ConfigError(f"family {unknown or '()'}: expected some of {', '.join(FAMILIES)}")
        least, most = self.n_range
        if not 2 <= least <= most <= self.max_n:
            raise ConfigError(f"n {self.n_range}: expected 2 <= least <= most <= max_n ({self.max_n})")
        if self.exchange not in get_args(ExchangeChoice):
            raise ConfigError(f"exchange {self.exchange!r}: expected one of {', '.join(get_args(ExchangeChoice))}")
        if reward not in get_args(Reward):
            raise ConfigError(f"reward {reward!r}: expected one of {', '.join(get_args(Reward))}")


def split_observation(seen: Floats) -> tuple[Floats, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return features (B, M, F), exists (B, M) and valid (B, M + 1) of a batch of observations (B, M, 2 + F)."""
    waits = seen[:, :, LEADING + COLUMN["wait_valid"]].max(axis=1, keepdims=True) > 0
    return seen[:, :, LEADING:], seen[:, :, 0] > 0, np.concatenate([seen[:, :, 1] > 0, waits], axis=1)


if CHAIN_ENV_ID not in gymnasium.registry:
    gymnasium.register(
        CHAIN_ENV_ID,
        entry_point="mdl.scheduler.training.env:ChainEnv",
        vector_entry_point="mdl.scheduler.training.env:ChainVectorEnv",
    )


Actions = npt.NDArray[np.int64]

# Scenarios are drawn and packed once, this many for each environment; episodes cycle through them.
_POOL_PER_ENV = 4


class ChainVectorEnv(VectorEnv[Floats, Actions, npt.NDArray[Any]]):
    """The same spaces, rewards and ends as `ChainEnv` (its options too), `num_envs` at once; of one max_n, and of hops.

    An environment that ends starts anew in the same step. Observations are those of the new episode, rewards and
    terminations those of the old one; its last observation is dropped, since nothing follows from it. Scenarios come
    from a pool of `pool` that is drawn at `reset(seed=...)`. `info` holds `valid`, bool (num_envs, max_n + 1), and
    `illegal`, bool (num_envs,).
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(self, num_envs: int, *, pool: int | None = None, reward: Reward = "shaped", **options: Any) -> None:
        self._drawing = ChainEnv(reward=reward, **options)
        if self._drawing.exchange != "chain":
            raise ConfigError(f"exchange {self._drawing.exchange!r}: one by one only (`ChainEnv`); expected chain")
        self.num_envs, self._pool = num_envs, pool or _POOL_PER_ENV * num_envs
        self.single_observation_space: gymnasium.Space[Floats] = self._drawing.observation_space
        self.single_action_space: gymnasium.Space[np.int64] = self._drawing.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shaped, self._objective = self._drawing.shaped, self._drawing.objective
        self._finish = finish_batch_by_layout if reward == "laid-out" else finish_batch
        self._keeps_plan = reward == "laid-out"
        self._so_far: npt.NDArray[np.float64] = np.zeros(num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        scenarios = [self._drawing.draw(self.np_random) for _ in range(self._pool)]
        self._packed = pack(scenarios)
        self._next = self.num_envs % self._pool
        self._batch = Batch(self._packed, np.arange(self.num_envs) % self._pool)
        self._senders = np.full(self.num_envs, -1)
        self._over = self._move_on(np.ones(self.num_envs, np.bool_))
        self._renew(self._over)
        self._so_far = self._values(np.ones(self.num_envs, np.bool_))
        seen = self._observe(np.ones(self.num_envs, np.bool_))
        return seen, {"valid": self._valid.copy(), "illegal": np.zeros(self.num_envs, np.bool_)}

    def step(
        self, actions: Actions
    ) -> tuple[Floats, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        everybody, width = np.arange(self.num_envs), self._valid.shape[1]
        illegal = ~self._valid[everybody, actions]
        waits = ~illegal & (actions == width - 1)
        sends = ~illegal & ~waits & (self._senders < 0)
        pairs = np.flatnonzero(~illegal & ~waits & ~sends)
        self._batch.start(pairs, self._senders[pairs], actions[pairs])
        self._senders = np.where(sends, actions, -1)
        stuck = waits & ~self._batch.advance(waits)
        self._over = self._move_on(~illegal & ~sends) | stuck
        # The layout's own picks lead to the end that it would have reached anyway.
        planned = (actions == self._planned) & self._keeps_plan
        values = self._values(~planned | self._over)
        rewards = self._so_far - values
        if illegal.any():
            rewards[illegal] = -ILLEGAL_COST * self._packed.exists[self._batch.which[illegal]].sum(axis=1)
        ended = self._over | illegal
        if self._renew(ended):
            self._so_far = values
            values = self._values(ended)
        self._so_far = values
        info = {"illegal": illegal}
        seen = self._observe(~sends)
        return seen, rewards, ended, np.zeros(self.num_envs, np.bool_), info | {"valid": self._valid.copy()}

    def _move_on(self, rows: Bools) -> Bools:
        """Advance these rows until a pair can be made; return the rows that are over."""
        batch = self._batch
        over = batch.ended()
        moving = rows & ~over & (batch.idle().sum(axis=1) < 2)
        while moving.any():
            over |= moving & ~batch.advance(moving)
            over |= batch.ended()
            moving &= ~over & (batch.idle().sum(axis=1) < 2)
        return over

    def _renew(self, ended: Bools) -> bool:
        """Start new episodes in these rows; return True if there were any."""
        rows = np.flatnonzero(ended)
        if not len(rows):
            return False
        while len(rows):
            which = (self._next + np.arange(len(rows))) % self._pool
            self._next = int((self._next + len(rows)) % self._pool)
            place = np.arange(self.num_envs)
            place[rows] = self.num_envs + np.arange(len(rows))
            self._batch = Batch.join([self._batch, Batch(self._packed, which)]).take(place)
            self._senders[rows] = -1
            fresh = np.zeros(self.num_envs, np.bool_)
            fresh[rows] = True
            rows = np.flatnonzero(self._move_on(fresh) & fresh)  # so few survive that there is nothing to decide
        return True

    def _values(self, changed: Bools) -> npt.NDArray[np.float64]:
        """Return J: the present one, or that at the end of a continuation; rows without a change keep theirs."""
        objective: Objective = self._objective
        if not self._shaped:
            return objective.values(self._batch)
        values, rows = self._so_far.copy(), np.flatnonzero(changed)
        if len(rows):
            fork = self._batch.take(rows)
            self._finish(fork, self._senders[rows])
            values[rows] = objective.values(fork)
        return values

    def _observe(self, moved: Bools) -> Floats:
        """Observe all rows. moved: rows in which more than the pick of a sender has happened since the last look."""
        look = self._look_again(np.flatnonzero(moved))
        count, n = look.stand.exists.shape
        seen = np.zeros((count, self.single_observation_space.shape[0], LEADING + len(FEATURES)), np.float32)  # type: ignore[index]
        self._valid, self._planned = np.zeros((count, seen.shape[1] + 1), np.bool_), np.zeros(count, np.int64)
        seen[:, :n, 0] = look.stand.exists
        picking, picked = np.flatnonzero(self._senders < 0), np.flatnonzero(self._senders >= 0)
        for rows, senders in ((picking, None), (picked, self._senders[picked])):
            if not len(rows):
                continue
            there = look if len(rows) == count else look.take(rows)
            features, valid, planned = observe_senders(there) if senders is None else observe_receivers(there, senders)
            self._planned[rows] = np.where(planned < n, planned, seen.shape[1])  # the last action is to wait
            seen[rows, :n, LEADING:] = features
            seen[rows, :n, 1] = self._valid[rows, :n] = valid[:, :n]
            self._valid[rows, -1] = valid[:, n]
        return seen

    def _look_again(self, rows: Actions) -> Look:
        """Look at these rows again; the others keep their last look."""
        if len(rows) == self.num_envs:
            self._look = look_at(stand_of_rows(self._batch, rows))
        elif len(rows):
            self._look.put(rows, look_at(stand_of_rows(self._batch, rows)))
        return self._look
