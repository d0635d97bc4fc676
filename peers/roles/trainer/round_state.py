"""A trainer's part in one round: what it holds, gave away, decided and staged. Dropped as a whole at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from mdl.bounds import MAX_HOPS
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.broadcast import Spread
from mdl.peers.roles.trainer.works import Work
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Grid, Vector
from mdl.protocol.hop_messages import HopOrdered
from mdl.protocol.machine import HeldAs, RecallDelta
from mdl.protocol.vocabulary import Activity, Holding, HopDecision, Incoming

HopKey = tuple[int, int]  # segment, hop

# Limit of hops to one receiver that did not count. An agent tries two devices twice, and may be succeeded.
MOST_IN_VAIN = 4

# Looked up once: see peers/roles/agent/phase.py.
_TRAINING, _HOLDING, _RECEIVING = Activity.TRAINING, Activity.HOLDING, Activity.RECEIVING
_SENT, _STAGED = Activity.SENT, Activity.STAGED


@dataclass
class Part:
    """State of one device in one round. holds: segment -> partial sum, kept after it has been given away.

    room: of the round's grid. grid: that grid, once the own delta is on it. clipped: the part of the own delta that its
    share of the sum has cut off; None: nothing. checksums: of the own delta's pieces; (): not known.

    attempt: term of the agent that first opened it; the same round opened as another attempt begins afresh.
    given: segment -> the hop that took it, and its receiver. fresh: work trained for it, without its values where the
    trained model still has them; works: earlier work in the own delta. announced: the last term under which it was
    announced; announced_to: the members then, since others are in no round of that agent. is_empty: nothing was trained
    for it, since that comes with earlier work. trained_from: w, if the trained model can give this very own delta
    again. is_spent: a result has taken the own delta's place, and it is not here again yet; is_recalling: it is asked
    for. is_merging: the delta that came by `incoming` is being merged; theirs: its contributors. in_vain: receiver ->
    number of hops to it that did not count.
    """

    round_id: int
    attempt: int
    members: frozenset[Contributor]
    heard_at: float = 0.0
    announced: int = 0
    announced_to: frozenset[Contributor] = frozenset()
    room: int = 0
    grid: Grid | None = None
    clipped: Vector | None = None
    checksums: tuple[int, ...] = ()
    holds: dict[int, PartialSum] = field(default_factory=dict)
    fresh: Work | None = None
    works: tuple[Work, ...] = ()
    is_empty: bool = False
    trained_from: Vector | None = None
    is_spent: bool = False
    is_recalling: bool = False
    given: dict[int, tuple[int, Contributor]] = field(default_factory=dict)
    released: set[HopKey] = field(default_factory=set)
    in_vain: dict[Contributor, int] = field(default_factory=dict)
    decisions: dict[HopKey, HopDecision] = field(default_factory=dict)
    incoming: HopOrdered | None = None
    incoming_since: float = 0.0
    is_merging: bool = False
    theirs: frozenset[Contributor] = frozenset()
    spread: Spread = field(default_factory=Spread)
    # The last report, after the contributors and the gift that it is about. It names no delta: that would stay in
    # memory.
    _told: tuple[frozenset[Contributor] | None, object, tuple[Holding, ...]] = (None, None, ())

    def activity(self) -> Activity:
        if self.spread.staged:
            return _STAGED
        if not self.holds:
            return _TRAINING
        if self.incoming:
            return _RECEIVING
        return _SENT if len(self.given) == len(self.holds) else _HOLDING

    def is_member(self, peer: Contributor, round_id: int) -> bool:
        """Return True if a message of this peer and round belongs here.

        It does not if the peer was started anew. Nor does it if the peer still follows an agent that this device has
        left, and is in no round of the agent that this device obeys.
        """
        return round_id == self.round_id and peer in self.announced_to

    def free_holds(self) -> dict[int, PartialSum]:
        return {segment: hold for segment, hold in self.holds.items() if segment not in self.given}

    def own_hold(self, me: Contributor) -> PartialSum | None:
        """Return this device's own delta, while nothing is merged into it and no result has taken its place."""
        hold = self.holds.get(0)
        return hold if hold and hold.contributors == frozenset([me]) and not self.lacks_own else None

    @property
    def lacks_own(self) -> bool:
        """True if a result has the own delta's place by now, or may have it at any moment."""
        return self.is_spent or (self.spread.exchange is not None and self.spread.exchange.is_in_place)

    @property
    def may_lend(self) -> bool:
        """True if a result may take the own delta's place: it was not given away, and can be had again."""
        return self.trained_from is not None and not (self.given or self.released)

    def recall(self) -> list[RecallDelta]:
        """Ask for the own delta again, once."""
        if self.is_recalling or self.trained_from is None:
            return []
        self.is_recalling = True
        own = self.holds[0]
        held_as = HeldAs(own.theta, min(own.contributors), self.room)
        return [RecallDelta(self.round_id, self.trained_from, held_as=held_as)]

    def is_receiving(self, segment: int, hop_id: int) -> bool:
        return self.incoming is not None and (self.incoming.segment, self.incoming.hop_id) == (segment, hop_id)

    def cannot_receive(self, order: HopOrdered) -> str:
        """Return the reason why this device cannot be the receiver of a hop now; empty if it can."""
        if order.sender not in self.members:
            return "the sender is no member of this round"
        if self.spread.has_result:
            return "it has the round's result already"
        if order.segment not in self.holds:
            return "nothing to merge with yet"
        if order.segment in self.given:
            return "its partial sum has been given away"
        if self.incoming:
            return "one partner at a time"
        return ""

    def give(self, segment: int, hop_id: int, receiver: Contributor) -> bool:
        """Commit the partial sum to this hop. Return False if it is not free, or the hop was released."""
        if (segment, hop_id) in self.released or segment not in self.holds or self.incoming or self.spread.has_result:
            return False
        if self.in_vain.get(receiver, 0) >= MOST_IN_VAIN:
            return False  # this receiver asks for hops that nobody has ordered
        return self.given.setdefault(segment, (hop_id, receiver)) == (hop_id, receiver)

    def release(self, segment: int, hop_id: int) -> None:
        """Hold again after a hop that did not count, and never serve it. Raises RemoteProtocolError for too many."""
        if len(self.released) >= MAX_HOPS:
            raise RemoteProtocolError(f"more than {MAX_HOPS} hops of one round are released")
        self.released.add((segment, hop_id))
        if segment in self.given and self.given[segment][0] == hop_id:
            receiver = self.given.pop(segment)[1]
            self.in_vain[receiver] = self.in_vain.get(receiver, 0) + 1

    def check_incoming(self, mine: PartialSum, theirs: PartialSum) -> None:
        """Raise RemoteProtocolError if merging would break an invariant."""
        if not (isfinite(theirs.theta) and theirs.theta > 0 and theirs.contributors):
            raise RemoteProtocolError(f"theta {theirs.theta} of {len(theirs.contributors)} contributors")
        if strangers := theirs.contributors - self.members:
            raise RemoteProtocolError(f"{min(strangers).peer_id} is no member of this round")
        if shared := mine.contributors & theirs.contributors:
            raise RemoteProtocolError(f"{min(shared).peer_id} would count twice")

    def report_incoming(self) -> Incoming | None:
        order = self.incoming
        return Incoming(order.segment, order.hop_id, order.sender) if order else None

    def report_holdings(self) -> tuple[Holding, ...]:
        """Return each segment's holding: theta, contributors, hop. The last answer is reused while it is right."""
        if not self.holds:
            return ()
        first = self.holds.get(0)
        contributors, given, told = self._told
        if len(self.holds) == 1 and first and first.contributors is contributors and given is self.given.get(0):
            return told
        holdings = []
        for segment, hold in sorted(self.holds.items()):
            hop_id, receiver = self.given.get(segment, (None, None))
            holdings.append(Holding(segment, hold.theta, tuple(sorted(hold.contributors)), hop_id, receiver))
        self._told = first.contributors if first else None, self.given.get(0), tuple(holdings)
        return self._told[2]
