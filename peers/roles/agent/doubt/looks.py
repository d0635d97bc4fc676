"""An inspected round: each own delta is looked at by several devices before anything is merged. Pure.

A receiver of a partial sum sees too few to tell a lie from other data, and may lie itself. A look is a hop that its
receiver aborts once it has measured what came: nothing is merged, and the sender holds again. w(t) draws the judges of
each device, so that nobody chooses its own; `mdl/defence/inspection.py` decides by their words.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from hashlib import blake2b

from mdl.defence.inspection import Word, find_odd
from mdl.peers.roles.agent.ledger import LOOKED, Hop, RoundLedger
from mdl.protocol.delta import Contributor

logger = logging.getLogger(__name__)

# Judges of each device: of ten devices, three of which lie, a liar has two accomplices at most among its five.
JUDGES = 5
Pair = tuple[Contributor, Contributor]  # sender, receiver


class Looks:
    """See the module. digest: of w(t). is_over: they are done.

    odd: peer id -> why it stands out; as before if that cannot be told.
    """

    def __init__(self, ledger: RoundLedger, digest: bytes, odd: dict[str, str]) -> None:
        self.is_over = False
        self.odd = odd
        self._ledger = ledger
        drawn = {peer: blake2b(digest + peer.peer_id.encode(), digest_size=8).digest() for peer in ledger.members}
        self._ring = sorted(drawn, key=lambda peer: drawn[peer])

    def order(self, able: Collection[str], apart: Collection[Pair], now: float) -> bool:
        """Order the looks that are possible now; return True if none is left to do.

        able: peer ids that may receive. apart: pairs that cannot reach each other.
        """
        while pair := self._next(able, apart):
            sender, judge = pair
            reason = f"{judge.peer_id} looks at what {sender.peer_id} gives before anything is merged"
            hop = self._ledger.order_hop(sender, judge, reason, now)
            hop.is_look = True
            logger.info("hop %d: %s -> %s: %s", hop.hop_id, sender.peer_id, judge.peer_id, reason)
        return self._ledger.is_settled()

    def end(self) -> dict[Contributor, str]:
        """Return the devices that are out of the round from here on, and why; at least one device is left."""
        self.is_over = True
        words = [
            Word(hop.receiver.peer_id, hop.sender.peer_id, hop.decision.seen.rise)
            for hop in self._looks()
            if hop.decision and hop.decision.seen and hop.decision.seen.rise is not None
        ]
        found = find_odd(words)
        self.odd = self.odd if found is None else found
        live = self._ledger.live()
        out = {peer: self.odd[peer.peer_id] for peer in live if peer.peer_id in self.odd}
        return out if len(out) < len(live) else {}

    def _next(self, able: Collection[str], apart: Collection[Pair]) -> Pair | None:
        free, live = set(self._ledger.free()), set(self._ledger.live())
        known = {(hop.sender, hop.receiver) for hop in self._looks()}.union(apart, [pair[::-1] for pair in apart])
        blind = {hop.receiver for hop in self._looks() if self._is_blind(hop)}
        ring = [peer for peer in self._ring if peer in live]
        for step in range(1, min(JUDGES, len(ring) - 1) + 1):
            for place, sender in enumerate(ring):
                judge = ring[(place + step) % len(ring)]
                may = {sender, judge} <= free and judge.peer_id in able and judge not in blind
                if may and (sender, judge) not in known:
                    return sender, judge
        return None

    def _is_blind(self, hop: Hop) -> bool:
        """Return True if its receiver has no windows to test with, and need not be asked again."""
        seen = hop.decision.seen if hop.decision else None
        return hop.state is LOOKED and (seen is None or seen.rise is None)

    def _looks(self) -> list[Hop]:
        return [hop for hop in self._ledger.hops.values() if hop.is_look]
