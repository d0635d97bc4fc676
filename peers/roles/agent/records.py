"""The rounds that an agent has closed: each is told once its evaluations are there, and the last are kept. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mdl.peers.roles.agent.round_summary import add_evaluations, judgements, usual_evaluations
from mdl.peers.roles.membership.members import Members
from mdl.peers.roles.run_end import Ending
from mdl.protocol.machine import Effect, RecordRound
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.status_messages import RoundSummary

# Kept for observers that ask what they missed; a status with all of them stays far below a message's limit.
_REMEMBERED_ROUNDS = 100


class RoundRecords:
    """See the module. pending: the last round, as long as evaluations are to come. finished: those before it.

    ending: hears of each round that is told. send: brings its line to the other devices.
    """

    def __init__(self, members: Members, ending: Ending, send: Callable[[RoundSummary], list[Effect]]) -> None:
        self.pending: RoundSummary | None = None
        self.finished: list[RoundSummary] = []
        self.closed = 0
        self._members, self._ending, self._send = members, ending, send
        self._noted_at = 0.0

    def note(self, summary: RoundSummary, now: float) -> None:
        """Keep a closed round as the pending one; the one before it was told by then."""
        self.pending, self._noted_at = summary, now
        self.closed += 1

    def hear(self, report: PeerReport) -> list[Effect]:
        """Tell the pending round at once if its evaluations are all there, not at the end of the next one."""
        if self.pending is None or report.evaluation is None or report.evaluation.round_id != self.pending.round:
            return []
        return self.tell(wait=True)

    def wait(self, now: float, longest_s: float) -> list[Effect]:
        """Tell the pending round once its tests are there, or if it was closed longer ago than `longest_s`."""
        return self.tell(wait=now - self._noted_at < longest_s)

    def tell(self, wait: bool) -> list[Effect]:
        """Tell the pending round, once everybody's evaluation is there, or now if it cannot wait."""
        if self.pending is None:
            return []
        reports, round_id = {member.peer_id: member.report for member in self._members.alive()}, self.pending.round
        if wait and any(_is_to_come(report, round_id) for report in reports.values()):
            return []
        evaluations = usual_evaluations(round_id, reports)
        summary = add_evaluations(self.pending, evaluations)
        self.pending = None
        self.finished = [*self.finished, summary][-_REMEMBERED_ROUNDS:]
        self._ending.hear(summary, judgements(summary, evaluations))
        return [RecordRound(summary), *self._send(summary)]


def _is_to_come(report: PeerReport, round_id: int) -> bool:
    """Return True if this device's evaluation may come: a device that may not train does not test either."""
    return not report.away and (report.evaluation is None or report.evaluation.round_id != round_id)
