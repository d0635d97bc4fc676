"""The agent's memory of the judging in one round, for the next one. Pure.

A device that merges before it gives shows no more than a mean of several, in which a lie of its own is not seen. So it
gives first in the next round, to those that were judged in this one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from mdl.defence.inspection import FEWEST
from mdl.defence.limits import Known, Limits, greatest_length
from mdl.peers.roles.agent.doubt.looks import Looks
from mdl.peers.roles.agent.ledger import MERGED, RoundLedger
from mdl.protocol.vocabulary import Holding, Staged

# Devices to one that judges them, in a mesh's first round.
_TO_ONE_JUDGE = 10
# Rounds from one inspection to the next. A device that stood out is left out until then.
EVERY = 20


@dataclass(frozen=True)
class Judging:
    """Doubts about one round.

    doubted: peer ids with work that a device has refused lately. disputed: peer ids that are said to have given another
    result than others have, and those that say so. unjudged: peer ids with an own delta that nobody took alone in the
    round before. looks: None if it is not inspected. least_angle: as in `Limits`.
    """

    ledger: RoundLedger
    is_on: bool = False
    doubted: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()
    looks: Looks | None = None
    least_angle: float = Limits().angle
    disputed: frozenset[str] = frozenset()

    @property
    def limits(self) -> Limits:
        """The limits that are known at this moment: with each device that has trained."""
        if not self.is_on:
            return Limits()
        reports = [self.ledger.reports.get(peer) for peer in self.ledger.members]
        lengths = [report.training.length for report in reports if report and report.training]
        return Limits(self.least_angle, greatest_length([length for length in lengths if length]))


@dataclass
class Judged:
    """See the module. is_on: devices judge. peer_ids: devices that had their own delta taken, alone, in the last round.

    known: measurements of all. odd: peer id -> why it stood out at the last inspection. inspected: the round of that.
    """

    is_on: bool
    peer_ids: frozenset[str] = frozenset()
    known: Known = field(default_factory=Known)
    odd: dict[str, str] = field(default_factory=dict)
    inspected: int | None = None

    def is_due(self, round_id: int) -> bool:
        """Return True if this round is to be inspected: the first one of an agent, and then now and again."""
        return self.is_on and (self.inspected is None or round_id >= self.inspected + EVERY)

    def left_out(self, round_id: int) -> dict[str, str]:
        """Return peer id -> why the last inspection leaves it out of this round."""
        return {} if self.is_due(round_id) else self.odd

    def prepare(
        self, ledger: RoundLedger, digest: bytes, doubted: frozenset[str], disputed: frozenset[str] = frozenset()
    ) -> Judging:
        """Return the judging of the round that is announced. digest: of w(t).

        If nobody was judged before, all but a few give first; w(t) draws these few. They are not judged then, and the
        others are, one after the other, which takes longer than in pairs.
        """
        if not self.is_on:
            return Judging(ledger, doubted=doubted, disputed=disputed)
        members = {peer.peer_id for peer in ledger.members}
        drawn = sorted(members, key=lambda peer_id: blake2b(digest + peer_id.encode(), digest_size=8).digest())
        unjudged = frozenset(members - (self.peer_ids or set(drawn[: max(1, len(drawn) // _TO_ONE_JUDGE)])))
        is_due = self.is_due(ledger.round_id) and len(members) >= FEWEST
        looks = Looks(ledger, digest, self.odd) if is_due else None
        return Judging(ledger, True, doubted, unjudged, looks, self.known.least_angle(ledger.round_id), disputed)

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
