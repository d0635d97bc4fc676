"""The view and the decision of a policy: the chain at one moment, and the next pair or a reason to wait.

A policy knows devices by their reports and by finished hops; nothing here knows messages or drivers.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol, TypeAlias

import msgspec

from mdl.devices.device_state import DeviceState as DeviceState
from mdl.devices.usage import UsageKind
from mdl.scheduler.policies.why import Choice

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
    and B_max of Eq. 4); if not, `mdl.scheduler.policies.detour` keeps hops away from it, whatever a policy says.
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

    apart: pairs that recently could not reach each other, in either order; `mdl.scheduler.policies.detour` keeps
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
