"""A trainer's part in one round: what it holds, gave away, decided and staged. Dropped as a whole at its end.

`Broadcast` is the device's place in the broadcast: the order it follows, the parent it asks, the result it has staged.
An order with owners has no tree: the result comes about in segments (exchange.py), and is staged likewise. Staged is
not applied: the result counts once a majority has staged it under one order (RoundClosed). Until then a later order may
replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from mdl.bounds import MAX_HOPS, MAX_MEMBERS
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.exchange import GappedResult, SegmentExchange
from mdl.peers.roles.trainer.model_state import TrainedWork
from mdl.protocol.delta import Contributor, PartialSum, digest_of_result
from mdl.protocol.grid import Grid, Vector
from mdl.protocol.machine import HeldAs, RecallDelta, Send
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    GlobalMessage,
    GlobalTaken,
    GlobalWanted,
    HopOrdered,
    exchanging,
)
from mdl.protocol.segments import tree_children, tree_parent
from mdl.protocol.vector_work import DeltaHashed, HashDelta
from mdl.protocol.vocabulary import Activity, Holding, HopDecision, Incoming, Staged

# Three asks of a device that waits: a child that was not heard for so long is dead, or has the result.
PATIENCE_S = 1.5
# A child that takes twice as long as its link says does not hold up the others: its link is not what it was.
_TURN = 2.0
# Links are measured to some ten percent: copies that fill so much of an uplink fill it.
_FULL = 0.8
# A child with a link slower than this share of its parent's is fed at once: it takes long, and little of the uplink.
_SLOW = 0.5


@dataclass
class Broadcast:
    """See the module. parent: the device that the result is fetched from; None for the root.

    made: the mean that this device has itself, merged by hops or segments, if it may be the result. Its digest is being
    computed, and nothing is asked for meanwhile.
    asked: child -> time and content of its last request; fed: child -> start of its turn; taken: the children that have
    the result.
    exchange: the segments of an order with owners; None before and after.
    gapped: the part of the result that an exchange has left, with gaps for the parent to fill; None: nothing.
    """

    order: BroadcastOrdered | None = None
    parent: Contributor | None = None
    made: PartialSum | None = None
    staged: PartialSum | None = None
    digest: bytes = b""
    asked: dict[Contributor, tuple[float, GlobalWanted]] = field(default_factory=dict)
    fed: dict[Contributor, float] = field(default_factory=dict)
    taken: set[Contributor] = field(default_factory=set)
    exchange: SegmentExchange | None = None
    gapped: GappedResult | None = None
    _me: int = 0
    _ready_at: float = 0.0
    _ballot: tuple[int, int] = (0, 0)
    _named_under: tuple[int, int] = (0, 0)
    _is_on_its_way: bool = False

    @property
    def has_result(self) -> bool:
        """True once it takes part in no hop: it has staged the result, or waits for the digest of what may be it."""
        return self.staged is not None or self.made is not None

    def is_outdated(self, order: BroadcastOrdered) -> bool:
        return self.order is not None and _ballot_of(order) < _ballot_of(self.order)

    def follow(self, order: BroadcastOrdered, me: Contributor, hold: PartialSum | None, now: float) -> bool:
        """Take the place that the order gives; return True if the parent is to be asked now. hold: the mean it has."""
        if self.order != order:
            self.gapped = self._keep(order)
            self._is_on_its_way |= self.exchange is not None
            if not self._goes_on(order):
                self.exchange = None
            self.order, self._me, self._ready_at = order, order.order.index(me), now
            if self.made and not (order.digest and self._is_of(self.made)):
                self.made = None
        if self.staged and (self._ballot == _ballot_of(order) or self._is_result(self.staged, self.digest)):
            self._ballot = _ballot_of(order)
            return False
        if self.made:
            return False
        self.staged, self.digest = None, b""  # the result of an order that has been replaced
        self._is_on_its_way |= not self.fed.keys() <= self.taken
        self.fed.clear()
        self.taken.clear()
        if hold and self._is_of(hold) and self._may_be_result():
            self.made, self._named_under, self.parent = hold, (0, 0), None
            return False
        return self._find_parent()

    def name(self, made: PartialSum | None) -> list[HashDelta]:
        """Ask for the digest of what may be the result, once: until it is there, nobody hears of it."""
        if self.order is None or made is None or (made is self.made and self._named_under != (0, 0)):
            return []
        self.made, self._named_under = made, _ballot_of(self.order)
        is_unchecked = self.gapped or (self.exchange and self.exchange.is_unchecked)
        checksum = self.order.checksum if is_unchecked else None  # else each sum in it was checked as it came
        return [HashDelta(self.order.round_id, *self._named_under, made.values, checksum)]

    def take_name(self, named: DeltaHashed, now: float) -> bool:
        """Stage the named mean if it is the result. Return True if the parent is to be asked now."""
        order, made = self.order, self.made
        if order is None or made is None or (named.term, named.version) != self._named_under:
            return False
        self.made, digest = None, digest_of_result(named.digest, made)
        if not named.is_altered and (self.exchange or self._is_result(made, digest)):
            self.stage(made, digest, now)
            return False
        if self.exchange:
            self.exchange.refuse()
            return False
        was_gapped, self.gapped = self.gapped, None
        return self._find_parent() or was_gapped is not None

    def ask(self) -> list[Send]:
        """Ask the parent for the result, or for a part of it that is lacking; nobody once it is here."""
        if self.order is None or self.parent is None or self.has_result:
            return []
        round_id = self.order.round_id
        return [Send(self.parent.peer_id, self.gapped.ask(round_id) if self.gapped else GlobalWanted(round_id))]

    def check(self, sender: Contributor, message: GlobalMessage) -> bool:
        """Return True if this is the awaited result. Raises RemoteProtocolError for one that lies about it.

        Before its digest is known, only the parent's word makes it the result.
        """
        if self.order is None or self.has_result or self.order.owns:
            return False  # in segments it comes from their owners, and there is room for one
        if frozenset(message.contributors) != frozenset(self.order.contributors):
            return False  # the result of an order that has been replaced
        if not self.order.digest and sender != self.parent:
            return False
        if not self.order.digest and (message.term, message.version) != _ballot_of(self.order):
            return False  # perhaps another mean of the same contributors, of another attempt or fork
        if message.theta != self.order.theta:
            raise RemoteProtocolError(f"a global delta of theta {message.theta}, not {self.order.theta}")
        return True

    def is_of_order(self, message: GlobalMessage) -> bool:
        """Return True if its sender says that this is what it has staged under the order that this device follows."""
        return self.order is not None and (message.term, message.version) == _ballot_of(self.order)

    def stage(self, result: PartialSum, digest: bytes, now: float) -> None:
        """Keep the global delta without applying it. Raises RemoteProtocolError if it is not the one ordered."""
        assert self.order is not None
        if self.order.digest and digest != self.order.digest:
            raise RemoteProtocolError("a global delta that does not match the digest of its round")
        self.staged, self.digest, self._ballot, self.made = result, digest, _ballot_of(self.order), None
        self._ready_at, self.gapped = now, None

    def confirm(self) -> list[Send]:
        """Tell the parent that this device has the result: the next sibling's turn has come."""
        place = tree_parent(self._me)
        if self.order is None or self.order.owns or self.staged is None or place is None:
            return []
        return [Send(self.order.order[place].peer_id, GlobalTaken(self.order.round_id))]

    def serve(self, child: Contributor, wanted: GlobalWanted, now: float) -> list[Send]:
        """Note a child's request, and feed the children.

        This child gets the result once that is here and its turn has come, and again if it did not arrive.
        """
        if child in self.asked or len(self.asked) < MAX_MEMBERS:
            self.asked[child] = now, wanted
        self.taken.discard(child)
        again = [self._copy(child)] if self.staged and child in self.fed else []
        return again + self.feed(now)

    def note_taken(self, child: Contributor, now: float) -> list[Send]:
        """Note that a child has the result: the next one's turn may have come."""
        if len(self.taken) < MAX_MEMBERS:
            self.taken.add(child)
        return self.feed(now)

    def feed(self, now: float) -> list[Send]:
        """Give the result to the children in turn: to those that may begin now."""
        if self.staged is None:
            return []
        starting = self._starts(now)
        self.fed |= dict.fromkeys(starting, now)
        return [self._copy(child) for child in starting]

    def is_handed_on(self) -> bool:
        """Return True if each device that this one gave any of the result to has confirmed that it is there.

        It stays False if an order was replaced while values were on their way, also by one that goes on without a lost
        device. A device that still follows the old order may take them.
        """
        is_over = not self._is_on_its_way and (self.exchange is None or self.exchange.is_over())
        return is_over and self.fed.keys() <= self.taken

    def report(self) -> Staged | None:
        if self.staged is None:
            return None
        contributors = tuple(sorted(self.staged.contributors))
        return Staged(
            self.digest,
            self.staged.theta,
            contributors,
            *self._ballot,
            self.staged.partial,
            self.staged.room,
        )

    def is_forgetful(self, order: BroadcastOrdered) -> bool:
        """Return True if an order goes on with this device's exchange, and does not know all devices that it lost."""
        known = self.exchange.order.lost if self.exchange else ()
        return self._goes_on(order) and order.lost[: len(known)] != known

    def stays(self, term: int) -> bool:
        """Return True if it stays when an agent of this term opens the round: a vote, or an order of no earlier term.

        Nobody would give that again. An agent of a later term orders the result anew, and all of it is given under that
        order.
        """
        return self.staged is not None or (self.order is not None and self.order.term >= term)

    def _goes_on(self, order: BroadcastOrdered) -> bool:
        """Return True if this order is of the very exchange that this device takes part in."""
        now = self.exchange.order if self.exchange else None
        return now is not None and bool(order.owns) and exchanging(order).is_same(exchanging(now))

    def _keep(self, order: BroadcastOrdered) -> GappedResult | None:
        """Return what an exchange of the same contributors has brought of the result that this order names."""
        exchange, gapped = self.exchange, self.gapped
        if order.owns or not order.digest:
            return None
        has_some = exchange is not None and exchange.result.received_bytes > 0 and not exchange.is_whole
        if exchange and has_some and set(exchange.order.contributors) == set(order.contributors):
            return GappedResult(order.digest, exchange.result.values, exchange.result.gaps())
        return gapped if gapped and gapped.gaps and gapped.digest == order.digest else None

    def _starts(self, now: float) -> list[Contributor]:
        """Return the asking children to feed from now on: as many, in turn, as it takes to fill the uplink."""
        assert self.order is not None
        children = [self.order.order[place] for place in tree_children(self._me, len(self.order.order))]
        strangers = sorted(self.asked.keys() - set(children))  # they follow an order that this device has not heard yet
        starting: list[Contributor] = []
        mine, taken_mb_s = self._link_mb_s(self.order.order[self._me]), 0.0
        for child in children + strangers:
            link_mb_s = self._link_mb_s(child)
            if child in self.taken:
                continue
            if child in self.asked and child not in self.fed:
                is_free = taken_mb_s < _FULL * mine or link_mb_s < _SLOW * mine
                if is_free or not mine:
                    starting.append(child)
            if self._gets_on(child, min(mine, link_mb_s), now):
                taken_mb_s += link_mb_s
        return starting

    def _gets_on(self, child: Contributor, mb_s: float, now: float) -> bool:
        """Return True if the others wait for this child: it asks, or had no time to, and is not too slow."""
        assert self.staged is not None
        asked_at = self.asked[child][0] if child in self.asked else 0.0
        if now - max(asked_at, self._ready_at) >= PATIENCE_S:
            return False
        turn_s = PATIENCE_S + _TURN * self.staged.values.nbytes / 1e6 / mb_s if mb_s else 0.0
        return now - self.fed.get(child, now) < turn_s

    def _link_mb_s(self, peer: Contributor) -> float:
        """Return the agent's figure for a link; 0.0 if unknown: that device neither waits nor is waited for."""
        assert self.order is not None
        links = self.order.link_mb_s
        if len(links) != len(self.order.order) or peer not in self.order.order:
            return 0.0
        link_mb_s = links[self.order.order.index(peer)]
        return link_mb_s if 0.0 < link_mb_s < inf else 0.0

    def _copy(self, child: Contributor) -> Send:
        assert self.order is not None
        assert self.staged is not None
        contributors = tuple(sorted(self.staged.contributors))
        wanted = self.asked[child][1]
        message = GlobalMessage(
            self.order.round_id,
            self.staged.theta,
            contributors,
            *self._ballot,
            self.staged.partial,
            wanted.start,
            wanted.stop,
        )
        values = self.staged.values.view(np.float32)
        return Send(child.peer_id, message, values[wanted.start : wanted.stop] if wanted.stop else values)

    def _find_parent(self) -> bool:
        """Set the parent to ask for the result; return True if it is a new one. In segments nobody has it yet."""
        assert self.order is not None
        place, before = None if self.order.owns else tree_parent(self._me), self.parent
        self.parent = None if place is None else self.order.order[place]
        return self.parent not in (None, before)

    def _may_be_result(self) -> bool:
        """Return True if the mean that this device has itself can be the result of the order."""
        assert self.order is not None
        return bool(self.order.digest) or (self._me == 0 and not self.order.owns)

    def _is_result(self, delta: PartialSum, digest: bytes) -> bool:
        """Return True if this is the one result that the order names: by its digest, or as that of the root.

        An order with owners names none: it is what they make under it.
        """
        assert self.order is not None
        is_named = self.order.digest in (b"", digest) and self._may_be_result()
        return is_named and self._is_of(delta)

    def _is_of(self, delta: PartialSum) -> bool:
        """Return True if it has the same contributors as the result, on the same grid."""
        assert self.order is not None
        return delta.contributors == frozenset(self.order.contributors) and delta.room == self.order.room


def _ballot_of(order: BroadcastOrdered) -> tuple[int, int]:
    return order.term, order.version


# Limit of hops to one receiver that did not count. An agent tries two devices twice, and may be succeeded.
MOST_IN_VAIN = 4

# Looked up once: see peers/roles/agent/conductor.py.
_TRAINING, _HOLDING, _RECEIVING = Activity.TRAINING, Activity.HOLDING, Activity.RECEIVING
_SENT, _STAGED = Activity.SENT, Activity.STAGED


@dataclass
class RoundState:
    """State of one device in one round. hold: its partial sum, kept after it has been given away.

    room: of the round's grid. grid: that grid, once the own delta is on it. rest: the part of the own delta that its
    share of the sum has cut off, or coding rounded off; None: nothing. checksums: of the own delta's pieces; (): not
    known. is_counting: they are being counted; until then nobody hears of the own delta.

    attempt: term of the agent that first opened it; the same round opened as another attempt begins afresh.
    given: the hop that took the partial sum, and its receiver. fresh: work trained for it, without its values where the
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
    rest: Vector | None = None
    checksums: tuple[int, ...] = ()
    is_counting: bool = False
    hold: PartialSum | None = None
    fresh: TrainedWork | None = None
    works: tuple[TrainedWork, ...] = ()
    is_empty: bool = False
    trained_from: Vector | None = None
    is_spent: bool = False
    is_recalling: bool = False
    given: tuple[int, Contributor] | None = None
    released: set[int] = field(default_factory=set)
    in_vain: dict[Contributor, int] = field(default_factory=dict)
    decisions: dict[int, HopDecision] = field(default_factory=dict)
    incoming: HopOrdered | None = None
    incoming_since: float = 0.0
    is_merging: bool = False
    theirs: frozenset[Contributor] = frozenset()
    broadcast: Broadcast = field(default_factory=Broadcast)
    # The last report, after the contributors and the gift that it is about. It names no delta: that would stay in
    # memory.
    _told: tuple[frozenset[Contributor] | None, object, Holding | None] = (None, None, None)

    def activity(self) -> Activity:
        if self.broadcast.staged:
            return _STAGED
        if not self.is_ready:
            return _TRAINING
        if self.incoming:
            return _RECEIVING
        return _SENT if self.given else _HOLDING

    @property
    def is_ready(self) -> bool:
        """True once it holds a partial sum that may be given: its own delta has its checksums."""
        return self.hold is not None and not self.is_counting

    def is_member(self, peer: Contributor, round_id: int) -> bool:
        """Return True if a message of this peer and round belongs here.

        It does not if the peer was started anew. Nor does it if the peer still follows an agent that this device has
        left, and is in no round of the agent that this device obeys.
        """
        return round_id == self.round_id and peer in self.announced_to

    @property
    def free_hold(self) -> PartialSum | None:
        """The partial sum that this device answers for; None once it has been given away."""
        return None if self.given else self.hold

    def own_hold(self, me: Contributor) -> PartialSum | None:
        """Return this device's own delta, while nothing is merged into it and no result has taken its place."""
        hold = self.hold
        return hold if hold and hold.contributors == frozenset([me]) and not self.lacks_own else None

    @property
    def lacks_own(self) -> bool:
        """True if a result has the own delta's place by now, or may have it at any moment."""
        return self.is_spent or (self.broadcast.exchange is not None and self.broadcast.exchange.is_in_place)

    @property
    def may_lend(self) -> bool:
        """True if a result may take the own delta's place: it was not given away, and can be had again."""
        return self.trained_from is not None and self.is_ready and not (self.given or self.released)

    def recall(self) -> list[RecallDelta]:
        """Ask for the own delta again, once."""
        if self.is_recalling or self.trained_from is None or (own := self.hold) is None:
            return []
        self.is_recalling = True
        held_as = HeldAs(own.theta, min(own.contributors), self.room)
        return [RecallDelta(self.round_id, self.trained_from, held_as=held_as)]

    def is_receiving(self, hop_id: int) -> bool:
        return self.incoming is not None and self.incoming.hop_id == hop_id

    def cannot_receive(self, order: HopOrdered) -> str:
        """Return the reason why this device cannot be the receiver of a hop now; empty if it can."""
        if order.sender not in self.members:
            return "the sender is no member of this round"
        if self.broadcast.has_result:
            return "it has the round's result already"
        if not self.is_ready:
            return "nothing to merge with yet"
        if self.given:
            return "its partial sum has been given away"
        if self.incoming:
            return "one partner at a time"
        return ""

    def give(self, hop_id: int, receiver: Contributor) -> bool:
        """Commit the partial sum to this hop. Return False if it is not free, or the hop was released."""
        if not self.is_ready or hop_id in self.released:
            return False
        if self.incoming or self.broadcast.has_result:
            return False
        if self.in_vain.get(receiver, 0) >= MOST_IN_VAIN:
            return False  # this receiver asks for hops that nobody has ordered
        self.given = self.given or (hop_id, receiver)
        return self.given == (hop_id, receiver)

    def release(self, hop_id: int) -> None:
        """Hold again after a hop that did not count, and never serve it. Raises RemoteProtocolError for too many."""
        if len(self.released) >= MAX_HOPS:
            raise RemoteProtocolError(f"more than {MAX_HOPS} hops of one round are released")
        self.released.add(hop_id)
        if self.given and self.given[0] == hop_id:
            (_, receiver), self.given = self.given, None
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
        return Incoming(order.hop_id, order.sender) if order else None

    def report_holding(self) -> Holding | None:
        """Return theta, contributors and hop of what it holds, None: nothing. An answer is reused while it is right."""
        if self.hold is None or self.is_counting:
            return None
        contributors, given, told = self._told
        if self.hold.contributors is not contributors or given is not self.given:
            hop_id, receiver = self.given or (None, None)
            told = Holding(self.hold.theta, tuple(sorted(self.hold.contributors)), hop_id, receiver)
            self._told = self.hold.contributors, self.given, told
        return told
