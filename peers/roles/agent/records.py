"""The rounds that an agent has closed: each is told once its evaluations are there, and the last are kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mdl.protocol.machine import Effect, RecordRound
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.status_messages import RoundSummary
from peers.roles.agent.round_summary import add_accuracies, add_evaluations

# Kept for observers that ask what they missed; a status with all of them stays far below a message's limit.
_REMEMBERED_ROUNDS = 100


class RoundRecords:
    """See the module. pending: the last round, as long as evaluations are to come. finished: those before it."""

    def __init__(self) -> None:
        self.pending: RoundSummary | None = None
        self.finished: list[RoundSummary] = []
        self.closed = 0

    def note(self, summary: RoundSummary) -> None:
        """A round is closed; the one before it was told by then."""
        self.pending = summary
        self.closed += 1

    def tell(self, reports: Mapping[str, PeerReport], wait: bool) -> list[Effect]:
        """The pending round, once everybody's evaluation is there, or now if it cannot wait. reports: by peer id."""
        if self.pending is None:
            return []
        round_id = self.pending.round
        if wait and any(_is_to_come(report, round_id) for report in reports.values()):
            return []
        summary, _ = add_evaluations(self.pending, reports.values())
        self.pending = None
        summary = add_accuracies(summary, reports)
        self.finished = [*self.finished, summary][-_REMEMBERED_ROUNDS:]
        return [RecordRound(summary)]


def _is_to_come(report: PeerReport, round_id: int) -> bool:
    """A device that may not train does not test either."""
    return not report.away and (report.evaluation is None or report.evaluation.round_id != round_id)
