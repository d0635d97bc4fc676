"""Devices that are not in a round: each that stands elsewhere is sent to one that has the model, as long as that takes.

Others are refused, since their model is another one, or left out for a while, since their work was refused. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from mdl.peers.roles.agent.repeater import Repeater
from mdl.peers.roles.membership.majority import is_senior, was_left_behind
from mdl.peers.roles.membership.member import Member, Position, poverty
from mdl.peers.roles.membership.members import Members
from mdl.peers.roles.membership.suspicion import Distrust
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import CatchUp, MemberQuarantined, MemberRefused

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
        following: list[Member],
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

    def is_coming(self, member: Member, position: Position, now: float) -> bool:
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

    def _is_senior(self, member: Member, position: Position) -> bool:
        """Return True if it stands on a senior lineage, or was on one further than it can show.

        In the second case others may have what it lacks.
        """
        report, (lineage, round_id, _) = member.report, position
        workers = next((other.report.workers for other in self._members.alive() if other.at == position), 0)
        is_it = is_senior(report.lineage, lineage, report.round_id, round_id, report.workers, workers)
        return is_it or was_left_behind(lineage, report.forgotten)

    def _choose_source(self, member: Member, sources: list[Member], now: float) -> Member:
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


def _gets_on(member: Member, now: float) -> bool:
    """Return True if more of its values have come lately."""
    return member.report.transfer is not None and now - member.moved_at < _SOURCE_S


def _is_ahead(member: Member, position: Position) -> bool:
    """Return True if it has applied the round that the others are about to."""
    return member.report.lineage == position[0] and member.report.round_id > position[1]
