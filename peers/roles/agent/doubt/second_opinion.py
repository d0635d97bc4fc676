"""Refused partial sums: the devices that judge them next, and when a sender is out of the round for it. Pure.

A receiver may lie, too: others judge what one refuses, until more than a third of the members have refused it
(`accusers_needed`). If two refuse each other, the one with more devices in its mean goes on, since these have judged
one another. Somebody is always left.
"""

from __future__ import annotations

from collections.abc import Collection

from mdl.defence.reputation import accusers_needed
from mdl.peers.roles.agent.ledger import Hop, RoundLedger
from mdl.protocol.delta import Contributor
from mdl.protocol.hop_messages import SUSPECT

Pair = tuple[Contributor, Contributor]  # sender, receiver
Refusals = dict[Contributor, set[Contributor]]


class SecondOpinion:
    """See the module. doubted: peer ids with work that was refused lately.

    unjudged: peer ids with an own delta that nobody took alone last time. Both merge nothing, but give their own first,
    to others: in a mean of several a lie is not seen.
    """

    def __init__(self, ledger: RoundLedger, doubted: frozenset[str], unjudged: frozenset[str]) -> None:
        self._ledger = ledger
        self._doubted = doubted
        self._unjudged = unjudged

    def refusals(self) -> Refusals:
        """Return sender -> receivers that held its partial sum for poison."""
        refused: Refusals = {}
        for hop in self._ledger.aborted():
            if is_refusal(hop):
                refused.setdefault(hop.sender, set()).add(hop.receiver)
        return refused

    def condemn(self) -> dict[Contributor, str]:
        """Return the devices that are out of the round from here on, and why."""
        refused = self.refusals()
        if not refused:
            return {}
        judges = self._ledger.holders() + self._training()
        needed = accusers_needed(len(self._ledger.members))
        out: dict[Contributor, str] = {}
        for peer in sorted(refused.keys() & set(judges), key=lambda peer: (self._size(peer), peer)):
            left = [judge for judge in judges if judge not in out]
            if len(left) < 2:
                break
            if len(refused[peer]) >= needed or not self._may_be_judged(peer, left, refused):
                out[peer] = f"its partial sum was refused by {', '.join(sorted(by.peer_id for by in refused[peer]))}"
        return out

    def is_doubted(self, peer: Contributor) -> bool:
        if peer.peer_id in self._doubted or peer in self.refusals():
            return True
        # If values do not pass one way, they are to be sent the other.
        return peer.peer_id in self._unjudged and all(is_refusal(hop) for hop in self._ledger.aborted())

    def find_pair(self, sender: Contributor, receiver: Contributor, able: Collection[str]) -> Pair | None:
        """Return sender and receiver that have the suspect of these two judged; None if no judge is there.

        able: peer ids that may receive.
        """
        suspect, partner = sorted((sender, receiver), key=lambda peer: (not self.is_doubted(peer), self._size(peer)))
        refused = self.refusals()
        free = [peer for peer in self._ledger.free() if peer != suspect]
        judges = [peer for peer in free if peer.peer_id in able and self._may_judge(peer, suspect, refused)]
        if judges and (judge := min(judges, key=lambda peer: (self.is_doubted(peer), peer != partner, peer))):
            return None if self.is_doubted(judge) and self._is_judge_to_come(suspect, refused) else (suspect, judge)
        others = [peer for peer in free if self._owes_a_judgement(peer, suspect, refused)]
        return (others[0], suspect) if others and suspect.peer_id in able else None

    def _is_judge_to_come(self, suspect: Contributor, refused: Refusals) -> bool:
        """Return True if an undoubted device that has not refused this one still trains or has a partner."""
        coming = set(self._ledger.holders() + self._training()).difference(
            self._ledger.free(), refused.get(suspect, ())
        )
        return any(peer != suspect and not self.is_doubted(peer) for peer in coming)

    def _may_judge(self, judge: Contributor, suspect: Contributor, refused: Refusals) -> bool:
        """Return True if it has not refused the suspect yet; a doubted one judges no larger means than its own."""
        if judge in refused.get(suspect, ()):
            return False
        return not self.is_doubted(judge) or self._size(judge) >= self._size(suspect)

    def _owes_a_judgement(self, judge: Contributor, suspect: Contributor, refused: Refusals) -> bool:
        """Return True if it refused a mean of more devices than its own, and that one's holder has not judged it."""
        has_refused, is_judged = judge in refused.get(suspect, ()), suspect in refused.get(judge, ())
        return has_refused and not is_judged and self._size(judge) < self._size(suspect)

    def _may_be_judged(self, peer: Contributor, left: list[Contributor], refused: Refusals) -> bool:
        others = [judge for judge in left if judge != peer]
        return any(judge not in refused[peer] or self._owes_a_judgement(judge, peer, refused) for judge in others)

    def _training(self) -> list[Contributor]:
        held = self._ledger.held()
        return [peer for peer in self._ledger.live() if peer not in held]

    def _size(self, peer: Contributor) -> int:
        holding = self._ledger.holding(peer)
        return len(holding.contributors) if holding else 0


def is_refusal(hop: Hop) -> bool:
    """Return True if its receiver held what came for poison."""
    return hop.decision is not None and hop.decision.reason.startswith(SUSPECT)
