"""What an agent remembers of the judging in one round for the next one. Pure.

Who merges before it gives shows no more than a mean of several, in which a lie of its own is not seen: so it gives
first in the next round, to those who were judged in this one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from mdl.defence.limits import Known
from mdl.protocol.round_messages import RoundOpened
from mdl.protocol.vocabulary import Holding, Staged
from peers.roles.agent.ledger import MERGED, RoundLedger

# Devices to one of those that judge them in a mesh's first round.
_TO_ONE_JUDGE = 10


@dataclass
class Judged:
    """See the module. is_on: devices judge. peer_ids: whose own delta was taken, alone, in the last round.

    known: what was seen of all.
    """

    is_on: bool
    peer_ids: frozenset[str] = frozenset()
    known: Known = field(default_factory=Known)

    def note(self, ledger: RoundLedger, result: Holding | Staged | None) -> None:
        """Of a round that is closed: who gave before it merged; in segments, everybody.

        Not who stands out, too: it was taken before enough was known to refuse it.
        """
        if not (self.is_on and result):
            return
        decisions = [hop.decision for hop in ledger.hops.values() if hop.decision]
        odd = self.known.note(ledger.round_id, {each.sender.peer_id: each.seen for each in decisions if each.seen})
        merged = [hop for hop in ledger.hops.values() if hop.state is MERGED]
        gave = {hop.sender for hop in merged}.difference(hop.receiver for hop in merged)
        taken = {peer.peer_id for peer in result.contributors if peer in gave or not merged}
        self.peer_ids = frozenset(taken - odd)

    def tell(self, opened: RoundOpened) -> RoundOpened:
        """The round that is announced, with its limits."""
        return msgspec.structs.replace(opened, limits=self.known.limits(opened.round_id))

    def find_unjudged(self, ledger: RoundLedger, digest: bytes) -> frozenset[str]:
        """Who gives its own delta first, before it merges. digest: of w(t).

        Where nobody was judged, all but few, whom w(t) draws: these are not judged then, and the others one after the
        other, which takes longer than in pairs.
        """
        if not self.is_on:
            return frozenset()
        members = {peer.peer_id for peer in ledger.members}
        drawn = sorted(members, key=lambda peer_id: blake2b(digest + peer_id.encode(), digest_size=8).digest())
        return frozenset(members - (self.peer_ids or set(drawn[: max(1, len(drawn) // _TO_ONE_JUDGE)])))
