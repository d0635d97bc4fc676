"""Between two rounds: the members' places, the waits before the next round, its opening, and latecomers. Pure.

A round is opened, or taken over by its members' reports from an agent that left it open (`recover`). A device that
stands elsewhere is sent to one that has the model, as long as that takes (`Latecomers`). Others are refused, since
their model is another one, or left out for a while, since their work was refused.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

from mdl.bounds import MAX_MEMBERS, first_few, printable
from mdl.config import Compress
from mdl.peers.roles.agent.aggregation import Repeater
from mdl.peers.roles.agent.conductor import Conductor
from mdl.peers.roles.agent.distribution import newest_staged
from mdl.peers.roles.agent.ledger import (
    ABORTED,
    HOP_MOVES,
    LOOKED,
    OF_ANOTHER,
    ORDERED,
    Hop,
    HopState,
    RoundLedger,
)
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.majority import choose_lineage, has_quorum, is_senior, may_decide, was_left_behind
from mdl.peers.roles.membership.members import (
    Distrust,
    Members,
    Position,
    TrainerSeen,
    newest_position,
    poverty,
    voters,
)
from mdl.protocol.coding import Coding
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import room_for, weights_in
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import CatchUp, MemberQuarantined, MemberRefused, PeerReport
from mdl.protocol.vocabulary import MAX_FORKS, Role
from mdl.scheduler.policies.segment_plan import choose_coding

logger = logging.getLogger(__name__)


def open_ledger(
    round_id: int,
    current: list[TrainerSeen],
    term: int,
    is_fork: bool,
    now: float,
    distrust: Distrust | None = None,
    compress: Compress = "none",
) -> RoundLedger:
    """Return the ledger of the round that these begin under this term, or go on with if another agent left it open.

    On a fork nothing is open yet. A device that may not train now, or is left out for a while, is in no round that
    begins. compress: how own deltas are rounded in a round that begins.
    """
    reports = {member.contributor: member.report for member in current}
    staged, attempt = newest_staged(current), _newest_attempt(current)
    if staged is None and has_been_left(round_id, attempt, reports):
        attempt = 0
    if is_fork or not (attempt or staged):
        may_train = [member for member in current if not member.report.away] or current
        admitted = distrust.admitted(may_train) if distrust else may_train
        members = frozenset(member.contributor for member in admitted)
        links = [member.device.link_mb_s for member in current if member.contributor in members]
        coding = choose_coding(links, current[0].report.size, compress)
        room = find_room(round_id, reports.values(), coding)
        return RoundLedger(round_id, members, term, opened_at=now, room=room)
    ledger = recover(round_id, attempt or term, term, reports, now)
    logger.info("round %d goes on with %d members", round_id, len(ledger.live()))
    return ledger


def find_room(round_id: int, reports: Iterable[PeerReport], coding: Coding = "none") -> int:
    """Return the room of a round's grid for the weights of all these (`mdl/protocol/grid.py`)."""
    return room_for(sum(report.theta for report in reports), round_id == 1, coding)


def is_left_open(current: list[TrainerSeen]) -> bool:
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
    holdings = [report.holding for report in ours.values() if report.holding]
    held = {who for holding in holdings for who in holding.contributors}
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
    lost = [holding.theta for holding in holdings if not ours.keys() >= {*holding.contributors}]
    left = weights_in(room) - 2.0 * sum(report.theta for report in ours.values()) - sum(lost)
    for member in sorted(reports.keys() - ours.keys()):
        if (most := 2.0 * reports[member].theta) > left:
            ledger.lose(member, "the round's grid has no room for its weight")
        else:
            left -= most
    return ledger


def _newest_attempt(members: list[TrainerSeen]) -> int:
    """Return the term that opened the round these have open; 0 if none has."""
    return max(member.report.open_term for member in members)


def _hops_told(reports: Mapping[Contributor, PeerReport], now: float) -> dict[int, Hop]:
    """Return the hops by their receivers' word; by the sender's if the receiver does not know the hop."""
    hops: dict[int, Hop] = {}

    def know(hop_id: int, sender: Contributor, receiver: Contributor, state: HopState = ORDERED) -> Hop:
        return hops.setdefault(hop_id, Hop(hop_id, sender, receiver, OF_ANOTHER, now, state))

    for member, report in reports.items():
        for decision in report.hops:
            state = HOP_MOVES[ORDERED][decision.outcome]
            hop = know(decision.hop_id, decision.sender, member, state)
            hop.decided_at, hop.decision, hop.is_look = now, decision, state is LOOKED
        if incoming := report.incoming:
            know(incoming.hop_id, incoming.sender, member)
    for member, report in reports.items():
        held = report.holding
        if held is not None and held.sent_hop is not None and held.sent_to is not None:
            # The receiver knows nothing of this hop: it is lost, or its own part began later.
            know(held.sent_hop, member, held.sent_to, ABORTED if held.sent_to in reports else ORDERED)
    return hops


def _is_open(report: PeerReport, round_id: int, attempt: int) -> bool:
    return (report.open_round, report.open_term) == (round_id, attempt)


class Gathered(NamedTuple):
    """The devices that follow an agent, and the model that goes on."""

    # All that follow the agent, at any place.
    following: list[TrainerSeen]
    # Those on the lineage that goes on.
    standing: list[TrainerSeen]
    # The newest model of that lineage, and the members that have it.
    position: Position
    current: list[TrainerSeen]
    # The devices that decide on the next round, and whether enough of them are here.
    base: tuple[str, ...]
    quorum: bool


def gather(following: list[TrainerSeen]) -> Gathered:
    """Find the model that goes on. following: not empty."""
    standing = choose_lineage(following)
    position = newest_position(standing)
    current = [member for member in standing if member.at == position]
    return Gathered(following, standing, position, current, current[0].report.base, may_decide(standing))


def common_goal(members: list[TrainerSeen]) -> int:
    """Return the run's last round as most of these know it, else 0: one of them alone does not end the run."""
    goal, count = Counter(member.report.goal for member in members).most_common(1)[0]
    return goal if 2 * count > len(members) else 0


class Gathering:
    """The waiting of an agent before it opens the next round. waiting_for: why none is opened, in words.

    lacking_since: since then a majority is missing, here or in the round before, or a partner; None if nothing is. A
    mesh that must wait for a majority counts from when the majority is here, and lacks its votes.
    opened_at: time at which the last round was opened.
    """

    def __init__(
        self, members: Members, settings: AgentSettings, lacking_since: float | None, opened_at: float = -inf
    ) -> None:
        self.opened_at = opened_at
        self.waiting_for = ""
        self.lacking_since = lacking_since
        self._members = members
        self._settings = settings
        self._made_way_at = -inf
        self._patience_s = settings.partition_s
        self._waits_on = False  # without end, until a majority is here

    def waits_for_answers(self, agent: str, office_term: int, in_office_since: float, now: float) -> bool:
        """Return True if a device is heard that does not obey yet: another agent may still change its state."""
        for member in self._members.alive():
            heard_s = now - max(member.joined_at, in_office_since)
            if not member.obeys(agent, office_term) and heard_s < self._settings.lost_after_s / 2:
                self.waiting_for = f"{member.peer_id} to answer"
                return True
        return False

    def are_enough(self, found: Gathered, now: float) -> bool:
        """Return True if devices at the mesh's model may go on: start a mesh, decide on a round, or begin a fork."""
        lineage = found.position[0]
        return self._may_go_on(found, now) if lineage else self._may_start(found.current, now)

    def waits_for_others(self, found: Gathered, coming: list[TrainerSeen], now: float) -> bool:
        """Return True if a round had better begin later. coming: members about to stand at the mesh's model."""
        if paused := _tell_paused(found.current):
            self.waiting_for = f"a device that may train: {paused}"
        elif coming and not is_left_open(found.current):
            self.waiting_for = f"{len(coming)} more to fetch the model"
        elif now - self._made_way_at < self._settings.lost_after_s:
            self.waiting_for = "the agent of an older mesh to take over"
        elif now - self.opened_at < self._settings.every_s and not is_left_open(found.current):
            self.waiting_for = f"the next round: one begins every {self._settings.every_s:g} s"
        else:
            return False
        return True

    def is_patience_over(self, base: tuple[str, ...], following: list[TrainerSeen], now: float) -> bool:
        """Return True if a majority, or any partner, has been missing for so long that we go on without.

        A mesh that must wait for a majority waits for its presence. The majority may be here, but started anew and
        without knowledge of its votes. Then the mesh waits as long for others that have it, and goes on as a fork.
        These votes may never come back, and nobody else can go on meanwhile.
        """
        self._patience_s = self._patience(base, following)
        is_majority_here = has_quorum(base, {member.peer_id for member in following})
        self._waits_on = self._settings.waits_for_majority and not is_majority_here
        if self._waits_on:
            self.lacking_since = now
            return False
        return self.lacking_since is not None and now - self.lacking_since >= self._patience_s

    def gives_up(self, conducted: Conductor, following: list[TrainerSeen], now: float) -> bool:
        """Return True if an open round lacks a majority, and we may go on without."""
        self.lacking_since = conducted.lacking_since
        is_over = self.lacking_since is not None and self.is_patience_over(conducted.base, following, now)
        conducted.lacking_since = self.lacking_since
        return is_over

    def tell_patience(self) -> str:
        """Return, in words, the time for which a majority or a partner is waited for."""
        return "however long that takes" if self._waits_on else f"up to {self._patience_s:g} s, then without"

    def make_way(self, now: float) -> None:
        """Open no round for a while. Not again before `partition_s`: the senior agent may be deaf to this side."""
        if now - self._made_way_at >= self._settings.partition_s:
            self._made_way_at = now

    def _may_start(self, current: list[TrainerSeen], now: float) -> bool:
        """Return True if a mesh may start: not at once if a device has been in one, as its others may be away."""
        self._waits_on = False
        able = sum(not member.report.away for member in current)
        been = [member.peer_id for member in current if member.report.forgotten]
        if able < self._settings.min_peers or not been:
            self.lacking_since = None
        if (wanted := self._settings.min_peers) > able:
            absent = first_few(_tell_absent(self._members, current), separator="; ") or "nobody else is found"
            self.waiting_for = f"{wanted - able} more of {wanted} devices: {absent}"
            return False
        if not been:
            return True
        self.waiting_for = f"the mesh that {first_few(been)} has been in, up to {self._settings.partition_s:g} s"
        self.lacking_since = now if self.lacking_since is None else self.lacking_since
        return now - self.lacking_since >= self._settings.partition_s

    def _may_go_on(self, found: Gathered, now: float) -> bool:
        """Return True with a majority of the deciding devices and a partner; without, after a while, as a fork.

        A device that took the last round alone has waited for a partner before, and goes on at its own pace until it
        hears another one again.
        """
        (lineage, _, _), current, base = found.position, found.current, found.base
        has_partner = len(current) >= min(2, self._settings.min_peers)
        if found.quorum and (has_partner or self._was_alone(current, base, now)):
            self.lacking_since = None
            return True
        self.waiting_for = _tell_missing(found)
        self.lacking_since = now if self.lacking_since is None else self.lacking_since
        is_over = self.is_patience_over(base, found.following, now)
        if found.quorum or len(lineage) < MAX_FORKS:
            return is_over
        self.waiting_for += f"; this mesh has gone on without its others {MAX_FORKS:,} times, and does so no more"
        self._waits_on = True
        return False

    def _patience(self, base: tuple[str, ...], following: list[TrainerSeen]) -> float:
        """Return how long a majority is waited for: a group waits for its mesh, a single device need not for long.

        A single device has nobody to agree with, so it loses nothing but its own time by waiting. A link that flaps
        would have it wait again and again. It does not wait at all if all others have said that they leave. After a
        start it waits as a group does: the others may be starting, too.
        """
        others = [member for member in self._members.everyone() if member not in following]
        if len(following) != 1 or not others or any(member.alive for member in others):
            return self._settings.partition_s
        if len(others) > 1 and has_quorum(base, {following[0].peer_id}):
            return self._settings.partition_s  # its round would be the mesh's, and leave the others behind
        missing = set(base) - {following[0].peer_id}
        if missing and missing <= {member.peer_id for member in others if member.has_left}:
            return 0.0
        return min(self._settings.alone_s, self._settings.partition_s)

    def _was_alone(self, current: list[TrainerSeen], base: tuple[str, ...], now: float) -> bool:
        """Return True if this one device took the last round by itself, and heard nobody else for a while."""
        if len(current) != 1 or base != (current[0].peer_id,):
            return False
        others = [member for member in self._members.everyone() if member is not current[0]]
        return all(member.has_left or now - member.heard_at >= self._silence_s(member) for member in others)

    def _silence_s(self, member: TrainerSeen) -> float:
        """Return the silence after which a member is not awaited: one heard now and then may be on its way here."""
        longest_s = self._settings.partition_s
        return longest_s if member.alive else min(self._settings.lost_after_s + self._settings.alone_s, longest_s)


def _tell_missing(found: Gathered) -> str:
    """Return why those here may not go on, in words: devices are missing, or are here and may not decide."""
    current, base = found.current, found.base
    here = {member.peer_id for member in found.following}
    missing, counts = sorted(set(base) - here), f"{len(current)} of {len(base)} members are here"
    able = voters(found.standing)
    anew = sorted(member.peer_id for member in found.standing if member.peer_id in base and member.peer_id not in able)
    if found.quorum or not anew or not has_quorum(base, here):
        return f"{', '.join(missing) or 'a partner'}: {counts}"
    told = f"{counts}, but {first_few(anew)} may not decide: started anew, with what they had agreed to lost"
    return f"{', '.join(missing)}: {told}" if missing else told


def _tell_absent(members: Members, current: list[TrainerSeen]) -> list[str]:
    """Return, in words, each device that is no help for a first round, and why."""
    told = [f"{member.peer_id} {why}" for member in members.everyone() if (why := _why_absent(member, current))]
    heard = {member.peer_id for member in members.everyone()}
    found = [name for name, info in members.found.items() if info.role is Role.TRAINER and name not in heard]
    return [*told, *(f"{name} is found and does not answer (mdl doctor says why)" for name in found)]


def _why_absent(member: TrainerSeen, current: list[TrainerSeen]) -> str:
    if member.problem:
        return f"is refused: {member.problem}"
    if member.has_left:
        return "has left"
    if not member.alive:
        return "has fallen silent"
    if member.report.away:
        return f"is paused ({member.report.away})"
    return "" if member in current else "fetches the model"


def _tell_paused(members: list[TrainerSeen]) -> str:
    """Return why none of these may train, if none has anything of a round; "" if one can bring a round forward."""
    reports = [member.report for member in members]
    if any(not report.away or report.holding or report.staged for report in reports):
        return ""
    return printable(", ".join(f"{member.peer_id} ({member.report.away})" for member in members))


# Time for which a round waits for a newcomer to fetch the model; longer while its values are seen to arrive.
_JOIN_WINDOW_S = 10.0
_JOIN_TRANSFER_S = 120.0
# A source that has sent nothing for so long is replaced by another one.
_SOURCE_S = 5.0


class Latecomers:
    """See the module. senior_s: time for which devices of a senior lineage are left in their place."""

    def __init__(self, members: Members, repeater: Repeater, senior_s: float) -> None:
        self._members = members
        self._repeater = repeater
        self._senior_s = senior_s

    def help(
        self,
        following: list[TrainerSeen],
        position: Position,
        term: int,
        now: float,
        taking_part: Collection[Contributor] = (),
    ) -> list[Effect]:
        """Send each device that stands elsewhere to the least busy of those that have the mesh's model."""
        here = [member for member in following if member.at == position]
        for member in here:
            member.late_since = None
        late = [member for member in following if member.at != position and member.contributor not in taking_part]
        if not late or not here:
            return []
        sources = sorted((other for other in self._members.alive() if other.at == position), key=poverty)
        effects: list[Effect] = []
        for member in late:
            if _is_ahead(member, position):
                continue
            if member.late_since is None:
                member.late_since = now
            if now - member.late_since < self._senior_s and self._is_senior(member, position):
                continue  # others of its mesh may come as well, and then we move instead
            source = self._choose_source(member, sources, now)
            lineage, round_id, digest = position
            target = CatchUp(term, round_id, digest, source.contributor, lineage, source.report.base)
            effects += self._repeater.say(member.contributor, target, now)
        return effects

    def refuse(self, term: int, now: float) -> list[Effect]:
        """Tell devices with another model that they are refused."""
        effects: list[Effect] = []
        for member in self._members.everyone() if self._members.has_refused else ():
            if member.problem and member.alive:
                refusal = MemberRefused(term, member.report.round_id, member.problem)
                effects += self._repeater.say(member.contributor, refusal, now)
        return effects

    def tell_left_out(self, distrust: Distrust, term: int, round_id: int, now: float) -> list[Effect]:
        """Tell devices that the opening round goes without their work."""
        effects: list[Effect] = []
        for member in self._members.alive() if distrust.out else ():
            if reason := distrust.tell(member.contributor):
                effects += self._repeater.say(member.contributor, MemberQuarantined(term, round_id, reason), now)
        return effects

    def is_coming(self, member: TrainerSeen, position: Position, now: float) -> bool:
        """Return True if this member is about to stand at the mesh's model, so that it can be in the next round."""
        if member.at == position:
            member.late_since = None
            return False
        if member.late_since is None:
            member.late_since = now
        if self._is_senior(member, position):
            return False
        patience_s = _JOIN_TRANSFER_S if _gets_on(member, now) else _JOIN_WINDOW_S
        return now - member.late_since < patience_s

    def _is_senior(self, member: TrainerSeen, position: Position) -> bool:
        """Return True if it stands on a senior lineage, or was on one further than it can show.

        In the second case others may have what it lacks.
        """
        report, (lineage, round_id, _) = member.report, position
        workers = next((other.report.workers for other in self._members.alive() if other.at == position), 0)
        is_it = is_senior(report.lineage, lineage, report.round_id, round_id, report.workers, workers)
        return is_it or was_left_behind(lineage, report.forgotten)

    def _choose_source(self, member: TrainerSeen, sources: list[TrainerSeen], now: float) -> TrainerSeen:
        """Return the source that is sending values, as long as they come; else one after the other."""
        assert member.late_since is not None
        transfer = member.report.transfer
        giver = next((other for other in sources if transfer and other.peer_id == transfer.sender), None)
        if giver and _gets_on(member, now):
            return giver
        waited = int((now - member.late_since) // _SOURCE_S)
        reach = self._members.reach
        reaching = sorted(sources, key=lambda other: reach.are_apart(other.contributor, member.contributor, now))
        return reaching[waited % len(reaching)]


def _gets_on(member: TrainerSeen, now: float) -> bool:
    """Return True if more of its values have come lately."""
    return member.report.transfer is not None and now - member.moved_at < _SOURCE_S


def _is_ahead(member: TrainerSeen, position: Position) -> bool:
    """Return True if it has applied the round that the others are about to."""
    return member.report.lineage == position[0] and member.report.round_id > position[1]
