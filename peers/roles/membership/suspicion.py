"""Suspicions of the members of a mesh, and the devices that its rounds leave out for them, by their reports. Pure.

All follows from the reports alone, so that an agent that takes over comes to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from mdl.bounds import printable
from mdl.defence.reputation import DIFFERS, FAINT, Quarantine, Suspects, Suspicion
from mdl.peers.roles.membership.member import Member
from mdl.protocol.delta import Contributor
from mdl.protocol.status_messages import MAX_CUTS

logger = logging.getLogger(__name__)


class Distrust:
    """See the module. doubted: peer ids with work refused lately: what they give next is judged first, as a whole.

    disputed: devices that gave another result than others have, and those that say so: one of the two lies, and neither
    gives out any. out: peer id -> why it is left out. is_on: devices are left out if several suspect them, or if they
    stood out.
    """

    def __init__(self, is_on: bool) -> None:
        self.doubted: frozenset[str] = frozenset()
        self.disputed: frozenset[str] = frozenset()
        self.out: dict[str, str] = {}
        self._seen = Suspects()  # by the agent itself
        self._quarantine = Quarantine()
        self._is_on = is_on

    def look(self, members: list[Member], judged: Collection[str], odd: Mapping[str, str], round_id: int) -> None:
        """Look at the reports before a round is opened. members: all that follow. odd: peer id -> why it stood out.

        judged: devices with an own delta that was taken in the last round. These are not doubted, even if a device
        refused them: that was its word against those that merged their work.
        """
        said, words = {member.peer_id: _suspects(member) for member in members}, self._words(members, round_id)
        disputes = [(accuser, peer_id) for accuser, peer_id, reason in words if reason.startswith(DIFFERS)]
        self.disputed = frozenset(peer_id for pair in disputes for peer_id in pair)
        accused = {peer_id for _, peer_id, reason in words if not reason.startswith(DIFFERS)}
        self.doubted = frozenset(accused.difference(judged))
        if not self._is_on:
            return
        before, self.out = self.out, {**odd, **self._quarantine.look(said, round_id)}
        for peer_id in self.out.keys() - before.keys():
            logger.warning("round %d and those after it leave %s out: %s", round_id, peer_id, self.out[peer_id])
        for peer_id in before.keys() - self.out.keys():
            logger.info("round %d takes %s in again", round_id, peer_id)

    def note(self, odds: Mapping[str, str], round_id: int) -> None:
        """Remember devices with a result, or a part of it, at odds with others'. odds: peer id -> the words."""
        for peer_id, told in odds.items():
            self._seen.accuse([peer_id], round_id, f"{DIFFERS}{told}")

    def doubts(self, members: Iterable[Member], round_id: int) -> tuple[str, ...]:
        """Return what these hold against each other, a line each for people."""
        words = sorted(self._words(members, round_id))[:MAX_CUTS]
        return tuple(
            printable(f"{one} says of {other}: {why}" if one else f"{other}: {why}") for one, other, why in words
        )

    def admitted(self, current: list[Member]) -> list[Member]:
        """Return the members at the mesh's model that take part; all of them, if nobody would be left."""
        return [member for member in current if member.peer_id not in self.out] or current

    def tell(self, peer: Contributor) -> str:
        """Return the reason why this device is left out, in one line; "" if it is not."""
        return printable(self.out.get(peer.peer_id, ""))

    def _words(self, members: Iterable[Member], round_id: int) -> list[tuple[str, str, str]]:
        """Return accuser, accused and reason of all that has not faded. accuser: "" for the agent."""
        said = {member.peer_id: _suspects(member) for member in members}
        return [
            (accuser, peer_id, each.reason)
            for accuser, suspects in [*said.items(), ("", self._seen.known)]
            for peer_id, each in suspects.items()
            if peer_id != accuser and peer_id in said and each.now(round_id) >= FAINT
        ]


def _suspects(member: Member) -> dict[str, Suspicion]:
    accused = member.report.accused
    return {each.peer_id: Suspicion(each.weight, each.round_id, each.reason) for each in accused}
