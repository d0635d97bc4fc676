"""What goes wrong, and when: a fault plan is data, drawn from a seed, saved as JSON, replayed and shrunk.

Times are virtual seconds from the start. A plan names peers p0, p1, ... and, where it has one, the node `agent` without
a trainer; the target OFFICE is whoever is the mesh's agent at that moment. Every cut heals, every suspended node goes
on, and of the crashed ones at most a minority stays away: once the plan is over, the mesh must get through its rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from mdl.errors import DataError
from mdl.reading import decode_json

OFFICE = "@office"
AGENT_NODE = "agent"

# Virtual seconds: drawn plans end within a minute, and each second of a simulated mesh takes time here too.
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=3600)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class Fault(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=True):
    """at_s: when it begins."""

    at_s: Seconds


class Crash(Fault, frozen=True):
    """kill -9: nothing more is handled, sent or saved."""

    peer: str


class Restart(Fault, frozen=True):
    """A new process with a new incarnation, from what the peer saved; kills the old one if it still runs."""

    peer: str


class Suspend(Fault, frozen=True):
    """SIGSTOP, a closed lid: handles nothing; what queued for it meanwhile comes at once when it goes on."""

    peer: str
    for_s: Seconds


class Cut(Fault, frozen=True):
    """Nothing passes between a and b."""

    a: str
    b: str
    for_s: Seconds


class CutOneWay(Fault, frozen=True):
    """Nothing passes from a to b; b still reaches a."""

    a: str
    b: str
    for_s: Seconds


class Split(Fault, frozen=True):
    """The Wi-Fi splits: nothing passes between the group and all others."""

    group: tuple[str, ...]
    for_s: Seconds


class ClockJump(Fault, frozen=True):
    """From now on the node's clock is by_s ahead (forward only: the driver's clock is monotonic)."""

    peer: str
    by_s: Seconds


class DiskFull(Fault, frozen=True):
    """Nothing is saved."""

    peer: str
    for_s: Seconds


class TornFile(Fault, frozen=True):
    """The newest saved state cannot be read at the next restart: the one before it is used."""

    peer: str


class Moment(Enum):
    BEFORE_HEARING = "before hearing"
    AFTER_HEARING = "after hearing"
    BEFORE_SAYING = "before saying"
    AFTER_SAYING = "after saying"


class CrashOn(Fault, frozen=True):
    """Crash at the nth message of a kind (from 1), counted from at_s on: "agent loss at every step".

    before hearing: the message is lost with the process; after hearing: its answers are lost; before saying: whatever
    it decided at this step stays unsaid; after saying: this one message is out, the rest is not.
    restart_after_s: None if it stays away.
    """

    peer: str
    message: str
    nth: Annotated[int, Meta(ge=1)]
    moment: Moment
    restart_after_s: Seconds | None


AnyFault: TypeAlias = Crash | Restart | Suspend | Cut | CutOneWay | Split | ClockJump | DiskFull | TornFile | CrashOn


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulated run. seed: of the network and of the devices' speeds. has_agent: a node without a trainer leads
    first; otherwise the peers find one of them."""

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    peers: Annotated[int, Meta(ge=1, le=64)]
    rounds: Annotated[int, Meta(ge=1, le=10_000)]
    policy: str = "greedy"
    has_agent: bool = True
    on_partition: str = "wait"
    loss: Probability = 0.0
    duplication: Probability = 0.0
    jitter_s: Seconds = 0.0
    faults: tuple[AnyFault, ...] = ()

    def peer_ids(self) -> list[str]:
        return [f"p{number}" for number in range(self.peers)]

    def node_ids(self) -> list[str]:
        return [*self.peer_ids(), *([AGENT_NODE] if self.has_agent else [])]

    def ends_s(self) -> float:
        """When the last fault that has a time of its own is over."""
        return max((fault.at_s + getattr(fault, "for_s", 0.0) for fault in self.faults), default=0.0)

    def stays_away(self) -> frozenset[str]:
        """Who may crash and not come back: also who was restarted before, and crashes once more."""
        returns: dict[str, float] = {}
        for fault in self.faults:
            if isinstance(fault, Restart):
                returns[fault.peer] = max(fault.at_s, returns.get(fault.peer, 0.0))
        crashes = [fault for fault in self.faults if isinstance(fault, Crash)]
        gone = {fault.peer for fault in crashes if fault.at_s > returns.get(fault.peer, -1.0)}
        return frozenset(
            gone | {fault.peer for fault in self.faults if isinstance(fault, CrashOn) and fault.restart_after_s is None}
        )


LEVELS = ("none", "mild", "hard")
# What a node in office says, and what it and the trainers hear: the steps of a round at which somebody can be lost.
OFFICE_SAYS = ("RoundOpened", "HopOrdered", "HopReleased", "BroadcastOrdered", "RoundClosed", "CatchUp")
PEERS_SAY = (
    "PeerReport",
    "DeltaWanted",
    "DeltaMessage",
    "GlobalWanted",
    "GlobalTaken",
    "GlobalMessage",
    "ModelMessage",
)


def draw_plan(
    seed: int,
    peers: int,
    rounds: int,
    level: str,
    policy: str = "greedy",
    has_agent: bool | None = None,
    on_partition: str | None = None,
) -> FaultPlan:
    """The plan of this seed: the same for ever, as long as this module is the same. level: one of LEVELS.

    has_agent, on_partition: None draws them too, except at level none (an agent, which waits).
    """
    rng = np.random.default_rng([seed, 0xFA017])
    any_agent, any_partition = bool(rng.random() < 0.5), "continue" if rng.random() < 1 / 3 else "wait"
    if level == "none":
        any_agent, any_partition = True, "wait"
    has_agent = any_agent if has_agent is None else has_agent
    plan = FaultPlan(seed, peers, rounds, policy, has_agent, on_partition or any_partition)
    if level == "none":
        return plan
    most, kinds = (_MILD_NETWORK, _MILD) if level == "mild" else (_HARD_NETWORK, _HARD)
    loss, duplication, jitter_s = (_below(rng, limit) for limit in most)
    plan = msgspec.structs.replace(plan, loss=loss, duplication=duplication, jitter_s=jitter_s)
    count = int(rng.integers(0, 3) if level == "mild" else rng.integers(1, 6))
    return msgspec.structs.replace(plan, faults=_Draw(rng, plan).faults(count, kinds))


class _Draw:
    """Draws faults one after the other; remembers who stays away and whose disk fails: each less than half of all."""

    def __init__(self, rng: np.random.Generator, plan: FaultPlan) -> None:
        self.rng = rng
        self.plan = plan
        self.window_s = 0.8 * plan.rounds + 2.6  # the start, and what the rounds take at least
        self.minority = (plan.peers - 1) // 2
        self.may_stay_away = rng.random() < 0.2
        self.away: set[str] = set()
        self.bad_disks: set[str] = set()

    def faults(self, count: int, kinds: tuple[Callable[[_Draw], list[AnyFault]], ...]) -> tuple[AnyFault, ...]:
        drawn = [fault for _ in range(count) for fault in kinds[int(self.rng.integers(len(kinds)))](self)]
        return tuple(sorted(drawn, key=lambda fault: (fault.at_s, repr(fault))))

    def at_s(self) -> float:
        return round(float(self.rng.uniform(0.05, self.window_s)), 3)

    def for_s(self, longest_s: float = 4.0) -> float:
        """Mostly short, sometimes long enough to be lost and to miss a round."""
        return round(float(0.1 + (longest_s - 0.1) * self.rng.random() ** 2), 3)

    def node(self) -> str:
        return str(self.rng.choice(self.plan.node_ids()))

    def peer(self) -> str:
        return str(self.rng.choice(self.plan.peer_ids()))

    def two(self) -> tuple[str, str]:
        ids = self.plan.node_ids()
        first, second = self.rng.permutation(len(ids))[:2] if len(ids) > 1 else (0, 0)
        return ids[first], ids[second]

    def restart_after_s(self, peer: str) -> float | None:
        if self.may_stay_away and len(self.away | {peer}) <= self.minority and self.rng.random() < 0.5:
            self.away.add(peer)
            return None
        return self.for_s(3.0)

    def disk(self) -> str:
        """A peer whose disk may fail: no more of them than a minority, or what a majority saved could be lost."""
        peer = self.peer()
        if peer not in self.bad_disks and len(self.bad_disks) >= self.minority:
            peer = min(self.bad_disks, default=peer)
        self.bad_disks.add(peer)
        return peer


def _below(rng: np.random.Generator, most: float) -> float:
    return round(float(rng.uniform(0.0, most)), 3)


def _crash(draw: _Draw) -> list[AnyFault]:
    peer, at_s = draw.node(), draw.at_s()
    back_s = draw.restart_after_s(peer)
    crash = Crash(at_s=at_s, peer=peer)
    return [crash] if back_s is None else [crash, Restart(at_s=round(at_s + back_s, 3), peer=peer)]


def _restart(draw: _Draw) -> list[AnyFault]:
    return [Restart(at_s=draw.at_s(), peer=draw.node())]


def _crash_all(draw: _Draw) -> list[AnyFault]:
    at_s = draw.at_s()
    down: list[AnyFault] = [Crash(at_s=at_s, peer=peer) for peer in draw.plan.node_ids()]
    return [*down, *(Restart(at_s=round(at_s + draw.for_s(2.0), 3), peer=peer) for peer in draw.plan.node_ids())]


def _suspend(draw: _Draw) -> list[AnyFault]:
    return [Suspend(at_s=draw.at_s(), peer=draw.node(), for_s=draw.for_s())]


def _cut(draw: _Draw) -> list[AnyFault]:
    a, b = draw.two()
    return [Cut(at_s=draw.at_s(), a=a, b=b, for_s=draw.for_s())]


def _cut_one_way(draw: _Draw) -> list[AnyFault]:
    a, b = draw.two()
    return [CutOneWay(at_s=draw.at_s(), a=a, b=b, for_s=draw.for_s())]


def _split(draw: _Draw) -> list[AnyFault]:
    ids = draw.plan.node_ids()
    size = int(draw.rng.integers(1, max(2, len(ids))))
    group = tuple(sorted(ids[number] for number in draw.rng.permutation(len(ids))[:size]))
    return [Split(at_s=draw.at_s(), group=group, for_s=draw.for_s())]


def _clock_jump(draw: _Draw) -> list[AnyFault]:
    return [ClockJump(at_s=draw.at_s(), peer=draw.node(), by_s=draw.for_s(20.0))]


def _disk_full(draw: _Draw) -> list[AnyFault]:
    if not draw.minority:
        return []
    return [DiskFull(at_s=draw.at_s(), peer=draw.disk(), for_s=draw.for_s())]


def _torn_file(draw: _Draw) -> list[AnyFault]:
    """Matters at a restart alone, so there is one."""
    if not draw.minority:
        return []
    peer, at_s = draw.disk(), draw.at_s()
    back_s = round(at_s + draw.for_s(2.0), 3)
    return [TornFile(at_s=at_s, peer=peer), Crash(at_s=at_s, peer=peer), Restart(at_s=back_s, peer=peer)]


def _crash_on(draw: _Draw) -> list[AnyFault]:
    """Twice as often the node in office as a given one."""
    if draw.rng.random() < 2 / 3:
        peer, moment = OFFICE, Moment.BEFORE_SAYING if draw.rng.random() < 0.5 else Moment.AFTER_SAYING
        message = str(draw.rng.choice(OFFICE_SAYS))
        if draw.rng.random() < 0.3:
            message, moment = "PeerReport", Moment.AFTER_HEARING
    else:
        peer, moment = draw.peer(), list(Moment)[int(draw.rng.integers(4))]
        says = moment in (Moment.BEFORE_SAYING, Moment.AFTER_SAYING)
        message = str(draw.rng.choice(PEERS_SAY if says else OFFICE_SAYS + PEERS_SAY[1:]))
    nth = int(draw.rng.integers(1, 6 if message != "PeerReport" else 40))
    back_s = draw.restart_after_s(peer)
    at_s = draw.at_s() if draw.rng.random() < 0.5 else 0.0
    return [CrashOn(at_s=at_s, peer=peer, message=message, nth=nth, moment=moment, restart_after_s=back_s)]


# Loss, duplication, jitter in seconds: at most.
_MILD_NETWORK = (0.1, 0.05, 0.05)
_HARD_NETWORK = (0.3, 0.1, 0.15)
_MILD = (_crash, _suspend, _cut)
_HARD = (
    _crash, _crash, _restart, _suspend, _suspend, _cut, _cut_one_way, _split, _clock_jump, _disk_full, _torn_file,
    _crash_on, _crash_on, _crash_on, _crash_all,
)  # fmt: skip


def load_plan(data: bytes) -> FaultPlan:
    """Raises DataError if it is no plan, or names a node that is not in it."""
    plan = decode_json(data, FaultPlan, "plan", "a plan that `mdl sim run` saved")
    known = {*plan.node_ids(), OFFICE}
    for number, fault in enumerate(plan.faults):
        named = [getattr(fault, name, "") for name in ("peer", "a", "b")] + list(getattr(fault, "group", ()))
        if unknown := [name for name in named if name and name not in known]:
            valid = ", ".join(sorted(known))[:200]
            raise DataError(f"plan: fault {number} names {unknown[0][:40]!r}; valid: {valid}")
    return plan


def dump_plan(plan: FaultPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"
