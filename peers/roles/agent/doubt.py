"""The doubts of a mesh about deltas: looks before anything is merged, refused sums, and the memory of both. Pure.

In an inspected round several devices look at each own delta before anything is merged (`Looks`). A receiver of a
partial sum sees too few to tell a lie from other data, and may lie itself. A look is a hop that its receiver aborts
once it has measured what came: nothing is merged, and the sender holds again. w(t) draws the judges of each device, so
that nobody chooses its own; `mdl/defence/limits.py` decides by their words.

A device that merges before it gives shows no more than a mean of several, in which a lie of its own is not seen. So it
gives first in the next round, to those that were judged in this one (`JudgedDevices`).

A receiver may lie, too: others judge a partial sum that one refuses, until more than a third of the members have
refused it (`accusers_needed`). Then its sender is out of the round. If two refuse each other, the one with more devices
in its mean goes on, since these have judged one another. Somebody is always left (`SecondOpinion`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import blake2b

from mdl.defence.limits import FEWEST, Limits, MeshKnowledge, Word, accusers_needed, find_odd, greatest_length
from mdl.peers.roles.agent.ledger import LOOKED, MERGED, Hop, RoundLedger
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import SUSPECT
from mdl.protocol.vocabulary import Holding, Staged

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


# Devices to one that judges them, in a mesh's first round.
_TO_ONE_JUDGE = 10
# Rounds from one inspection to the next. A device that stood out is left out until then.
EVERY = 20


@dataclass(frozen=True)
class Judging:
    """Doubts about one round.

    doubted: peer ids with work that a device has refused lately. unjudged: peer ids with an own delta that nobody took
    alone in the round before. looks: None if it is not inspected. least_angle: as in `Limits`.
    """

    ledger: RoundLedger
    is_on: bool = False
    doubted: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()
    looks: Looks | None = None
    least_angle: float = Limits().angle

    @property
    def limits(self) -> Limits:
        """The limits that are known at this moment: with each device that has trained."""
        if not self.is_on:
            return Limits()
        reports = [self.ledger.reports.get(peer) for peer in self.ledger.members]
        lengths = [report.training.length for report in reports if report and report.training]
        return Limits(self.least_angle, greatest_length([length for length in lengths if length]))


@dataclass
class JudgedDevices:
    """See the module. is_on: devices judge. peer_ids: devices that had their own delta taken, alone, in the last round.

    known: measurements of all. odd: peer id -> why it stood out at the last inspection. inspected: the round of that.
    """

    is_on: bool
    peer_ids: frozenset[str] = frozenset()
    known: MeshKnowledge = field(default_factory=MeshKnowledge)
    odd: dict[str, str] = field(default_factory=dict)
    inspected: int | None = None

    def is_due(self, round_id: int) -> bool:
        """Return True if this round is to be inspected: the first one of an agent, and then now and again."""
        return self.is_on and (self.inspected is None or round_id >= self.inspected + EVERY)

    def left_out(self, round_id: int) -> dict[str, str]:
        """Return peer id -> why the last inspection leaves it out of this round."""
        return {} if self.is_due(round_id) else self.odd

    def prepare(self, ledger: RoundLedger, digest: bytes, doubted: frozenset[str]) -> Judging:
        """Return the judging of the round that is announced. digest: of w(t).

        If nobody was judged before, all but a few give first; w(t) draws these few. They are not judged then, and the
        others are, one after the other, which takes longer than in pairs.
        """
        if not self.is_on:
            return Judging(ledger, doubted=doubted)
        members = {peer.peer_id for peer in ledger.members}
        drawn = sorted(members, key=lambda peer_id: blake2b(digest + peer_id.encode(), digest_size=8).digest())
        unjudged = frozenset(members - (self.peer_ids or set(drawn[: max(1, len(drawn) // _TO_ONE_JUDGE)])))
        is_due = self.is_due(ledger.round_id) and len(members) >= FEWEST
        looks = Looks(ledger, digest, self.odd) if is_due else None
        return Judging(ledger, True, doubted, unjudged, looks, self.known.least_angle(ledger.round_id))

    def note(self, judging: Judging, result: Holding | Staged | None) -> None:
        """Note the devices of a closed round that gave before they merged; in segments, everybody.

        A device that stands out is not noted: it was taken before enough was known to refuse it.
        """
        ledger = judging.ledger
        if not (self.is_on and result):
            return
        if judging.looks and judging.looks.is_over:
            self.inspected, self.odd = ledger.round_id, judging.looks.odd
        decisions = [hop.decision for hop in ledger.hops.values() if hop.decision]
        odd = self.known.note(ledger.round_id, {each.sender.peer_id: each.seen for each in decisions if each.seen})
        merged = [hop for hop in ledger.hops.values() if hop.state is MERGED]
        gave = {hop.sender for hop in merged}.difference(hop.receiver for hop in merged)
        taken = {peer.peer_id for peer in result.contributors if peer in gave or not merged}
        self.peer_ids = frozenset(taken - odd)


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
