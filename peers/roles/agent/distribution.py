"""The result of a round on its way to everybody: its givers, its holders, and the devices that cannot get it. Pure.

The broadcast tree is in the order of resources (3.2.3), and goes around pairs that cannot reach each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from mdl.defence.limits import ALTERED_RESULT, Limits
from mdl.peers.roles.agent.aggregation import OpenRound
from mdl.peers.roles.membership.majority import has_quorum
from mdl.peers.roles.membership.members import (
    Members,
    Position,
    TrainerSeen,
    digests_here,
    newest_ballot,
    poverty,
    voters,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import BroadcastOrdered, Lost, exchanging
from mdl.protocol.segments import tree_children, tree_parent
from mdl.protocol.vocabulary import Contributors, Holding, Partials, Staged
from mdl.scheduler.policies.segment_plan import SegmentPlan

logger = logging.getLogger(__name__)


def order_broadcast(
    recipients: list[Contributor],
    sources: list[Contributor],
    members: Members,
    now: float = 0.0,
) -> tuple[Contributor, ...]:
    """Return the order: devices with the result first; the richest of the rest feed others, sources feed the poorest.

    A slow link takes as long as it takes: it must begin at once, and hold up nobody else. Nobody is fed by a device
    that lately could not reach it, if there is another way.
    """
    rest = [peer for peer in recipients if peer not in sources]
    rest.sort(key=lambda peer: poverty(members.get(peer)))
    places = range(len(sources), len(sources) + len(rest))
    leaves = sorted((place for place in places if not tree_children(place, places.stop)), key=_depth, reverse=True)
    at = dict(zip([place for place in places if place not in leaves] + leaves, rest, strict=True))
    order = tuple(sources) + tuple(at[place] for place in places)
    return around_cuts(order, set(sources), range(len(order)), members, now)


def around_cuts(
    order: tuple[Contributor, ...], have: Collection[Contributor], moves: Sequence[int], members: Members, now: float
) -> tuple[Contributor, ...]:
    """Return the order, with places exchanged as long as fewer then have a parent that cannot reach them.

    Two that have the result change places, or two that lack it. moves: the places that may change. A device that still
    has such a parent comes last, since its siblings wait a while for a device that does not ask.
    """

    def cost(order: tuple[Contributor, ...]) -> tuple[int, int]:
        cuts = _cut_places(order, have, members, now)
        return len(cuts), -sum(cuts)

    while cuts := _cut_places(order, have, members, now):
        ends = {end for place in cuts for end in (place, tree_parent(place) or 0)} & set(moves)
        swaps = [
            _exchange(order, one, other)
            for one in sorted(ends)
            for other in moves
            if (order[one] in have) == (order[other] in have)
        ]
        best = min(swaps, key=cost, default=order)
        if cost(best) >= cost(order):
            break
        order = best
    return order


def _cut_places(
    order: tuple[Contributor, ...], have: Collection[Contributor], members: Members, now: float
) -> list[int]:
    """Return the places that lack the result and have a parent in the tree that lately could not reach them."""
    cuts = []
    for pair in members.reach.apart(now):
        if pair[0] in order and pair[1] in order:
            upper, lower = sorted(map(order.index, pair))
            if tree_parent(lower) == upper and order[lower] not in have:
                cuts.append(lower)
    return cuts


def _exchange(order: tuple[Contributor, ...], one: int, other: int) -> tuple[Contributor, ...]:
    changed = list(order)
    changed[one], changed[other] = order[other], order[one]
    return tuple(changed)


def _depth(place: int) -> int:
    """Return the number of transfers from the binomial tree's root to a place."""
    return place.bit_count()


class Distribution:
    """See the module. result: the one to be had, None while there is none; digest: its name, b"" until one is told.

    left_behind: devices that hear the agent, but that the result does not reach. later: devices without work in it that
    get the model once the round is closed: meanwhile the links are for the others. last: the last order.
    plan: the segments that it comes about in, as long as it does; None: a device has it. partial: the devices that are
    in some segments only of the result that stands.

    me: the agent's peer id. office_term: the members obey the agent since this term.
    """

    def __init__(self, me: str, office_term: int, round_: OpenRound) -> None:
        self.result: Holding | Staged | None = None
        self.digest = b""
        self.left_behind: set[Contributor] = set()
        self.later: frozenset[Contributor] = frozenset()
        self.last: BroadcastOrdered | None = None
        self.plan: SegmentPlan | None = None
        self.partial: Partials = ()
        self._me = me
        self._office_term = office_term
        self._ledger = round_.ledger
        self._opened = opened = round_.opened
        self._judging = round_.judging
        self._members = round_.members
        self._stall_s = round_.settings.stall_s
        self._is_for_all = round_.settings.limit.is_for_all
        self._position: Position = (opened.lineage, round_.ledger.round_id - 1, opened.digest)
        self._version = 0
        self._began = (0, 0)
        self._thetas: dict[Contributor, float] = {}
        self._lost: tuple[Lost, ...] = ()
        self._since = 0  # the version from which on orders name this result
        self._waited_since: dict[Contributor, tuple[float, tuple[object, ...]]] = {}
        self._stalled_once: set[Contributor] = set()
        self._dropped: set[Contributor] = set()
        self._moved: tuple[float, tuple[object, ...]] = (0.0, ())

    @property
    def is_exchanging(self) -> bool:
        """True while the result comes about in segments, and not everybody has it."""
        return self.plan is not None

    def begin(
        self,
        result: Holding | Staged,
        now: float,
        plan: SegmentPlan | None = None,
        going: BroadcastOrdered | None = None,
    ) -> None:
        """Bring this result to everybody. plan: nobody has it yet, it comes about so.

        going: an earlier agent's order, which those that are here go on with; `result` has those that are left.
        """
        self.result, self.digest, self._lost = result, b"", ()
        self.later = frozenset() if self._is_for_all else self._find_later()
        if isinstance(result, Staged):
            self.digest = result.digest
        self._since, self._moved = self._version + 1, (now, ())
        if plan is None:
            self.order(now)
            return
        self.plan, self._began = plan, (self._ledger.term, self._version + 1)
        held = {peer: self._ledger.holding(peer) for peer in result.contributors}
        self._thetas = {peer: holding.theta for peer, holding in held.items() if holding}
        if going:
            self._go_on_from(going, now)
            return
        others = [m.contributor for m in self.recipients() if m.contributor not in result.contributors]
        self._say((*result.contributors, *sorted(others)), plan)

    def _go_on_from(self, going: BroadcastOrdered, now: float) -> None:
        """Go on with the exchange of an earlier agent, without the devices that were lost with it."""
        assert self.result is not None
        mark = exchanging(going)
        self.last, self._lost, self._began = going, going.lost, (mark.term, mark.version)
        gone = [peer for peer in going.contributors if peer not in self.result.contributors]
        left = going.theta - sum(self._thetas.values())
        self._thetas |= dict.fromkeys(gone, left / max(1, len(gone)))
        self.result = Holding(going.theta, going.contributors)
        self.go_on_without(gone, now)

    def lost_contributors(self) -> list[Contributor]:
        """Return the segments' contributors that were lost since the last order."""
        assert self.result is not None
        here = {member.contributor for member in self.recipients()}
        return [peer for peer in self.result.contributors if peer not in here]

    def go_on_without(self, gone: list[Contributor], now: float) -> bool:
        """Go on without these devices; return False if no owner of segments is left.

        Pieces that they gave stay where they are merged, and the others take over the segments that they owned.
        """
        assert self.result is not None
        assert self.last is not None
        assert self.plan is not None
        lost = list(self._lost)
        places = [place for place in range(len(self.last.order) + len(lost)) if place not in {e.place for e in lost}]
        for peer in gone:
            place = places[self.last.order.index(peer)]
            lost.append(Lost(peer, self._thetas[peer], place, self.plan.owns.get(peer.peer_id, 0)))
        order = tuple(peer for peer in self.last.order if peer not in gone)
        contributors = tuple(peer for peer in self.result.contributors if peer not in gone)
        if not any(self.plan.owns.get(peer.peer_id, 0) for peer in contributors):
            return False
        self._lost = tuple(lost)
        self.result = Holding(sum(self._thetas[peer] for peer in contributors), contributors)
        self._since, self._moved = self._version + 1, (now, ())
        self._say(order, self.plan)
        return True

    def is_unproven(self) -> bool:
        """Return True if a lost contributor has not told all its checksums: a sum with its pieces may be altered."""
        if not self._lost or self.last is None:
            return False
        lost, mark = {each.contributor.peer_id for each in self._lost}, exchanging(self.last)
        following = [member.report for member in self.recipients() if member.report.exchange == mark]
        return any(not lost.isdisjoint(report.lacking) for report in following)

    def is_at_a_standstill(self, now: float) -> bool:
        """Return True if for too long no device has told of more values, or of the result."""
        assert self.last is not None
        moves = tuple(
            (member.contributor, member.report.staged, member.report.transfer)
            for member in self.recipients()
            if member.contributor in self.last.order
        )
        if moves != self._moved[1]:
            self._moved = now, moves
        return now - self._moved[0] >= self._stall_s

    def find_apart(self) -> list[tuple[Contributor, Contributor]]:
        """Return each contributor of which an owner lacks pieces, with that owner."""
        recipients = self.recipients()
        here = {member.peer_id: member.contributor for member in recipients}
        return [
            (here[name], member.contributor)
            for member in recipients
            for name in member.report.lacking
            if name in here and name != member.peer_id
        ]

    def lose(self, without: Iterable[Contributor]) -> None:
        """Drop the result: nobody has it any more, or these alone do, and the others go on without them.

        They stay behind in this round: else the results of two of them could be tried in turn, without end.
        """
        self.result = self.last = self.plan = None
        self._waited_since.clear()
        self._stalled_once.clear()
        self._dropped.update(without)
        self.left_behind = set(self._dropped)
        self.later = frozenset()

    def wait_for_all(self) -> None:
        """Bring the result to everybody after all: the others are too few to decide."""
        self.later = frozenset()

    def _find_later(self) -> frozenset[Contributor]:
        """Return the devices without work in the result that would hold up the others: their links are slower.

        The decision does not need them, even if it loses another one. Devices that train nothing, or have the result,
        are not among them.
        """
        assert self.result is not None
        base, contributors = self._opened.base, self.result.contributors
        giving = [member for member in self.recipients() if member.contributor in contributors]
        slowest_mb_s = min((member.device.link_mb_s or 0.0 for member in giving), default=0.0)
        others = [
            member
            for member in self.recipients()
            if member.contributor not in contributors and not member.report.away and not self.has(member)
            if not member.device.link_mb_s or member.device.link_mb_s < slowest_mb_s
        ]
        self.later = frozenset(member.contributor for member in others)
        deciding = [member for member in self.recipients() if member.peer_id in base]
        fastest = sorted(others, key=lambda member: (-(member.device.link_mb_s or 0.0), member.peer_id))
        for member in fastest:
            if has_quorum(base, voters(deciding[1:])):
                break
            if member.peer_id in base:
                deciding.append(member)
                self.later -= {member.contributor}
        return self.later

    def order_late(self, now: float) -> tuple[BroadcastOrdered, list[TrainerSeen]]:
        """Return the order as it is to be now, and the members that have not followed it yet."""
        recipients, order = self.recipients(), self.last
        assert order is not None
        if len(order.order) == 1 and not order.digest:
            naming = [member for member in recipients if member.contributor == order.order[0]]
            if naming and not self.has_staged(naming[0]):
                return order, naming
        if self.plan is not None:
            late = [
                member for member in recipients if member.contributor in order.order and not self.has_staged(member)
            ]
            if late and not self._is_contradicted(recipients):
                return order, late
        if self._is_contradicted(recipients):
            order = self.order(now)
        if order.term != self._ledger.term or {member.contributor for member in recipients} != set(order.order):
            order = self.order(now)
        late = [member for member in recipients if not self.has_staged(member)]
        if late and self._members.reach.apart(now):
            have = {member.contributor for member in recipients if self.has(member)}
            places = [place for place, peer in enumerate(order.order) if peer in have]
            around = around_cuts(order.order, have, places, self._members, now)
            if around != order.order:
                order = self.order_so(around)
        return order, late

    def order(self, now: float) -> BroadcastOrdered:
        """Order a new tree: its root has the result; the richest of the rest are the inner nodes (3.2.3)."""
        self.plan = None
        self._name_the_result()
        sources = self.sources()
        turn = len(self._stalled_once) % max(1, len(sources))  # a device that cannot reach its parent gets another one
        sources = sources[turn:] + sources[:turn]
        recipients = [member.contributor for member in self.recipients()]
        return self.order_so(order_broadcast(recipients, sources, self._members, now))

    def order_so(self, order: tuple[Contributor, ...]) -> BroadcastOrdered:
        self._name_the_result()
        return self._say(order)

    def _say(self, order: tuple[Contributor, ...], plan: SegmentPlan | None = None) -> BroadcastOrdered:
        assert self.result is not None
        self._version += 1
        checksum = None
        is_whole = not (self._lost or (isinstance(self.result, Staged) and self.result.partial))
        if is_whole:
            checksum = self._ledger.checksum(self.result.contributors, self._judging.is_on)
        if checksum is None and not (plan or self.digest):
            order = order[:1]  # it names the result first: nobody could check what devices hand on
        self.last = BroadcastOrdered(
            self._ledger.term,
            self._ledger.round_id,
            self._opened.digest,
            self._version,
            order,
            self.result.theta,
            self.result.contributors,
            self.digest,
            tuple(member.device.link_mb_s or 0.0 if (member := self._members.get(peer)) else 0.0 for peer in order),
            self._opened.lineage,
            tuple(plan.owns.get(peer.peer_id, 0) for peer in order) if plan else (),
            plan.values if plan else 0,
            *(self._began if plan else (0, 0)),
            self._lost if plan else (),
            self._judging.limits if plan else Limits(),
            self._told_thetas() if plan else (),
            self.result.room if isinstance(self.result, Staged) else self._ledger.room,
            checksum,
        )
        return self.last

    def _told_thetas(self) -> tuple[float, ...]:
        """Return the weight of each contributor's own delta, in their order; () if one is not known."""
        assert self.result is not None
        thetas = [self._thetas.get(peer) for peer in self.result.contributors]
        return tuple(theta for theta in thetas if theta) if all(thetas) else ()

    def _name_the_result(self) -> None:
        """Name the result by its digest, in the first order after a device has staged it and in all that follow.

        Orders before named the result that their roots have, or that came about in segments. If there are several, the
        root's is named, or in segments the one that most have. A root that lies could lie to all alike, and a device
        that it feeds may hand a lie on to many.
        """
        staged, root = self._staged(), self._find_root()
        if staged and not self.digest:
            order = self.last.order if self.last else ()
            digest = staged[root] if root in staged else choose_digest(staged, self._opened.base, order)
            self.digest = digest
            if len(set(staged.values())) > 1 or self._version > self._since:
                self._since = self._version + 1

    def is_refused(self) -> bool:
        """Return True if the devices that are to get the result from its root, at least two, refuse what it gives."""
        root = self._find_root()
        if root is None or self.last is None or root not in self._staged():
            return False
        order, here = self.last.order, {member.contributor: member for member in self.recipients()}
        fed = [here[order[place]] for place in tree_children(0, len(order)) if order[place] in here]
        # Its part of an exchange may have been refused, and its result be as it should.
        return len(fed) > 1 and all(
            not self.has(member) and self.refuses(member, root, ALTERED_RESULT) for member in fed
        )

    def refuses(self, member: TrainerSeen, giver: Contributor, reason: str = "") -> bool:
        """Return True if this member refuses, in this round, what that device gives, for a reason that begins so."""
        refused = giver.peer_id, self._ledger.round_id
        accused = (each for each in member.report.accused if (each.peer_id, each.round_id) == refused)
        return any(each.reason.startswith(reason) for each in accused)

    def _staged(self) -> dict[Contributor, bytes]:
        """Return holder -> digest of its staged result, for the recipients that have the result."""
        having = [member for member in self.recipients() if self.has(member)]
        return {member.contributor: member.report.staged.digest for member in having if member.report.staged}

    def _is_contradicted(self, recipients: list[TrainerSeen]) -> bool:
        """Return True if several results are staged, and no report that is still to come changes which one it is."""
        staged = self._staged()
        counts = Counter(staged.values())
        if len(counts) <= 1:
            return False
        if len(staged) == len(recipients) or self._find_root() in staged:
            return True
        return 2 * max(counts.values()) > len(recipients) and self._find_root() is None

    def _find_root(self) -> Contributor | None:
        """Return the device that all have the result from; None in segments."""
        return self.last.order[0] if self.last and not self.last.owns else None

    def sources(self) -> list[Contributor]:
        """Return the devices that can give the result: those that have staged it, or before that those that hold it."""
        assert self.result is not None
        recipients = self.recipients()
        if have := [member.contributor for member in recipients if self.has(member)]:
            return have
        contributors = set(self.result.contributors)
        return [
            member.contributor
            for member in recipients
            if (holding := self._ledger.holding(member.contributor)) and set(holding.contributors) == contributors
        ]

    def leave_the_stalled_behind(self, recipients: list[TrainerSeen], now: float) -> bool:
        """Give a device that hears us, but cannot reach its parent, another one; then close the round without it.

        A device that waits for its parent to have the result, or for a sibling to get it, waits rightly.
        """
        if self.is_exchanging:
            return False
        has_changed = False
        by_id = {member.contributor: member for member in recipients}
        for member in recipients:
            peer = member.contributor
            moves = () if self.has(member) else self._moves_above(peer, by_id)
            since, before = self._waited_since.get(peer, (now, None))
            if not moves:
                self._waited_since.pop(peer, None)
            elif moves != before:
                self._waited_since[peer] = now, moves
            elif now - since >= self._stall_s:
                del self._waited_since[peer]
                if parent := self._parent_of(member):
                    self._members.reach.fail(parent.contributor, peer, now)
                if peer in self._stalled_once and len(recipients) > 1:
                    self.left_behind.add(peer)
                self._stalled_once.add(peer)
                self.order(now)
                has_changed = True
        return has_changed

    def _parent_of(self, member: TrainerSeen) -> TrainerSeen | None:
        order = self.last.order if self.last else ()
        place = tree_parent(order.index(member.contributor)) if member.contributor in order else None
        return None if place is None else self._members.get(order[place])

    def _moves_above(self, peer: Contributor, recipients: dict[Contributor, TrainerSeen]) -> tuple[object, ...]:
        """Return how far the children of this device's parent have come; empty while the parent has nothing to give."""
        assert self.last is not None
        order = self.last.order
        parent = tree_parent(order.index(peer)) if peer in order else None
        if parent is None:
            fed = [peer]
        elif order[parent] in recipients and not self.has(recipients[order[parent]]):
            return ()
        else:
            fed = [order[child] for child in tree_children(parent, len(order))]
        return tuple(
            (other, self.has(recipients[other]), recipients[other].report.transfer)
            for other in fed
            if other in recipients
        )

    def has(self, member: TrainerSeen) -> bool:
        """Return True if this member has staged the result, under any order."""
        staged = member.report.staged
        return bool(
            staged
            and self.result
            and member.report.open_round == self._ledger.round_id
            and self.digest in (b"", staged.digest)
            and are_the_same(staged.contributors, self.result.contributors)
        )

    def has_staged(self, member: TrainerSeen) -> bool:
        """Return True if this member has promised the result to this agent.

        A promise to an earlier agent must be given again. So must one under this term that was followed by an order of
        another result.
        """
        staged, ballot = member.report.staged, (self._ledger.term, self._since)
        return self.has(member) and staged is not None and (staged.term, staged.version) >= ballot

    def recipients(self) -> list[TrainerSeen]:
        """Return everybody alive at w(round_id - 1), contributor or not, that has entered the lineage."""
        position, left_behind, later = self._position, self.left_behind, self.later
        return [
            member
            for member in self._members.following(self._me, self._office_term)
            if member.at == position and member.contributor not in left_behind and member.contributor not in later
        ]


def are_the_same(some: Contributors, others: Contributors) -> bool:
    """Return True if these are the same contributors, in any order."""
    return some == others or set(some) == set(others)


def choose_digest(staged: Mapping[Contributor, bytes], base: Collection[str], order: Contributors = ()) -> bytes:
    """Return the digest that most deciding devices have staged, then that most have, then that of the first in order.

    order: of the broadcast, its root first; in segments it begins with the smallest name.
    """
    place = {peer: number for number, peer in enumerate(order)}

    def rank(digest: bytes) -> tuple[int, int, int, str]:
        peers = [peer for peer, other in staged.items() if other == digest]
        deciding = sum(peer.peer_id in base for peer in peers)
        first = min((place.get(peer, len(place)), peer.peer_id) for peer in peers)
        return -deciding, -len(peers), *first

    return min(set(staged.values()), key=rank)


def newest_staged(members: list[TrainerSeen]) -> Staged | None:
    """Return what must become the result if any device has staged one: the latest order's, which may be closed.

    An order has one result, unless a device lies: then it is the one that most have. A device that has lost it names it
    as well, and another device has it under an older order.
    """
    staged = {member.contributor: member.report.staged for member in members if member.report.staged}
    if not staged:
        return None
    latest, had = newest_ballot(members), digests_here(members)
    said = [(member.contributor, member.report.staged or member.report.accepted) for member in members]
    named = {peer: it.digest for peer, it in said if it and (it.term, it.version) == latest}
    base = next(member.report.base for member in members if member.contributor in named)
    digest = choose_digest({peer: digest for peer, digest in named.items() if digest in had}, base)
    return next(result for result in staged.values() if result.digest == digest)
