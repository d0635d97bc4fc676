"""The reports of a device: its whole state each time, so that a listener that missed ten knows all after one."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from mdl.bounds import MAX_LOSS, printable, within
from mdl.channels import Told
from mdl.peers.roles.run_end import Taken
from mdl.peers.roles.trainer.guard import Guard
from mdl.peers.roles.trainer.model_state import Standing
from mdl.peers.roles.trainer.round_state import Part
from mdl.peers.roles.trainer.voice import Voice
from mdl.protocol.checksum import add_up
from mdl.protocol.machine import Evaluated, ResourcesSampled
from mdl.protocol.round_messages import ATTEMPTS_TOLD, MOST_UNHEARD, MeshFinished, PeerReport, RoundOpened, exchanging
from mdl.protocol.vocabulary import Activity, Lineage, ResourceState, RoundEvaluation, TrainingReport

logger = logging.getLogger(__name__)

# Looked up once: see peers/roles/agent/phase.py.
_WAITING, _TRAINING, _LEFT = Activity.WAITING, Activity.TRAINING, Activity.LEFT


class Reports:
    """See the module. schema_hash, model: identity of the model, and a line about it for people.

    channels: description of its windows' channels. taken: its knowledge of the run. has_left: it takes part no more.
    away: the reason why it may not train now.
    """

    def __init__(
        self, voice: Voice, standing: Standing, schema_hash: str, model: str, guard: Guard, channels: Told = ()
    ) -> None:
        self.schema_hash = schema_hash
        self.model = printable(model)
        self.taken = Taken()
        self.has_left = False
        self.away = ""
        self._voice = voice
        self._standing = standing
        self._guard = guard
        self._channels = channels
        self._unlike: frozenset[str] = frozenset()
        self._resources: ResourceState | None = None
        self._sent_bytes = self._bugs = 0
        self._unheard: tuple[str, ...] = ()
        self._evaluation: RoundEvaluation | None = None
        # (round, attempt) -> its lineage, None once its result has been applied here.
        self._entered: dict[tuple[int, int], Lineage | None] = {}
        self._sequence = 0

    def note_resources(self, sampled: ResourcesSampled) -> None:
        self._resources, self._sent_bytes = sampled.resources, sampled.sent_bytes
        self._bugs, self._unheard = sampled.bugs, sampled.unheard[:MOST_UNHEARD]

    def note_evaluation(self, done: Evaluated) -> None:
        most = MAX_LOSS * done.evaluation.n
        loss_sum = within(done.evaluation.loss_sum, -most, most)  # nobody would read it if it diverged
        self._evaluation = RoundEvaluation(done.round_id, replace(done.evaluation, loss_sum=loss_sum))
        if self.waits_for_test(done.round_id):
            self._voice.has_changed = True

    def waits_for_test(self, round_id: int) -> bool:
        """Return True if this round's test may end the run; else it can wait."""
        return round_id == self.taken.goal or self.taken.course is not None

    def note_opened(self, opened: RoundOpened, now: float) -> None:
        self.taken = Taken(opened.planned_rounds, opened.course, now)
        for line in opened.unlike:
            if line not in self._unlike:
                logger.warning("%s", line)
        self._unlike = frozenset(opened.unlike)

    def hear_end(self, end: MeshFinished) -> None:
        goal, round_id = self.taken.goal, self._standing.round_id
        self.taken = replace(self.taken, course=end.course or self.taken.course, ended_by=end.reason)
        why = f": {end.reason}" if end.reason else f" of {goal}" * bool(goal)
        logger.info("the agent ends the mesh after round %d%s", round_id, why)

    def note_entry(self, round_id: int, attempt: int) -> None:
        self._entered[round_id, attempt] = self._standing.lineage
        if len(self._entered) > ATTEMPTS_TOLD:
            over = (entry for entry, lineage in self._entered.items() if lineage is None)
            del self._entered[next(over, next(iter(self._entered)))]

    def note_applied(self, round_id: int) -> None:
        """Mark attempts at this round as over: their place is needed for rounds that others may still have open."""
        for entry, lineage in self._entered.items():
            if entry[0] == round_id and lineage == self._standing.lineage:
                self._entered[entry] = None

    def has_entered(self, round_id: int, attempt: int) -> bool:
        """Return True if it takes part in this attempt at a round, or has left it."""
        return (round_id, attempt) in self._entered

    def make(
        self, part: Part | None, training: TrainingReport | None, theta: float, term: int, agent: str, now: float
    ) -> PeerReport:
        """Return the next report. training: of the open round. theta: weight of its next delta.

        term, agent: the ones that this device obeys.
        """
        standing, voice = self._standing, self._voice
        has_staged = part is not None and part.spread.staged is not None
        self._sequence += 1
        voice.has_changed, voice.report_at = False, now + voice.report_s
        # In steps: Python makes a dictionary of more than 15 names of one call, which costs more than all the rest.
        report = PeerReport(
            sequence=self._sequence,
            term=term,
            agent=agent,
            round_id=standing.round_id,
            digest=standing.digest,
            lineage=standing.lineage,
            base=standing.base,
            votes=standing.votes(has_staged),
            goal=self.taken.goal,
            schema_hash=self.schema_hash,
            model=self.model,
            size=standing.parameters.size,
            activity=self._activity(part),
            open_round=part.round_id if part else 0,
        )
        report = replace(
            report,
            entered=tuple(attempt for _, attempt in self._entered),
            forgotten=standing.forgotten(),
            resources=self._resources,
            training=training,
            evaluation=self._evaluation,
            transfer=voice.transfer,
            sent_bytes=self._sent_bytes,
            bugs=self._bugs,
            unheard=self._unheard,
            away=self.away,
            accused=self._guard.accusations(),
            theta=theta,
            workers=standing.count_workers(),
            channels=self._channels,
            link_mb_s=voice.link_mb_s,
            accepted=None if has_staged or not report.votes else standing.recall(),
        )
        return _add_round(report, part) if part else report

    def _activity(self, part: Part | None) -> Activity:
        if self.has_left:
            return _LEFT
        if part is None:
            return _WAITING
        activity = part.activity()
        return _WAITING if activity is _TRAINING and self.away else activity  # it may not train for the round


def _add_round(report: PeerReport, part: Part) -> PeerReport:
    exchange = part.spread.exchange
    return replace(
        report,
        open_term=part.attempt,
        open_as=part.announced,
        room=part.room,
        incoming=part.report_incoming(),
        holdings=part.report_holdings(),
        hops=tuple(part.decisions.values()),
        staged=part.spread.report(),
        exchange=exchanging(exchange.order) if exchange else None,
        checksum=add_up(part.checksums) if part.checksums else None,
        lacking=exchange.lacking() if exchange and not exchange.is_whole else (),
    )
