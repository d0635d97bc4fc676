"""Whom the members of a mesh suspect, and who is left out of its rounds for that, as their reports tell it. Pure.

It follows from the reports alone, so that an agent that takes over comes to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from mdl.bounds import printable
from mdl.defence.reputation import FAINT, Quarantine, Suspicion, accusers
from mdl.protocol.delta import Contributor
from peers.roles.membership.member import Member

logger = logging.getLogger(__name__)


class Distrust:
    """See the module. doubted: peer ids whose work was refused lately: what they give next is judged first, as a whole.

    out: who is left out, by peer id, and why. is_on: somebody is, if several suspect it, or it stood out.
    """

    def __init__(self, is_on: bool) -> None:
        self.doubted: frozenset[str] = frozenset()
        self.out: dict[str, str] = {}
        self._quarantine = Quarantine()
        self._is_on = is_on

    def look(self, members: list[Member], judged: Collection[str], odd: Mapping[str, str], round_id: int) -> None:
        """Before a round is opened. members: all who follow. judged: whose own delta was taken in the last round.

        These are not doubted, whoever has refused them: that was another's word against those who merged their work.
        odd: who stood out when deltas were inspected, and why.
        """
        said = {member.peer_id: _suspects(member) for member in members}
        accused = {peer_id for peer_id in said if accusers(peer_id, said, round_id, FAINT)}
        self.doubted = frozenset(accused.difference(judged))
        if not self._is_on:
            return
        before, self.out = self.out, {**odd, **self._quarantine.look(said, round_id)}
        for peer_id in self.out.keys() - before.keys():
            logger.warning("round %d and those after it leave %s out: %s", round_id, peer_id, self.out[peer_id])
        for peer_id in before.keys() - self.out.keys():
            logger.info("round %d takes %s in again", round_id, peer_id)

    def admitted(self, current: list[Member]) -> list[Member]:
        """Of those who stand at the mesh's model, who takes part; all, if nobody would be left."""
        return [member for member in current if member.peer_id not in self.out] or current

    def tell(self, peer: Contributor) -> str:
        """Why this device is left out, in one line; "" if it is not."""
        return printable(self.out.get(peer.peer_id, ""))


def _suspects(member: Member) -> dict[str, Suspicion]:
    accused = member.report.accused
    return {each.peer_id: Suspicion(each.weight, each.round_id, each.reason) for each in accused}
