"""One simulated process, its disk, and how the simulator looks into a machine without knowing its role."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, cast

from mdl.protocol.delta import Contributor, ModelDelta, Vector
from mdl.protocol.machine import Event, Finish, Machine, SaveModel
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp
from mdl.protocol.vocabulary import Ballot, HopDecision, Lineage, PeerInfo, ResourceState, Staged
from mdl.trust.statements import AnyStatement

# What waits for a suspended process: about what a socket's queue holds. The newest is dropped, as there.
BACKLOG = 1_000
# Saved states that a torn file can fall back to.
_SAVES_KEPT = 2


class Result(Protocol):
    """values: float32 (P,), as far as they are there."""

    values: Vector


class Exchange(Protocol):
    """The segments of a round under way. order: what is made. result: of it."""

    order: BroadcastOrdered

    @property
    def result(self) -> Result: ...

    def bounds(self, segment: int) -> slice: ...


class Gapped(Protocol):
    """A result that is here in part. values: as far as they are."""

    values: Vector


class Spread(Protocol):
    """The broadcast of a round. staged: its result, on a device that has it. exchange: the segments of it.

    gapped: what these have left of one that comes whole.
    """

    order: BroadcastOrdered | None
    staged: ModelDelta | None
    exchange: Exchange | None

    @property
    def gapped(self) -> Gapped | None: ...

    def report(self) -> Staged | None: ...


class Part(Protocol):
    """What a holder has of its open round, for one attempt at it: another one is another part.

    lacks_own: the place of its own delta is a result's.
    """

    round_id: int
    attempt: int
    holds: dict[int, ModelDelta]
    spread: Spread
    members: Collection[Contributor]
    given: dict[int, tuple[int, Contributor]]
    released: set[tuple[int, int]]
    decisions: dict[tuple[int, int], HopDecision]

    @property
    def lacks_own(self) -> bool: ...


class Holder(Protocol):
    """The part of a machine that holds partial means and applies rounds. attempt: (round, opening term).

    carry, kept_back: own work that is in no delta yet, and how much of it rounds to come count by themselves.
    catching_up_to: where the mesh stands, while this device fetches the model; what it holds then is in none of these.
    """

    round_id: int
    digest: bytes
    lineage: Lineage
    base: tuple[str, ...]
    parameters: Vector
    part: Part | None
    carry: Vector | None
    kept_back: Vector | None

    @property
    def catching_up_to(self) -> CatchUp | None: ...

    def attempt(self) -> tuple[int, int]: ...


class Authority(Protocol):
    """Whom a machine obeys: the highest term it has heard, and the agent's peer id."""

    term: int
    agent: str


class Ledger(Protocol):
    """The books of an open round. hops: those that were ordered, by whatever key."""

    hops: Mapping[Any, Any]


class Keeper(Protocol):
    """A mobile agent: it keeps a round open, and knows who still counts in it. authority: (term, peer id)."""

    term: int
    ledger: Ledger | None
    phase: Enum
    waiting_for: str

    def authority(self) -> tuple[int, str]: ...

    def attempt(self) -> tuple[int, int]: ...

    def live_members(self) -> Collection[Contributor]: ...

    def is_settled(self) -> bool: ...


class Office(Protocol):
    """A machine that may lead. agent: as long as it does."""

    agent: Keeper | None


class _NoOffice:
    """Of a machine that never leads."""

    agent = None


@dataclass
class Disk:
    """What one device has written: its last models, the oldest first, its ballot, and who is in the mesh.

    roster: None if it has heard no more than was known when the mesh began. full_until_s: till then no model is saved.
    """

    models: list[SaveModel] = field(default_factory=list)
    ballot: Ballot | None = None
    roster: tuple[AnyStatement, ...] | None = None
    full_until_s: float = 0.0

    def save(self, effect: SaveModel, now: float) -> None:
        if now >= self.full_until_s:
            self.models.append(effect)
            del self.models[:-_SAVES_KEPT]


@dataclass(eq=False)
class Node:
    """One start of one process. theta: weight of its deltas. train_s: virtual seconds of local training.

    offset_s: how far its clock is ahead of the mesh's. backlog: what came while it was suspended.
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
