"""The beginning of a round: opened, or taken over by its members' reports from an agent that left it open. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from mdl.bounds import MAX_MEMBERS
from mdl.peers.roles.agent.distribution import newest_staged
from mdl.peers.roles.agent.ledger import (
    ABORTED,
    HOP_MOVES,
    LOOKED,
    OF_ANOTHER,
    ORDERED,
    Hop,
    HopKey,
    HopState,
    RoundLedger,
)
from mdl.peers.roles.membership.member import Member
from mdl.peers.roles.membership.suspicion import Distrust
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import room_for, weights_in
from mdl.protocol.round_messages import PeerReport

logger = logging.getLogger(__name__)


def open_ledger(
    round_id: int, current: list[Member], term: int, is_fork: bool, now: float, distrust: Distrust | None = None
) -> RoundLedger:
    """Return the ledger of the round that these begin under this term, or go on with if another agent left it open.

    On a fork nothing is open yet. A device that may not train now, or is left out for a while, is in no round that
    begins.
    """
    reports = {member.contributor: member.report for member in current}
    staged, attempt = newest_staged(current), _newest_attempt(current)
    if staged is None and has_been_left(round_id, attempt, reports):
        attempt = 0
    if is_fork or not (attempt or staged):
        may_train = [member for member in current if not member.report.away] or current
        admitted = distrust.admitted(may_train) if distrust else may_train
        members = frozenset(member.contributor for member in admitted)
        return RoundLedger(
            round_id, members, term, opened_at=now, room=find_room(round_id, (member.report for member in current))
        )
    ledger = recover(round_id, attempt or term, term, reports, now)
    logger.info("round %d goes on with %d members", round_id, len(ledger.live()))
    return ledger


def find_room(round_id: int, reports: Iterable[PeerReport]) -> int:
    """Return the room of a round's grid for the weights of all these (`mdl/protocol/grid.py`)."""
    return room_for(sum(report.theta for report in reports), round_id == 1)


def is_left_open(current: list[Member]) -> bool:
    """Return True if some of these are in a round that an agent has not closed, or have its result."""
    return newest_staged(current) is not None or _newest_attempt(current) > 0


def has_been_left(round_id: int, attempt: int, reports: Mapping[Contributor, PeerReport]) -> bool:
    """Return True if a device here took part in this attempt, stood elsewhere since, and has forgotten it.

    The work that others hold of it, and the work that it would hold now, may contain the same training.
    """
    away = [report for report in reports.values() if not _is_open(report, round_id, attempt)]
    return any(attempt in report.entered for report in away)


def recover(
    round_id: int, attempt: int, term: int, reports: Mapping[Contributor, PeerReport], now: float
) -> RoundLedger:
    """Return the ledger of an open round by its members' reports, for an agent that did not open it.

    reports: of everybody alive, heard under the new term, so that nobody follows older orders any more. A device that
    appears in them as contributor or partner, but did not report, is lost. A device waits for the next round if its
    former process is a contributor.
    """
    ours = {member: report for member, report in reports.items() if _is_open(report, round_id, attempt)}
    hops = _hops_told(ours, now)
    held = {who for report in ours.values() for holding in report.holdings for who in holding.contributors}
    partners = {peer for hop in hops.values() for peer in (hop.sender, hop.receiver)}
    # A report may name invented devices: those that report themselves count first.
    named = sorted({*held, *partners} - reports.keys())[: max(0, MAX_MEMBERS - len(reports))]
    members = frozenset({*reports, *named})
    room = max((report.room for report in ours.values()), default=0) or find_room(round_id, reports.values())
    ledger = RoundLedger(round_id, members, attempt, term, now, hops=hops, is_recovered=True, room=room)
    for member in ledger.members.difference(reports):
        ledger.lose(member, "not heard by the new agent")
    for member in reports:
        if any(who.peer_id == member.peer_id and who != member for who in held):
            ledger.lose(member, "what its former process gave is in the round already")
    for member, report in reports.items():
        if attempt in report.entered and member not in ours:
            ledger.lose(member, "it has left this attempt, which may have its work already")
    for member, report in ours.items():
        ledger.take(member, report, now)
    # The weights of those that are lost, and are in what others hold, are not known apart.
    lost = [
        held.theta for report in ours.values() for held in report.holdings if not ours.keys() >= {*held.contributors}
    ]
    left = weights_in(room) - 2.0 * sum(report.theta for report in ours.values()) - sum(lost)
    for member in sorted(reports.keys() - ours.keys()):
        if (most := 2.0 * reports[member].theta) > left:
            ledger.lose(member, "the round's grid has no room for its weight")
        else:
            left -= most
    return ledger


def _newest_attempt(members: list[Member]) -> int:
    """Return the term that opened the round these have open; 0 if none has."""
    return max(member.report.open_term for member in members)


def _hops_told(reports: Mapping[Contributor, PeerReport], now: float) -> dict[HopKey, Hop]:
    """Return the hops by their receivers' word; by the sender's if the receiver does not know the hop."""
    hops: dict[HopKey, Hop] = {}

    def know(segment: int, hop_id: int, sender: Contributor, receiver: Contributor, state: HopState = ORDERED) -> Hop:
        hop = Hop(segment, hop_id, sender, receiver, OF_ANOTHER, now, state)
        return hops.setdefault((segment, hop_id), hop)

    for member, report in reports.items():
        for decision in report.hops:
            state = HOP_MOVES[ORDERED][decision.outcome]
            hop = know(decision.segment, decision.hop_id, decision.sender, member, state)
            hop.decided_at, hop.decision, hop.is_look = now, decision, state is LOOKED
        if incoming := report.incoming:
            know(incoming.segment, incoming.hop_id, incoming.sender, member)
    for member, report in reports.items():
        for held in report.holdings:
            if held.sent_hop is not None and held.sent_to is not None:
                # The receiver knows nothing of this hop: it is lost, or its own part began later.
                know(held.segment, held.sent_hop, member, held.sent_to, ABORTED if held.sent_to in reports else ORDERED)
    return hops


def _is_open(report: PeerReport, round_id: int, attempt: int) -> bool:
    return (report.open_round, report.open_term) == (round_id, attempt)
