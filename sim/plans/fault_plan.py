"""Fault plans: faults and their times as data, drawn from a seed, saved as JSON, replayed, and shrunk. Pure.

Times are virtual seconds from the start. A plan names peers p0, p1, ... and, if it has one, the node `agent` without a
trainer. The target OFFICE is the mesh's agent at that moment, if there is one. Every cut heals, every suspended node
goes on, and at most a minority of the crashed ones stays away: once the plan is over, the mesh must get through.

`shrink_plan` finds the shortest plan that still fails; its caller defines a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.errors import DataError, LocalProtocolError
from mdl.protocol.coding import Coding
from mdl.protocol.vector_work import Outer
from mdl.reading import decode_json

OFFICE = "@office"
# In a burst: ANYBODY may take the step; ITSELF is the device that took it.
ANYBODY = "@anybody"
ITSELF = "@itself"
AGENT_NODE = "agent"

# Virtual seconds: drawn plans end within a minute, and each second of a simulated mesh takes real time too.
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=3600)]
# A disk that lies has forgotten at most this much at a power cut.
DISK_FORGETS_S = 2.0
Forgotten: TypeAlias = Annotated[float, Meta(ge=0, le=DISK_FORGETS_S)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class Fault(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=True):
    """at_s: the time at which it begins."""

    at_s: Seconds


class Crash(Fault, frozen=True):
    """kill -9: nothing more is handled, sent or saved."""

    peer: str


class Restart(Fault, frozen=True):
    """A new process with a new incarnation, from the peer's saved files; kills the old one if it still runs."""

    peer: str


class Leave(Fault, frozen=True):
    """Its user ends it (Ctrl-C): it says so and leaves in the middle of its work. Does nothing to a dedicated agent.

    A restart after it brings the device back.
    """

    peer: str


class Suspend(Fault, frozen=True):
    """SIGSTOP, a closed lid: handles nothing; events that queued meanwhile come at once when it goes on."""

    peer: str
    for_s: Seconds


class Pause(Fault, frozen=True):
    """Its owner does not let it train (`--when`); it does all else. A process that is started meanwhile may train."""

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


class PowerCut(Fault, frozen=True):
    """The device's machine loses power. Several at one moment are a home without power.

    loses_s: the models that it wrote in the last so many seconds are gone; ballot_loses_s: its ballots. Two numbers,
    since a disk that lies about safe writes keeps no order. 0: it does not lie.
    """

    peer: str
    loses_s: Forgotten = 0.0
    ballot_loses_s: Forgotten = 0.0


class Restore(Fault, frozen=True):
    """The device's user ends it, puts back its folder as of age_s ago, when it ran, and starts it again."""

    peer: str
    age_s: Seconds


class Clone(Fault, frozen=True):
    """Another machine, with an image of the device's card as it was age_s ago, runs under its name.

    The device itself is silent meanwhile, and goes on with its own card afterwards. If two of one name hear each other,
    the later one leaves; links handle that.
    """

    peer: str
    age_s: Seconds
    for_s: Seconds


class Starve(Fault, frozen=True):
    """Others take the processor: the device gets it for a moment once in every_s; 0: not at all."""

    peer: str
    for_s: Seconds
    every_s: Seconds = 0.0


class Revoke(Fault, frozen=True):
    """The user of the device `by`, or of another one if that cannot, locks a device out of the mesh for ever.

    heeds: True if that device leaves once it hears of it; else it goes on, as a thief might make it do.
    """

    peer: str
    by: str
    heeds: bool = False


class Lie(Fault, frozen=True):
    """This device gives its sums and pieces multiplied by so much, and tells the checksums of such an own delta."""

    peer: str
    times: Annotated[float, Meta(ge=-1e6, le=1e6)]
    for_s: Seconds


class TwoFaced(Fault, frozen=True):
    """This device gives the devices `to` a result that is larger than its own by so much; some hide their checksums."""

    peer: str
    to: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
    more: Annotated[float, Meta(ge=-1e6, le=1e6)]
    for_s: Seconds
    hides: bool = False


class Alters(Fault, frozen=True):
    """One value of each sum of several deltas is larger by 1 when this device gives it on."""

    peer: str
    for_s: Seconds


class Moment(Enum):
    BEFORE_HEARING = "before hearing"
    AFTER_HEARING = "after hearing"
    BEFORE_SAYING = "before saying"
    AFTER_SAYING = "after saying"


class CrashOn(Fault, frozen=True):
    """Crash at the nth message of a kind (from 1), counted from at_s on: "agent loss at every step".

    before hearing: the message is lost with the process; after hearing: its answers are lost; before saying: its
    decisions at this step stay unsaid; after saying: this one message is out, the rest is not.
    restart_after_s: None if it stays away.
    """

    peer: str
    message: str
    nth: Annotated[int, Meta(ge=1)]
    moment: Moment
    restart_after_s: Seconds | None


TimedFault: TypeAlias = (
    Crash
    | Restart
    | Leave
    | Suspend
    | Pause
    | Cut
    | CutOneWay
    | Split
    | ClockJump
    | DiskFull
    | TornFile
    | PowerCut
    | Restore
    | Clone
    | Starve
    | Revoke
    | Lie
    | TwoFaced
    | Alters
)
# The process is gone; a restart brings it back.
ENDS = Crash | PowerCut | Leave


class Step(Enum):
    """The steps of a decision: opened, proposed and closing are the agent's, the others any device's.

    staged: a result arrives; voted: a report tells of it; saving: it is applied, since the round is closed. In
    segments: given: a piece arrives; got: a segment of the result arrives.
    """

    OPENED = "opened"
    PROPOSED = "proposed"
    STAGED = "staged"
    VOTED = "voted"
    CLOSING = "closing"
    SAVING = "saving"
    GIVEN = "given"
    GOT = "got"


class Burst(Fault, frozen=True):
    """Faults in a row at a step of a decision: the nth time (from 1) that it is taken in this round, from at_s on.

    peer: takes the step; also OFFICE or ANYBODY. before: the faults at 0 s come before the message is said or heard,
    else after it. The times of the faults count from this moment. In them, ITSELF is the device that took the step, and
    OFFICE the present agent (or ITSELF, if there is none).
    """

    peer: str
    round_id: Annotated[int, Meta(ge=1)]
    step: Step
    nth: Annotated[int, Meta(ge=1)]
    before: bool
    faults: tuple[TimedFault, ...]


AnyFault: TypeAlias = TimedFault | CrashOn | Burst
FaultT = TypeVar("FaultT", bound=Fault)


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulated run. seed: of the network and of the devices' speeds. has_agent: a node without a trainer leads
    first; otherwise the peers find one of them. exchange, compress, outer_momentum: as in [round] of the configuration;
    0.0: no outer optimizer. overlap: two devices of three train one round ahead. slow: one of three trains several
    times as long, and rounds go on without it."""

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    peers: Annotated[int, Meta(ge=1, le=64)]
    rounds: Annotated[int, Meta(ge=1, le=10_000)]
    policy: str = "greedy"
    has_agent: bool = True
    on_partition: str = "wait"
    exchange: Exchange = "chain"
    compress: Coding = "none"
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    overlap: bool = False
    slow: bool = False
    loss: Probability = 0.0
    duplication: Probability = 0.0
    jitter_s: Seconds = 0.0
    late: Probability = 0.0
    faults: tuple[AnyFault, ...] = ()

    def outer(self) -> Outer:
        """Return the outer optimizer: with momentum, deltas move the model no more in the long run than without."""
        return Outer(1.0 - self.outer_momentum, self.outer_momentum)

    def overlaps(self, peer_id: str) -> bool:
        return self.overlap and peer_id[1:].isdigit() and int(peer_id[1:]) % 3 != 2

    def is_slow(self, peer_id: str) -> bool:
        return self.slow and peer_id[1:].isdigit() and int(peer_id[1:]) % 3 == 1

    def peer_ids(self) -> list[str]:
        return [f"p{number}" for number in range(self.peers)]

    def node_ids(self) -> list[str]:
        return [*self.peer_ids(), *([AGENT_NODE] if self.has_agent else [])]

    def ends_s(self) -> float:
        """Return the end of the last fault that has a time of its own."""
        return max((fault.at_s + getattr(fault, "for_s", 0.0) for fault in self.faults), default=0.0)

    def apart_s(self, longer_s: float) -> float:
        """Return the seconds for which devices are apart from others, beyond the first `longer_s` of each time."""
        apart = (fault for fault in self.faults if isinstance(fault, Split | Cut | CutOneWay | Suspend | Starve))
        return sum(max(0.0, fault.for_s - longer_s) for fault in apart)

    def has_revocations(self) -> bool:
        """Return True if devices are locked out; then there are rosters."""
        return any(isinstance(fault, Revoke) for fault in self._all())

    def has_leaves(self) -> bool:
        """Return True if users end devices."""
        return any(isinstance(fault, Leave) for fault in self._all())

    def _all(self) -> tuple[AnyFault, ...]:
        return (*self.faults, *(each for fault in self.faults if isinstance(fault, Burst) for each in fault.faults))

    def stays_away(self) -> frozenset[str]:
        """Return the peers that may crash or leave for good: also those that are restarted and then crash once more."""
        gone = _stay_away(self.faults)
        for fault in self.faults:
            if isinstance(fault, CrashOn) and fault.restart_after_s is None:
                gone |= {fault.peer}
            elif isinstance(fault, Burst):
                gone |= _stay_away(fault.faults)
        return gone


def names_of(fault: AnyFault) -> tuple[str, ...]:
    """Return the nodes that this fault names. Raises LocalProtocolError for a kind that is not known here."""
    match fault:
        case Split(group=group):
            return group
        case Cut(a=a, b=b) | CutOneWay(a=a, b=b):
            return a, b
        case Revoke(peer=peer, by=by):
            return peer, by
        case TwoFaced(peer=peer, to=to):
            return peer, *to
        case Burst(peer=peer, faults=faults):
            return peer, *(name for inner in faults for name in names_of(inner))
        case (
            Crash(peer=peer)
            | Restart(peer=peer)
            | Leave(peer=peer)
            | Suspend(peer=peer)
            | Pause(peer=peer)
            | ClockJump(peer=peer)
            | DiskFull(peer=peer)
            | TornFile(peer=peer)
            | PowerCut(peer=peer)
            | Restore(peer=peer)
            | Clone(peer=peer)
            | Starve(peer=peer)
            | Lie(peer=peer)
            | Alters(peer=peer)
            | CrashOn(peer=peer)
        ):
            return (peer,)
    raise LocalProtocolError(f"a fault of an unknown kind: {type(fault).__name__}")


def ordered(faults: Iterable[FaultT]) -> tuple[FaultT, ...]:
    """Sort by beginning; faults of one moment always come in the same order."""
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, repr(fault))))


def round_s(value: float) -> float:
    return round(float(value), 3)


def rename(fault: TimedFault, names: dict[str, str]) -> TimedFault:
    """Return the same fault with other names."""
    changed: dict[str, object] = {}
    for field in ("peer", "a", "b", "by"):
        if (name := getattr(fault, field, None)) in names:
            changed[field] = names[str(name)]
    if isinstance(fault, Split):
        changed["group"] = tuple(names.get(name, name) for name in fault.group)
    return msgspec.structs.replace(fault, **changed) if changed else fault


def _stay_away(faults: tuple[AnyFault, ...]) -> frozenset[str]:
    returns: dict[str, float] = {}
    for fault in faults:
        if isinstance(fault, Restart):
            returns[fault.peer] = max(fault.at_s, returns.get(fault.peer, 0.0))
    ends = [fault for fault in faults if isinstance(fault, ENDS)]
    return frozenset(fault.peer for fault in ends if fault.at_s > returns.get(fault.peer, -1.0))


def load_plan(data: bytes) -> FaultPlan:
    """Load a plan. Raises DataError if it is no plan, or names a node that is not in it."""
    plan = decode_json(data, FaultPlan, "plan", "a plan that `mdl sim run` saved")
    for number, fault in enumerate(plan.faults):
        known = {*plan.node_ids(), OFFICE, *((ANYBODY, ITSELF) if isinstance(fault, Burst) else ())}
        if unknown := [name for name in names_of(fault) if name not in known]:
            valid = ", ".join(sorted(known))[:200]
            raise DataError(f"plan: fault {number} names {unknown[0][:40]!r}; valid: {valid}")
    return plan


def dump_plan(plan: FaultPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


Fails = Callable[[FaultPlan], bool]


def shrink_plan(plan: FaultPlan, fails: Fails, tries: int = 300) -> FaultPlan:
    """Return the smallest plan found in so many runs that `fails`; `plan` itself does.

    A peer's crash goes together with its restart: staying away would be another, harder fault.
    """
    left = [tries]

    def still_fails(candidate: FaultPlan) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(candidate)

    while left[0] > 0:
        smaller = next((candidate for candidate in _smaller(plan) if still_fails(candidate)), None)
        if smaller is None:
            break
        plan = smaller
    return plan


def _smaller(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Yield plans that are one step smaller, the boldest first."""
    units = _units(plan.faults)
    size = len(units) // 2
    while size >= 1:
        for start in range(0, len(units), size):
            kept = units[:start] + units[start + size :]
            yield replace(plan, faults=ordered(fault for unit in kept for fault in unit))
        size //= 2
    yield from _smaller_bursts(plan)
    noises = [name for name in ("loss", "duplication", "jitter_s", "late") if getattr(plan, name)]
    if len(noises) > 1:
        yield replace(plan, **dict.fromkeys(noises, 0.0))
    for name in noises:
        yield replace(plan, **{name: 0.0})
    if plan.rounds > 1:
        yield replace(plan, rounds=plan.rounds - 1)
    if plan.peers > 2:
        yield _without_last_peer(plan)
    if plan.has_agent and not any(AGENT_NODE in names_of(fault) for fault in plan.faults):
        yield replace(plan, has_agent=False)
    if plan.exchange != "chain":
        yield replace(plan, exchange="chain")
    if plan.on_partition != "wait":
        yield replace(plan, on_partition="wait")


def _smaller_bursts(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Yield plans in which one burst has a fault less."""
    for place, burst in enumerate(plan.faults):
        if isinstance(burst, Burst) and len(units := _units(burst.faults)) > 1:
            for dropped in range(len(units)):
                kept = tuple(fault for number, unit in enumerate(units) if number != dropped for fault in unit)
                yield replace(
                    plan, faults=(*plan.faults[:place], replace(burst, faults=kept), *plan.faults[place + 1 :])
                )


def _units(faults: Iterable[AnyFault]) -> list[list[AnyFault]]:
    """Group the faults: each crash, power cut and leave goes together with the peer's next restart."""
    units: list[list[AnyFault]] = []
    waiting: dict[str, list[AnyFault]] = {}
    for fault in faults:
        if isinstance(fault, Restart) and fault.peer in waiting:
            waiting.pop(fault.peer).append(fault)
            continue
        units.append([fault])
        if isinstance(fault, ENDS):
            waiting[fault.peer] = units[-1]
    return units


def _without_last_peer(plan: FaultPlan) -> FaultPlan:
    gone = f"p{plan.peers - 1}"
    faults: list[AnyFault] = []
    for fault in plan.faults:
        if isinstance(fault, Split):
            group = tuple(peer for peer in fault.group if peer != gone)
            faults += [replace(fault, group=group)] if group else []
        elif gone not in names_of(fault):
            faults.append(fault)
    return replace(plan, peers=plan.peers - 1, faults=tuple(faults))
