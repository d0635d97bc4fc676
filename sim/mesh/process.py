"""One simulated process, its disk, its slow work, and the protocols that show a machine without knowing its role.

Slow work is training, evaluation, recalls, whole vectors. It takes virtual time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar, cast

from msgspec.structs import replace

from mdl.defence.judge import length
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Sums, Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    LocalDeltaReady,
    Machine,
    PauseChanged,
    RecallDelta,
    SaveModel,
    TrainingPaused,
    TrainLocally,
    hold_recalled,
    hold_trained,
)
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp
from mdl.protocol.statements import AnyStatement
from mdl.protocol.vector_work import VECTOR_WORK, MergeDeltas, merge_deltas, where_it_begins
from mdl.protocol.vocabulary import (
    LATE_S,
    Ballot,
    HopDecision,
    KeptBallot,
    Lineage,
    PeerInfo,
    ResourceState,
    Staged,
    TrainingReport,
    doubted,
)
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.plans.fault_plan import DISK_FORGETS_S

T = TypeVar("T")

# A suspended process queues about as many events as a socket does. The newest is dropped, as there.
BACKLOG = 1_000
# Saved states that a torn file can fall back to.
_SAVES_KEPT = 2
# A time of 0 means that it is not known.
_FIRST_S = 1e-3


class Result(Protocol):
    """values: int32 (P,), as far as they have arrived."""

    values: Sums


class HeldExchange(Protocol):
    """The segments of a round under way. order: the order that they carry out. result: of that order."""

    order: BroadcastOrdered

    @property
    def result(self) -> Result: ...

    def bounds(self, segment: int) -> slice: ...


class Gapped(Protocol):
    """A result that is here in part. values: as far as they have arrived."""

    values: Sums


class HeldBroadcast(Protocol):
    """The broadcast of a round. staged: its result, on a device that has it. exchange: its segments.

    gapped: the part of the result that the segments have left here, with gaps; a whole result fills them.
    """

    order: BroadcastOrdered | None
    staged: PartialSum | None
    exchange: HeldExchange | None

    @property
    def gapped(self) -> Gapped | None: ...

    def report(self) -> Staged | None: ...


class HeldRound(Protocol):
    """A holder's state in its open round, for one attempt at it: another attempt is another part.

    lacks_own: a result has taken the place of its own delta.
    """

    round_id: int
    attempt: int
    hold: PartialSum | None
    broadcast: HeldBroadcast
    members: Collection[Contributor]
    given: tuple[int, Contributor] | None
    released: set[int]
    decisions: dict[int, HopDecision]

    @property
    def lacks_own(self) -> bool: ...


class Holder(Protocol):
    """The part of a machine that holds partial sums and applies rounds. attempt: (round, opening term).

    carry: own work that is in no delta yet. kept_back: the share of it that coming rounds count by themselves.
    catching_up_to: the position of the mesh, while this device fetches the model; the fields above omit what it
    holds then.
    """

    round_id: int
    digest: bytes
    lineage: Lineage
    base: tuple[str, ...]
    parameters: Vector
    part: HeldRound | None
    carry: Vector | None
    kept_back: Vector | None

    @property
    def catching_up_to(self) -> CatchUp | None: ...

    def attempt(self) -> tuple[int, int]: ...


class Authority(Protocol):
    """The agent that a machine obeys: the highest term it has heard, and the agent's peer id."""

    term: int
    agent: str


class Ledger(Protocol):
    """The books of an open round. hops: the ordered hops, by any key."""

    hops: Mapping[Any, Any]


class Keeper(Protocol):
    """A mobile agent: it keeps a round open, and knows which members still count. authority: (term, peer id)."""

    term: int
    ledger: Ledger | None
    phase: Enum
    waiting_for: str

    def authority(self) -> tuple[int, str]: ...

    def attempt(self) -> tuple[int, int]: ...

    def live_members(self) -> Collection[Contributor]: ...

    def is_settled(self) -> bool: ...


class Office(Protocol):
    """A machine that may lead. agent: None while it does not."""

    agent: Keeper | None


class _NoOffice:
    """The office of a machine that never leads."""

    agent = None


@dataclass
class Disk:
    """The files of one device: its last models, the oldest first, its ballot, and the roster.

    roster: None if it has heard no more than the mesh knew at its start. full_until_s: no model is saved before that.
    boot: names the start of its machine. changed_s: the last change of the ballot's file. past_models, past_kept: its
    earlier contents, each with the second it held from. Rosters are never lost here.
    """

    models: list[SaveModel] = field(default_factory=list)
    kept: KeptBallot | None = None
    roster: tuple[AnyStatement, ...] | None = None
    full_until_s: float = 0.0
    boot: str = "boot 0"
    changed_s: float = 0.0
    past_models: list[tuple[float, tuple[SaveModel, ...]]] = field(default_factory=list)
    past_kept: list[tuple[float, KeptBallot | None]] = field(default_factory=list)

    @property
    def ballot(self) -> Ballot | None:
        """Return the ballot that a process that starts now may rely on."""
        if self.kept is None:
            return None
        why = self.kept.why_doubted(self.boot, self.changed_s)
        return doubted(self.kept.ballot) if why else self.kept.ballot

    def save(self, effect: SaveModel, now: float) -> None:
        if now >= self.full_until_s:
            self.models.append(effect)
            del self.models[:-_SAVES_KEPT]
            self.past_models.append((now, tuple(self.models)))

    def promise(self, ballot: Ballot, now: float, is_last: bool = False) -> None:
        """Write a ballot, in place: even on a full disk. is_last: its process has ended."""
        number = self.kept.number + 1 if self.kept else 1
        self.kept = KeptBallot(number, ballot, self.boot, is_last, max(now, _FIRST_S))
        self.changed_s = self.kept.at_s
        self.past_kept.append((now, self.kept))

    def end(self, now: float) -> None:
        """Note that the process ends in an orderly way."""
        if self.kept is not None:
            self.promise(self.kept.ballot, now, is_last=True)

    def begin(self, now: float) -> None:
        """Note that a process starts. After an orderly end that takes longer than a disk forgets: it is backdated."""
        if self.kept is not None and (ballot := self.ballot) is not None:
            self.promise(ballot, now - DISK_FORGETS_S if self.kept.is_last else now)

    def lose(self, models_s: float, ballot_s: float, now: float) -> None:
        """Cut the power: the writes of the last so many seconds are gone, and the machine starts anew."""
        models = _at(self.past_models, now - models_s)
        self.models, self.kept = list(models or ()), _at(self.past_kept, now - ballot_s)
        self.changed_s, self.boot = self.kept.at_s if self.kept else 0.0, f"boot at {now}"
        self.past_models.append((now, tuple(self.models)))
        self.past_kept.append((now, self.kept))

    def copy(self, age_s: float, now: float, boot: str = "") -> Disk:
        """Return another disk with this one's contents of so many seconds ago, when its device was running.

        boot: of the machine that gets an image of all of it. "": this machine, to which the files were copied back.
        """
        models, kept = _at(self.past_models, now - age_s) or (), _at(self.past_kept, now - age_s)
        kept = replace(kept, is_last=False) if kept else None
        changed_s = kept.at_s if kept and boot else now + 2 * LATE_S
        copied = Disk(list(models), kept, self.roster, self.full_until_s, boot or self.boot, changed_s)
        copied.past_models.append((now - age_s, models))
        copied.past_kept.append((now - age_s, kept))
        return copied


def _at(past: list[tuple[float, T]], at_s: float) -> T | None:
    return next((what for since_s, what in reversed(past) if since_s <= at_s), None)


@dataclass(eq=False)
class Node:
    """One start of one process. theta: weight of its deltas. train_s: virtual seconds of local training.

    offset_s: its clock's lead over the mesh's. backlog: events that arrived while it was suspended.
    trained_from: the w that its model was trained from, until something else is loaded.
    is_cut_off: a pause has ended the training that was under way.
    """

    info: PeerInfo
    machine: Machine
    train_s: float
    theta: float
    resources: ResourceState
    running: bool = True
    tick_at: float | None = None
    ticked_at: float = -1.0
    ticks: int = 0
    finished: Finish | None = None
    offset_s: float = 0.0
    paused_at: float | None = None
    resume_at: float = 0.0
    backlog: list[Event] = field(default_factory=list)
    known: set[Contributor] = field(default_factory=set)
    trained_from: Vector | None = None
    is_cut_off: bool = False

    def __post_init__(self) -> None:
        self.peer_id = self.info.peer_id
        me = Contributor(self.info.peer_id, self.info.incarnation)
        own_me = getattr(self.machine, "me", None)
        self.contributor: Contributor = own_me if own_me == me else me  # the same object compares faster
        self.holder = cast("Holder | None", getattr(self.machine, "trainer", None))
        self.succession = cast("Authority | None", getattr(self.machine, "succession", None))
        self.office = cast(Office, self.machine if hasattr(self.machine, "agent") else _NoOffice())

    @property
    def keeper(self) -> Keeper | None:
        """The mobile agent on this node, if it is in office."""
        return self.office.agent


_EVALUATION_S = 0.01
_RECALL_S = 0.01
# Longer than a message takes here: messages that arrive meanwhile must do no harm.
_VECTOR_WORK_S = 0.02
# The network charges for a merge (`merge_mb_s`).
_MERGED_S = 0.001


class _Length:
    """Stands for the loss on a device's windows: it is high for vectors far from 0, so that large lies stand out."""

    classes = 2

    def __call__(self, parameters: Vector, keep: bool = False) -> float:
        return length(parameters)


def begin_work(node: Node, effect: Effect, accounts: Accounts) -> tuple[float, Event] | None:
    """Begin an effect's work: return its seconds and the event at its end; None for any other effect."""
    if type(effect) is TrainLocally:
        begins_at = where_it_begins(effect.parameters, effect.ahead)
        node.trained_from, node.is_cut_off = begins_at, False
        delta = accounts.train(node.contributor, effect.round_id, begins_at, node.theta)
        training = TrainingReport(1.0 / effect.round_id, 100, node.train_s, node.theta, length(delta.values))
        return node.train_s, LocalDeltaReady(effect.round_id, delta, training, hold_trained(effect, delta))
    if type(effect) is Evaluate:
        node.trained_from = None
        return _EVALUATION_S, Evaluated(effect.round_id, no_evaluation(1))
    if type(effect) is RecallDelta:
        values = None
        if node.trained_from is effect.parameters:  # else its model holds other parameters by now
            values = accounts.recall(node.contributor, effect.round_id, effect.parameters)
        return _RECALL_S, hold_recalled(effect, DeltaRecalled(effect.round_id, values))
    if type(effect) is MergeDeltas:
        return _MERGED_S, merge_deltas(effect, losses=_Length())
    work = VECTOR_WORK.get(type(effect))
    return (_VECTOR_WORK_S, work(effect)) if work else None


def as_delivered(node: Node, event: Event) -> Event:
    """Return the event as delivered after a possible pause: a pause cuts off training under way."""
    if type(event) is PauseChanged and event.reason:
        node.is_cut_off = True
    if type(event) is LocalDeltaReady and node.is_cut_off:
        node.is_cut_off, node.trained_from = False, None
        return TrainingPaused(event.round_id)
    return event


def note_delivered(event: Event, accounts: Accounts) -> None:
    """Count own work from now on: its machine is about to hear of it."""
    if type(event) is LocalDeltaReady:
        accounts.deliver(event.delta.values)
    elif type(event) is DeltaRecalled and event.values is not None:
        accounts.deliver(event.values)
