"""The view and the decision of a policy: the chain at one moment, and the next pair or a reason to wait. Pure.

A policy knows devices by their reports and by finished hops; nothing here knows messages or drivers. `Choice` has the
reason of a decision in numbers: the compared options and the winner. Words are made from these.

Policies order by cost. They need not know cuts, nor devices with no room for one more delta within their owners' limits
(Eq. 4). A policy's pair may be apart, break a limit, or leave a holder behind that no other holder can reach. Then
`go_around` takes the pair nearest to its choice: the same sender, else the same receiver, else any.

Chains at one moment as arrays, and estimates for their devices: times in median transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mdl.devices.usage import DeviceState as DeviceState
from mdl.devices.usage import UsageKind, busy_rate, expected_rest_s
from mdl.scheduler.policies.trained_under import OBSERVATION

# Two different values are shown with as many decimals as it takes to tell them apart, from the first to the second.
_DECIMALS = ("%.2f", "%.3f", "%.4f", "%.5f", "%.6f")


class Choice(msgspec.Struct, frozen=True):
    """One comparison that a decision rests on: `picked` is the best of `options`: name and value of each.

    quantity, unit: the words before and after the value ("it costs" 2.22 "s"). most: True if the highest value is the
    best, False if the lowest. favoured: if given, stays picked unless another is better by more than `margin`.
    favoured_as: describes the favoured choice. ruled_out: other candidates, each with the reason that excludes it.
    """

    picked: str
    quantity: str
    options: tuple[tuple[str, float], ...]
    most: bool = False
    unit: str = "s"
    favoured: str = ""
    favoured_as: str = ""
    margin: float = 0.0
    ruled_out: tuple[tuple[str, str], ...] = ()

    def tell(self) -> str:
        """Tell the comparison in words: the value of the pick, and of the rival that it beat or was kept against."""
        values = dict(self.options)
        own, rival = values.pop(self.picked), self._find_rival()
        if not rival:
            told = self._tell_value(own, own)
        elif self.picked == self.favoured and self._is_better(values[rival], own):
            kept = f"is better by less than the margin of {self.margin:.2f} {self.unit} for {self.favoured_as}"
            told = f"{self._tell_value(own, values[rival])}; {rival} {_tell_apart(values[rival], own)} {kept}"
        elif self.favoured in values:
            beaten, than = f"{self.favoured_as}, {self.favoured}", values[self.favoured]
            worse = f"is worse by more than the margin of {self.margin:.2f} {self.unit}"
            told = f"{self._tell_value(own, than)}; {beaten} {_tell_apart(than, own)}, {worse}"
        elif values[rival] == own:
            told = f"{self._tell_value(own, own)} (as {rival})"
        else:
            told = f"{self._tell_value(own, values[rival])} (next {rival} {_tell_apart(values[rival], own)})"
        if not self.ruled_out:
            return told
        name, why = self.ruled_out[0]
        others = f" and {len(self.ruled_out) - 1} more" if len(self.ruled_out) > 1 else ""
        return f"{told}; not {name}{others}: {why}"

    def _find_rival(self) -> str:
        """Return the best of the others; "" if there are none."""
        others = [option for option in self.options if option[0] != self.picked]
        return max(others, key=lambda option: option[1] if self.most else -option[1])[0] if others else ""

    def _is_better(self, value: float, than: float) -> bool:
        return value > than if self.most else value < than

    def _tell_value(self, value: float, other: float) -> str:
        return f"{self.quantity} {_tell_apart(value, other)} {self.unit}".rstrip()


def first(options: Iterable[tuple[str, float]]) -> str:
    """Return the name with the lowest value, the first of equals."""
    return min(options, key=lambda option: option[1])[0]


def _tell_apart(value: float, other: float) -> str:
    """Format the value with the fewest decimals that still show which of the two is larger, if one is."""
    for decimals in _DECIMALS if value != other else ():
        if (told := decimals % value) != decimals % other:
            return told
    return _DECIMALS[0] % value


# Looked up once: asking an enum for a member costs a quarter of a microsecond (CPython 3.11).
_TRAINING, _FREE, _BUSY, _SEND, _GET, _DONE, _DEAD = DeviceState
# The words of a reason for a device that may not receive.
FULL = "its owner's limit lets it receive nothing"
_STATE_WORDS = {
    _TRAINING: "training",
    _FREE: "free",
    _BUSY: "busy",
    _SEND: "sending",
    _GET: "receiving",
    _DONE: "done",
    _DEAD: "lost",
}
_ENDING = (_TRAINING, _BUSY, _SEND, _GET)


class DeviceView(msgspec.Struct, frozen=True):
    """One device as the agent knows it. Unknown speeds are None until a hop has shown them.

    link_mb_s, merge_mb_s: MB/s. free_since_s: on the view's clock. energy_j: modelled, accumulated over rounds.
    n_agg: hops it took part in this round; received: those in which it received, which is n_agg of Eq. 7.
    battery_percent: None on mains. kind, device_class: its kind of use, and its strength (0 strongest; None unknown).
    busy_for_s: the time it has been busy without a break. eta_ready_s: until its training ends, expected or reported.
    op_left_s: active work that is left of its hop. may_receive: its owner's limits leave room for one more delta (M_max
    and B_max of Eq. 4); if not, `go_around` keeps hops away from it, whatever a policy says.
    """

    peer_id: str
    state: DeviceState
    link_mb_s: float | None = None
    merge_mb_s: float | None = None
    free_since_s: float = 0.0
    n_agg: int = 0
    received: int = 0
    theta: float = 1.0
    energy_j: float = 0.0
    battery_percent: float | None = None
    charging: bool | None = None
    in_use: bool | None = None
    cpu_percent: float = 0.0
    free_memory_bytes: int = 0
    kind: UsageKind = UsageKind.IDLE
    device_class: int | None = None
    busy_for_s: float = 0.0
    eta_ready_s: float = 0.0
    op_left_s: float = 0.0
    may_receive: bool = True


class ChainView(msgspec.Struct, frozen=True):
    """All devices of a round, in an order that stays the same throughout it.

    apart: pairs that recently could not reach each other, in either order; `go_around` keeps
    decisions away from them.
    """

    time_s: float
    size_mb: float
    devices: tuple[DeviceView, ...]
    latency_s: float = 0.0
    apart: frozenset[tuple[str, str]] = frozenset()

    def cut(self, one: str, other: str) -> bool:
        return (one, other) in self.apart or (other, one) in self.apart

    def free(self) -> list[DeviceView]:
        """Return the devices that may be paired now."""
        return [device for device in self.devices if device.state is _FREE]

    def may_wait(self) -> bool:
        """Return True if a device trains, is busy or aggregates, so that waiting ends."""
        return any(device.state in _ENDING for device in self.devices)


class Pair(msgspec.Struct, frozen=True):
    """The sender gives its partial sum to the receiver (W(j,i): i sends, j receives).

    why: the comparisons that decided, where values were compared; `reason` tells them in words.
    """

    sender: str
    receiver: str
    reason: str
    why: tuple[Choice, ...] = ()


class Wait(msgspec.Struct, frozen=True):
    """No pair for now. reason, why: as those of a pair."""

    reason: str
    why: tuple[Choice, ...] = ()


Decision: TypeAlias = Pair | Wait


class Policy(Protocol):
    """A policy picks the next pair among the free devices, or waits; the reason says why in words."""

    name: str

    def decide(self, view: ChainView) -> Decision: ...


def leave_to(other: Policy, view: ChainView, name: str, why: str) -> Decision:
    """Return the other policy's decision, marked as such: "dqn leaves it to greedy (2 devices of 6): ..."."""
    decision = other.decide(view)
    return msgspec.structs.replace(decision, reason=f"{name} leaves it to {other.name} ({why}): {decision.reason}")


def tell_states(view: ChainView) -> str:
    """Count the devices in each state, in words: "4 free, 1 busy"."""
    counts = Counter(device.state for device in view.devices)
    return ", ".join(f"{counts[state]} {_STATE_WORDS[state]}" for state in DeviceState if counts[state])


# The devices that hold a load now or will: all but those that have given it away or are about to.
_HOLDS = (DeviceState.TRAINING, DeviceState.FREE, DeviceState.BUSY, DeviceState.GET)


def go_around(view: ChainView, decision: Decision) -> Decision:
    """Return the decision, or the allowed one nearest to it; a pair that is apart only if nothing else is left.

    A limit holds in any case: a hop that would break it is never ordered, and the reason of the wait says so.
    """
    full = {device.peer_id for device in view.devices if not device.may_receive}
    if isinstance(decision, Wait) or not (view.apart or full):
        return decision
    pair = nearest_allowed(view, decision.sender, decision.receiver)
    if pair == (decision.sender, decision.receiver):
        return decision
    why = f"{decision.sender} and {decision.receiver} have a cut between them"
    if decision.receiver in full:
        why = f"{decision.receiver}: {FULL}"
    if pair is not None:
        return Pair(*pair, f"{why} ({decision.reason})")
    if view.may_wait() or decision.receiver in full:
        return Wait(f"{why}: waiting for another partner")
    return decision


def nearest_allowed(view: ChainView, sender: str, receiver: str) -> tuple[str, str] | None:
    """Return the allowed pair of free devices nearest to this one; None if no pair is allowed.

    A hop is allowed if both reach each other, the receiver's limits permit it, and the remaining holders are no more
    split than before. So a device that is the only way between two others must not send.
    """
    free = [device.peer_id for device in view.devices if device.state is DeviceState.FREE]
    holders = [device.peer_id for device in view.devices if device.state in _HOLDS]
    parts = _parts(view, holders)
    may_send = {peer for peer in free if _parts(view, [other for other in holders if other != peer]) <= parts}
    may_get = {device.peer_id for device in view.devices if device.may_receive}
    allowed = [
        (one, other)
        for one in free
        for other in free
        if one != other and one in may_send and other in may_get and not view.cut(one, other)
    ]
    return min(allowed, key=lambda pair: (pair[0] != sender, pair[1] != receiver), default=None)


def _parts(view: ChainView, holders: list[str]) -> int:
    """Count the groups of holders that cannot reach each other."""
    left, parts = set(holders), 0
    while left:
        parts += 1
        border = [left.pop()]
        while border:
            peer = border.pop()
            near = {other for other in left if not view.cut(peer, other)}
            left -= near
            border += near
    return parts


Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STATES: tuple[DeviceState, ...] = tuple(DeviceState)
TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = range(len(STATES))
_CODES = {state: code for code, state in enumerate(STATES)}

_KINDS = tuple(UsageKind)
# Mean rest of a busy period by kind and age in steps; for the kind "once" in median transfers.
_AGES_S = tuple(step * OBSERVATION.age_step_s for step in range(OBSERVATION.age_steps))
_REST: Doubles = np.array([[expected_rest_s(kind, age_s) for age_s in _AGES_S] for kind in _KINDS])
BUSY_SHARE: Doubles = np.array([busy_rate(kind) for kind in _KINDS])


@dataclass(frozen=True)
class Stand:
    """B chains at one moment as arrays. Shape (B, N) unless said; times in s, speeds in MB/s (nan: unknown).

    exists: False where a row has fewer devices. state: codes in the order of STATES. battery: percent, nan on mains.
    may_receive: their owners' limits leave room for one more delta.
    time_s, size_mb, latency_s, unit_s (transfer time of the median link): (B,).
    """

    exists: Bools
    state: Integers
    link: Doubles
    merge: Doubles
    kind: Integers
    battery: Doubles
    charging: Bools
    in_use: Bools
    cpu: Doubles
    free_memory: Doubles
    busy_for: Doubles
    eta_ready: Doubles
    op_left: Doubles
    n_agg: Doubles
    theta: Doubles
    energy: Doubles
    may_receive: Bools
    time_s: Doubles
    size_mb: Doubles
    latency_s: Doubles
    unit_s: Doubles

    def free(self) -> Bools:
        """Return (B, N): the device may be paired now."""
        free: Bools = (self.state == FREE) & self.exists
        return free

    def takers(self) -> Bools:
        """Return (B, N): the device may be paired now, and may receive."""
        takers: Bools = self.free() & self.may_receive
        return takers

    def holds(self) -> Bools:
        """Return (B, N): the device has a load to pass on, or will have one when its training or hop ends."""
        holds: Bools = (self.state < DONE) & self.exists
        return holds

    def may_wait(self) -> Bools:
        """Return (B,): something is under way, so that waiting ends."""
        waits: Bools = np.any(self.holds() & ~self.free(), axis=1)
        return waits

    def count(self) -> Integers:
        """Return (B,): devices of each row, at least 1."""
        count: Integers = np.maximum(1, self.exists.sum(axis=1))
        return count

    def take(self, rows: Integers) -> Stand:
        """Copy these chains. rows: positions or a mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def put(self, rows: Integers, fresh: Stand) -> None:
        """Write over these chains. rows: as many positions as `fresh` has chains."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[rows] = getattr(fresh, name)


def stand_of(view: ChainView) -> Stand:
    """Convert a view to a batch of one: B is 1, N the number of its devices, in their order.

    If no link is known, `unit_s` is 1 s.
    """
    links = [device.link_mb_s for device in view.devices if device.link_mb_s]
    unit_s = view.latency_s + view.size_mb / median(links) if links else 1.0
    numbers = np.array([_numbers(device) for device in view.devices], dtype=np.float64).T[:, None, :]
    state, link, merge, kind, battery, charging, in_use = numbers[:7]
    cpu, free_memory, busy_for, eta_ready, op_left, n_agg, theta, energy, may_receive = numbers[7:]
    return Stand(
        exists=np.ones(state.shape, dtype=np.bool_),
        state=state.astype(np.int64),
        link=link,
        merge=merge,
        kind=kind.astype(np.int64),
        battery=battery,
        charging=charging > 0,
        in_use=in_use > 0,
        cpu=cpu,
        free_memory=free_memory,
        busy_for=busy_for,
        eta_ready=eta_ready,
        op_left=op_left,
        n_agg=n_agg,
        theta=theta,
        energy=energy,
        may_receive=may_receive > 0,
        time_s=np.array([view.time_s]),
        size_mb=np.array([view.size_mb]),
        latency_s=np.array([view.latency_s]),
        unit_s=np.array([unit_s]),
    )


def _numbers(device: DeviceView) -> tuple[float, ...]:
    """List a device's fields in the order in which `stand_of` unpacks them: one array for all is faster than 16."""
    return (
        _CODES[device.state],
        device.link_mb_s or np.nan,
        device.merge_mb_s or np.nan,
        device.kind,
        np.nan if device.battery_percent is None else device.battery_percent,
        bool(device.charging),
        bool(device.in_use),
        device.cpu_percent,
        device.free_memory_bytes,
        device.busy_for_s,
        device.eta_ready_s,
        device.op_left_s,
        device.n_agg,
        device.theta,
        device.energy_j,
        device.may_receive,
    )


def link_times(stand: Stand) -> Doubles:
    """Return the transfer time over each device's own link in units (B, N); an unknown link takes one unit."""
    times: Doubles = (stand.latency_s[:, None] + stand.size_mb[:, None] / stand.link) / stand.unit_s[:, None]
    return np.where(np.isnan(times), 1.0, times)


def expected_rest(stand: Stand) -> Doubles:
    """Return the mean rest of busy periods (B, N) in units, by kind and age, to the step of the table."""
    unit = stand.unit_s[:, None]
    scale = np.where(stand.kind == UsageKind.ONCE, unit, 1.0)
    step = np.minimum(stand.busy_for / scale / OBSERVATION.age_step_s, OBSERVATION.age_steps - 1).astype(np.int64)
    rest: Doubles = _REST[stand.kind, step] * scale / unit
    return rest


def energy_above_mean(stand: Stand) -> Doubles:
    """Return accumulated energy above the mean of all, per watt and transfer of the median link (B, N)."""
    exists = stand.exists
    mean = np.where(exists, stand.energy, 0.0).sum(axis=1, keepdims=True) / exists.sum(axis=1, keepdims=True)
    above: Doubles = (stand.energy - mean) / stand.unit_s[:, None] * exists
    return above
