"""The view and the decision of a policy: the chain at one moment, and the next pair or a reason to wait. Pure.

A policy knows devices by their reports and by finished hops; nothing here knows messages or drivers. `Choice` has the
reason of a decision in numbers: the compared options and the winner. Words are made from these.

Policies order by cost. They need not know cuts, nor devices with no room for one more delta within their owners' limits
(Eq. 4). A policy's pair may be apart, break a limit, or leave a holder behind that no other holder can reach. Then
`go_around` takes the pair nearest to its choice: the same sender, else the same receiver, else any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeAlias

import msgspec

from mdl.devices.usage import DeviceState as DeviceState
from mdl.devices.usage import UsageKind

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
