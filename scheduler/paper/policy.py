"""The paper's own DQN (MDLdroid 3.3.1) as a policy of a live mesh: its network in NumPy, and its policy file. Pure.

The network (an MLP on five states a device) answers for one N only, and nothing keeps it from impossible picks: both
are the paper's. `mdl scheduler train --variant paper` writes the file: safetensors, never a pickle. Arrays, float32:
`layer0.weight` (outputs, inputs), `layer0.bias` (outputs,), then `layer1` and so on; ReLU between layers. Metadata, one
JSON object under the key `mdl`:

    kind      "paper-dqn"
    n         devices that it answers for, and no other number of them
    sizes     values of each layer from the observation to the Q-values: [5 n, 64, 64, n].
    counts    false: it sees five states a device; true: also each device's receptions (sizes[0] is then 6 n)
    rules     alpha, beta, rho and so on, from Eq. 7, that it was trained on, under the names of `PaperRules`

The maker may add more (command, seed, steps, evaluation). It sees `observe_paper`, in the caller's order of the
devices. It answers with a Q-value for each of them as the next pick.

The paper schedules once all devices ask for aggregation, so the policy waits while any trains. Its picks come one after
the other and take no time; hops do. So a hop that is under way counts as done, as in its own problem. Its next pairs
are thought ahead from there. It orders the first pair of two devices that are free now and in no earlier pair.

The network values every device; the best one that may be picked wins. A busy device may not be picked while two others
can: the paper wants the same by its penalty, and the mesh orders it so.

MDLdroid's own scheduling problem (3.3.1): five states a device, two picks a pair, Eq. 7; plain, and a batch.

A pick is a step t, counted from 0. It brings one reward, that of its case in Eq. 7:

    beyond the limit of steps, or an invalid pick    -1, and the episode ends.
    the last pick of a chain, after which one device holds everything    +1.
    a busy device    rho - t rho / 2(N-1)    (printed: rho + t rho / 2(N-1), which the text contradicts).
    a free device that is to send    alpha + beta n_agg
    a free device that is to get    alpha - beta n_agg

n_agg: the device's receptions before. The constants are the paper's: alpha -0.04, beta 0.1, rho -0.8 (a sentence of
the paper swaps the names of beta and rho). A device that is busy at the start stays so for the episode and may be
picked all the same. `ChainPaperEnv` in mdl.scheduler.paper.env is the Gymnasium form.

The paper's scheduling objective (MDLdroid Eq. 4): normalised time plus normalised imbalance of energy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from safetensors.numpy import save

from mdl.errors import ConfigError
from mdl.reading import shorten
from mdl.scheduler.policies.chain import (
    FULL,
    ChainView,
    Choice,
    Decision,
    DeviceState,
    Pair,
    Wait,
    leave_to,
    tell_states,
)
from mdl.scheduler.policies.fixed import Order
from mdl.scheduler.policies.greedy import Greedy, too_few
from mdl.scheduler.policies.qnet_numpy import PolicyFileError, read_policy
from mdl.writing import write_bytes

Floats: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int8]
Flags: TypeAlias = NDArray[np.bool_]

# "" while an episode goes on.
End: TypeAlias = Literal["", "goal", "illegal", "limit"]


class PaperState(IntEnum):
    """The five states of 3.3.1. A hop is over with its receiver's pick, so that GET is never seen between two picks."""

    FREE = 0
    BUSY = 1
    SEND = 2
    GET = 3
    DONE = 4


@dataclass(frozen=True)
class PaperRules:
    """The constants of Eq. 7.

    initial_reward: alpha.
    battery_cost: beta, for each reception before.
    busy_penalty: rho, for picking a busy device at step 0.
    goal_reward: for the last pick of a chain.
    illegal_reward: for an invalid pick, and for one beyond the limit.
    printed_sign: the busy penalty grows with t as Eq. 7 is printed; else it decays to 0 as the text says.
    step_limit: picks of an episode; None is 2 (N - 1), the number that a chain of valid picks has.
    """

    initial_reward: float = -0.04
    battery_cost: float = 0.1
    busy_penalty: float = -0.8
    goal_reward: float = 1.0
    illegal_reward: float = -1.0
    printed_sign: bool = False
    step_limit: int | None = None

    def busy_reward(self, step: int, n: int) -> float:
        """Return the reward for a busy device at this step (from 0) of a chain of n devices."""
        grown = step * self.busy_penalty / (2 * (n - 1))
        return self.busy_penalty + (grown if self.printed_sign else -grown)

    def most_steps(self, n: int) -> int:
        return 2 * (n - 1) if self.step_limit is None else self.step_limit


class PaperChain:
    """One episode in plain Python; the reference of `PaperBatch`.

    busy: for each device, True if it is busy at the start, False if it is free.
    """

    def __init__(self, busy: Sequence[int], rules: PaperRules) -> None:
        if len(busy) < 2:
            raise ConfigError(f"a chain needs at least 2 devices, not {len(busy)}")
        self.rules = rules
        self.state = [PaperState.BUSY if each else PaperState.FREE for each in busy]
        self.n_agg = [0] * len(busy)
        self.sender: int | None = None
        self.pick = 0
        self.end: End = ""

    @property
    def ended(self) -> bool:
        return self.end != ""

    def legal(self) -> list[bool]:
        """Return the devices that may be picked: those that are free or busy."""
        return [state <= PaperState.BUSY for state in self.state]

    def step(self, device: int) -> float:
        """Pick the sender, or, if one is picked, its receiver; return the reward (Eq. 7)."""
        n = len(self.state)
        legal = self.legal()[device]
        if self.pick >= self.rules.most_steps(n) or not legal:
            self.end = "limit" if legal else "illegal"
            return self.rules.illegal_reward
        reward = self._reward(device)
        self.pick += 1
        if self.sender is None:
            self.sender = device
            self.state[device] = PaperState.SEND
            return reward
        self.n_agg[device] += 1
        self.state[self.sender] = PaperState.DONE
        self.sender = None
        if self.pick == 2 * (n - 1):
            self.end = "goal"
            return self.rules.goal_reward
        return reward

    def _reward(self, device: int) -> float:
        """Return the reward of a valid pick that does not end the chain."""
        rules = self.rules
        if self.state[device] is PaperState.BUSY:
            return rules.busy_reward(self.pick, len(self.state))
        spent = rules.battery_cost * self.n_agg[device]
        return rules.initial_reward + (spent if self.sender is None else -spent)


def draw_busy(n: int, count: int, rng: np.random.Generator) -> Flags:
    """Draw the busy devices at the start, bool (count, n): 0 to n // 2 a row, the paper's "at most 50 %" (4.4.1)."""
    ranks = rng.random((count, n)).argsort(axis=1)
    return ranks < rng.integers(0, n // 2 + 1, (count, 1))


class PaperBatch:
    """Many episodes at once; one that ends is drawn anew at once. state: int8 (count, n), n_agg: int64 (count, n).

    The same picks give the same rewards as in `PaperChain`. step returns (reward float32 (count,), ended, failed):
    failed is an end other than the goal. busy: the devices that are busy at every start; None draws them (`draw_busy`).
    """

    def __init__(
        self, n: int, count: int, rules: PaperRules, rng: np.random.Generator, *, busy: Sequence[int] | None = None
    ) -> None:
        self.n, self.count, self.rules = n, count, rules
        self._rng = rng
        self._busy = None if busy is None else np.array(busy, bool)
        self._rows = np.arange(count) * n
        picks = max(2 * (n - 1), rules.most_steps(n)) + 1
        self._busy_reward = np.array([rules.busy_reward(pick, n) for pick in range(picks)])
        self.state = np.zeros((count, n), np.int8)
        self.n_agg = np.zeros((count, n), np.int64)
        self.pick = np.zeros(count, np.int64)
        self._sender = np.zeros(count, np.int64)
        self.reset(self._draw(count))

    def _draw(self, count: int) -> Flags:
        return draw_busy(self.n, count, self._rng) if self._busy is None else np.tile(self._busy, (count, 1))

    def reset(self, busy: Flags, rows: Integers | slice = slice(None)) -> None:
        """Start these rows with these busy devices (in the form of `draw_busy`)."""
        self.state[rows] = busy
        self.n_agg[rows] = 0
        self.pick[rows] = 0

    @property
    def legal(self) -> Flags:
        """The devices that may be picked, bool (count, n)."""
        return self.state <= PaperState.BUSY

    def step(self, devices: Integers) -> tuple[Floats, Flags, Flags]:
        """Make one pick in each row."""
        rules = self.rules
        state, n_agg = self.state.reshape(-1), self.n_agg.reshape(-1)
        at, gets = self._rows + devices, self.pick % 2 == 1
        failed = (state[at] > PaperState.BUSY) | (self.pick >= rules.most_steps(self.n))
        free = rules.initial_reward + rules.battery_cost * np.where(gets, -n_agg[at], n_agg[at])
        reward = np.where(state[at] == PaperState.BUSY, self._busy_reward[self.pick], free)
        goal = ~failed & (self.pick + 1 == 2 * (self.n - 1))
        reward = np.where(failed, rules.illegal_reward, np.where(goal, rules.goal_reward, reward))
        n_agg[at[~failed & gets]] += 1
        state[self._sender[~failed & gets]] = PaperState.DONE
        state[at[~failed & ~gets]] = PaperState.SEND
        self._sender = np.where(gets, self._sender, at)
        self.pick += 1
        ended = goal | failed
        over = np.flatnonzero(ended)
        if len(over):
            self.reset(self._draw(len(over)), over)
        return reward.astype(np.float32), ended, failed

    def observe(self, counts: bool = False) -> Floats:
        """Return `observe_paper` of all rows, float32 (count, width)."""
        return observe_paper(self.state, self.n_agg if counts else None)


def observe_paper(state: Codes, n_agg: Integers | None = None) -> Floats:
    """Observe states, float32 (count, 5 n): each device's state one-hot. If a device sends, its receiver is due.

    With n_agg, n more columns: receptions so far over n - 1. Without them the process is not Markov (the reward depends
    on them); the paper's five states leave them out.
    """
    count, n = state.shape
    seen = (state[:, :, None] == np.arange(len(PaperState), dtype=np.int8)).reshape(count, -1)
    if n_agg is not None:
        seen = np.concatenate([seen, n_agg / (n - 1)], axis=1)
    return np.asarray(seen, np.float32)


def energy_variance(energy_j: NDArray[np.float64]) -> float:
    """Return the variance of the energy over the devices: its imbalance (Eq. 6)."""
    return float(np.var(energy_j))


def normalise(values: Sequence[float]) -> list[float]:
    """Return N(x) = (x - min) / (max - min): 0 for the least, 1 for the most; all 0 if they are alike (Eq. 4)."""
    least, most = min(values), max(values)
    return [(value - least) / (most - least) if most > least else 0.0 for value in values]


def objectives(times_s: Sequence[float], variances_j2: Sequence[float]) -> list[float]:
    """Return N(T) + N(E) of several schedules of one iteration, 0 (best in both) to 2 (worst in both).

    times_s: T of Eq. 5, until one device holds everything. variances_j2: E of Eq. 6. The paper does not say over which
    set it takes min and max: here over the schedules that are compared.
    """
    pairs = zip(normalise(times_s), normalise(variances_j2), strict=True)
    return [time + balance for time, balance in pairs]


class MlpQ:
    """layers: (weight (outputs, inputs), bias) from first to last, float32; ReLU between. n: devices.

    counts: it also sees each device's receptions (`observe_paper`); the paper's own does not.
    """

    def __init__(self, layers: Sequence[tuple[Floats, Floats]], n: int, rules: PaperRules, *, counts: bool) -> None:
        self.layers, self.n, self.rules, self.counts = tuple(layers), n, rules, counts

    def __call__(self, seen: Floats) -> Floats:
        """Return Q (B, n) of observations (B, width)."""
        values = seen
        for number, (weight, bias) in enumerate(self.layers):
            values = values @ weight.T + bias
            if number + 1 < len(self.layers):
                values = np.maximum(values, 0.0)
        return values

    def value(self, state: Codes, n_agg: Integers) -> Floats:
        """Return Q (B, n) of devices in these states (`PaperState`, (B, n)) with so many receptions."""
        return self(observe_paper(state, n_agg if self.counts else None))

    def order(self, busy: Sequence[int]) -> Order | None:
        """Return the pairs it would order from this start, or None if it makes an impossible pick (it quits)."""
        return self.play(busy)[1]

    def play(self, busy: Sequence[int]) -> tuple[float, Order | None]:
        """Return the sum of Eq. 7 over its picks, and the pairs."""
        chain = PaperChain(busy, self.rules)
        total, order, sender = 0.0, [], -1
        while not chain.ended:
            pick = int(self.value(np.array([chain.state], np.int8), np.array([chain.n_agg]))[0].argmax())
            if chain.pick % 2:
                order.append((sender, pick))
            sender = pick
            total += chain.step(pick)
        return total, order if chain.end == "goal" else None


PAPER_DQN: Literal["paper-dqn"] = "paper-dqn"
# The paper has 9 devices; an MLP for 64 has 5 x 64 x 64 weights in its first layer, which is still a small file.
_MOST_DEVICES = 64
# Layers and their width: the paper does not give them; ours are [64, 64].
_MOST_LAYERS, _WIDEST = 8, 4096
_METADATA_KEY = "mdl"

_Size = Annotated[int, msgspec.Meta(ge=1, le=_WIDEST)]
_Reward = Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)]


class _Rules(msgspec.Struct, forbid_unknown_fields=True):
    """`PaperRules` in the form that a file may have: bounded, and nothing else."""

    initial_reward: _Reward
    battery_cost: _Reward
    busy_penalty: _Reward
    goal_reward: _Reward
    illegal_reward: _Reward
    printed_sign: bool
    step_limit: Annotated[int, msgspec.Meta(ge=1, le=2 * _MOST_DEVICES)] | None


class _Kept(msgspec.Struct):
    """A file's description of its network."""

    kind: Literal["paper-dqn"]
    n: Annotated[int, msgspec.Meta(ge=2, le=_MOST_DEVICES)]
    sizes: Annotated[list[_Size], msgspec.Meta(min_length=2, max_length=_MOST_LAYERS + 1)]
    counts: bool
    rules: _Rules


def save_paper_dqn(path: Path, network: MlpQ, metadata: dict[str, object]) -> None:
    """Save a network; metadata: any JSON object (command, seed, evaluation), added to the file's own description."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, (weight, bias) in enumerate(network.layers):
        arrays[f"layer{number}.weight"] = np.ascontiguousarray(weight)
        arrays[f"layer{number}.bias"] = np.ascontiguousarray(bias)
    kept = {
        "kind": PAPER_DQN,
        "n": network.n,
        "sizes": [network.layers[0][0].shape[1], *(len(bias) for _, bias in network.layers)],
        "counts": network.counts,
        "rules": asdict(network.rules),
    }
    write_bytes(path, save(arrays, {_METADATA_KEY: json.dumps({**metadata, **kept})}))


def load_paper_dqn(path: Path) -> tuple[MlpQ, dict[str, object]]:
    """Load the network, ready for use, and the file's metadata.

    Raises PolicyFileError (one line: the file, the problem) for anything but finite float32 layers that fit n.
    """
    arrays, metadata = read_policy(path)
    try:
        kept = msgspec.convert(metadata, _Kept)
    except msgspec.ValidationError as error:
        raise PolicyFileError(f"{path}: no policy file of the paper's DQN ({shorten(error)})") from None
    width = 6 * kept.n if kept.counts else 5 * kept.n
    if kept.sizes[0] != width or kept.sizes[-1] != kept.n:
        raise PolicyFileError(
            f"{path}: {kept.sizes[0]} inputs and {kept.sizes[-1]} values; {kept.n} devices have {width} and {kept.n}"
        )
    names = {f"layer{number}.{part}" for number in range(len(kept.sizes) - 1) for part in ("weight", "bias")}
    if set(arrays) != names:
        raise PolicyFileError(
            f"{path}: it has {len(arrays)} arrays; expected weight and bias of {len(names) // 2} layers"
        )
    layers = [_layer(path, arrays, number, kept.sizes) for number in range(len(kept.sizes) - 1)]
    rules = PaperRules(**msgspec.structs.asdict(kept.rules))
    return MlpQ(layers, kept.n, rules, counts=kept.counts), metadata


def is_paper_dqn(path: Path) -> bool:
    """Return True if a policy file claims to be of the paper's DQN. Raises PolicyFileError if it is no policy file."""
    return read_policy(path)[1].get("kind") == PAPER_DQN


def _layer(path: Path, arrays: dict[str, npt.NDArray[Any]], number: int, sizes: list[int]) -> tuple[Floats, Floats]:
    weight, bias = arrays[f"layer{number}.weight"], arrays[f"layer{number}.bias"]
    inputs, outputs = sizes[number], sizes[number + 1]
    fits = weight.shape == (outputs, inputs) and bias.shape == (outputs,)
    if not fits or not weight.dtype == bias.dtype == np.float32:
        raise PolicyFileError(f"{path}: layer {number} is not of float32 numbers, {outputs} times {inputs}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise PolicyFileError(f"{path}: layer {number} holds numbers that are not finite")
    return weight, bias


# A receiver is free again after its hop; a device that has sent, or is lost, is done.
_SEEN_AS = {
    DeviceState.FREE: PaperState.FREE,
    DeviceState.GET: PaperState.FREE,
    DeviceState.BUSY: PaperState.BUSY,
    DeviceState.SEND: PaperState.DONE,
    DeviceState.DONE: PaperState.DONE,
    DeviceState.DEAD: PaperState.DONE,
}
_STILL_BUSY = "it is busy"
_ONLY_TAKER = "no other may receive"


class PaperPolicy:
    """network: answers for network.n devices, in the order of the view. name: the start of every reason.

    greedy decides in a mesh of another size.
    """

    def __init__(self, network: MlpQ, name: str) -> None:
        self.name = name
        self.n = network.n
        self._network = network
        self._fallback = Greedy()

    def decide(self, view: ChainView) -> Decision:
        free = view.free()
        if len(free) < 2:
            return Wait(too_few(view))
        if len(view.devices) != self.n:
            there = f"it orders {self.n} devices, the mesh has {len(view.devices)}"
            return leave_to(self._fallback, view, self.name, there)
        if training := [device.peer_id for device in view.devices if device.state is DeviceState.TRAINING]:
            return Wait(f"{self.name}: it orders a round once all are ready; {', '.join(training)} train")
        chain = _Ahead(self._network, view)
        paired: set[int] = set()
        first = ""
        while True:
            to_send, sender = chain.pick()
            to_get, receiver = chain.pick(sender)
            pair, names = {sender, receiver}, (to_send.picked, to_get.picked)
            first = first or " to ".join(names)
            if not paired & pair and all(view.devices[index].state is DeviceState.FREE for index in pair):
                told = f"{self.name}: it sees {tell_states(view)}; {names[0]} sends: {to_send.tell()}"
                return Pair(*names, f"{told}; {names[1]} receives: {to_get.tell()}", (to_send, to_get))
            paired |= pair
            chain.step(sender, receiver)
            if len(chain.free()) < 2:
                return Wait(f"{self.name}: it sees {tell_states(view)}; its next pair is {first}, not both free yet")

    def explain(self, view: ChainView) -> list[tuple[str, float]]:
        """List Q of possible senders, the best first, then of receivers for the best; none if it does not decide."""
        is_training = any(device.state is DeviceState.TRAINING for device in view.devices)
        if len(view.free()) < 2 or len(view.devices) != self.n or is_training:
            return []
        chain = _Ahead(self._network, view)
        to_send, sender = chain.pick()
        to_get, _ = chain.pick(sender)
        ranked = [sorted(choice.options, key=lambda option: -option[1]) for choice in (to_send, to_get)]
        told = [(f"{name} sends", value) for name, value in ranked[0]]
        return told + [(f"{to_send.picked} -> {name}", value) for name, value in ranked[1]]


class _Ahead:
    """The paper's process from a live round on: hops under way and pairs thought ahead count as done."""

    def __init__(self, network: MlpQ, view: ChainView) -> None:
        self._network = network
        self._may_receive = [device.may_receive for device in view.devices]
        self._names = [device.peer_id for device in view.devices]
        self._state = np.array([_SEEN_AS[device.state] for device in view.devices], np.int8)
        under_way = [device.state is DeviceState.GET for device in view.devices]
        self._n_agg = np.array([device.received for device in view.devices], np.int64) + under_way

    def free(self) -> list[int]:
        return np.flatnonzero(self._state == PaperState.FREE).tolist()

    def pick(self, sender: int | None = None) -> tuple[Choice, int]:
        """Pick the sender, or the receiver for this sender: the highest Q of those that are free."""
        values, free = self._value(sender), [index for index in self.free() if index != sender]
        takers = [index for index in free if self._may_receive[index]]
        may_be = free
        if takers and sender is not None:
            may_be = takers
        elif len(takers) == 1:
            may_be = [index for index in free if index not in takers]  # the only one that may receive does not send
        best = max(may_be, key=lambda index: values[index])
        busy = np.flatnonzero(self._state == PaperState.BUSY).tolist()
        choice = Choice(
            self._names[best],
            "its Q is",
            tuple((self._names[index], float(values[index])) for index in may_be),
            most=True,
            unit="",
            ruled_out=tuple(
                (self._names[index], _STILL_BUSY if index in busy else FULL if sender is not None else _ONLY_TAKER)
                for index in [*busy, *(index for index in free if index not in may_be)]
                if values[index] > values[best]
            ),
        )
        return choice, best

    def step(self, sender: int, receiver: int) -> None:
        self._state[sender] = PaperState.DONE
        self._n_agg[receiver] += 1

    def _value(self, sender: int | None) -> Floats:
        state = self._state.copy()
        if sender is not None:
            state[sender] = PaperState.SEND
        values: Floats = self._network.value(state[None], self._n_agg[None])[0]
        return values
