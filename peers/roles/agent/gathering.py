"""Between two rounds: the members' places, and the things for which the next round waits, and how long. Pure."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import NamedTuple

from mdl.bounds import first_few, printable
from mdl.peers.roles.agent.conductor import Conductor
from mdl.peers.roles.agent.opening import is_left_open
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.lineage_choice import choose_lineage, may_decide
from mdl.peers.roles.membership.majority import has_quorum
from mdl.peers.roles.membership.member import Member, Position, newest_position, voters
from mdl.peers.roles.membership.members import Members
from mdl.protocol.vocabulary import MAX_FORKS, Role


class Gathered(NamedTuple):
    """The devices that follow an agent, and the model that goes on."""

    # All that follow the agent, at any place.
    following: list[Member]
    # Those on the lineage that goes on.
    standing: list[Member]
    # The newest model of that lineage, and the members that have it.
    position: Position
    current: list[Member]
    # The devices that decide on the next round, and whether enough of them are here.
    base: tuple[str, ...]
    quorum: bool


def gather(following: list[Member]) -> Gathered:
    """Find the model that goes on. following: not empty."""
    standing = choose_lineage(following)
    position = newest_position(standing)
    current = [member for member in standing if member.at == position]
    return Gathered(following, standing, position, current, current[0].report.base, may_decide(standing))


def common_goal(members: list[Member]) -> int:
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

    def waits_for_others(self, found: Gathered, coming: list[Member], now: float) -> bool:
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

    def is_patience_over(self, base: tuple[str, ...], following: list[Member], now: float) -> bool:
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

    def gives_up(self, conducted: Conductor, following: list[Member], now: float) -> bool:
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

    def _may_start(self, current: list[Member], now: float) -> bool:
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

    def _patience(self, base: tuple[str, ...], following: list[Member]) -> float:
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

    def _was_alone(self, current: list[Member], base: tuple[str, ...], now: float) -> bool:
        """Return True if this one device took the last round by itself, and heard nobody else for a while."""
        if len(current) != 1 or base != (current[0].peer_id,):
            return False
        others = [member for member in self._members.everyone() if member is not current[0]]
        return all(member.has_left or now - member.heard_at >= self._silence_s(member) for member in others)

    def _silence_s(self, member: Member) -> float:
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


def _tell_absent(members: Members, current: list[Member]) -> list[str]:
    """Return, in words, each device that is no help for a first round, and why."""
    told = [f"{member.peer_id} {why}" for member in members.everyone() if (why := _why_absent(member, current))]
    heard = {member.peer_id for member in members.everyone()}
    found = [name for name, info in members.found.items() if info.role is Role.TRAINER and name not in heard]
    return [*told, *(f"{name} is found and does not answer (mdl doctor says why)" for name in found)]


def _why_absent(member: Member, current: list[Member]) -> str:
    if member.problem:
        return f"is refused: {member.problem}"
    if member.has_left:
        return "has left"
    if not member.alive:
        return "has fallen silent"
    if member.report.away:
        return f"is paused ({member.report.away})"
    return "" if member in current else "fetches the model"


def _tell_paused(members: list[Member]) -> str:
    """Return why none of these may train, if none has anything of a round; "" if one can bring a round forward."""
    reports = [member.report for member in members]
    if any(not report.away or report.holdings or report.staged for report in reports):
        return ""
    return printable(", ".join(f"{member.peer_id} ({member.report.away})" for member in members))
