"""The line of metrics.jsonl that ends a round, and the last rounds that an agent has closed. Pure.

It tells the seconds of each phase, each hop with its times and the policy's reason, and the state of each device
meanwhile. A round is told once its evaluations are there (`RoundRecords`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

import msgspec

from mdl.bounds import MAX_COUNT, printable
from mdl.peers.roles.agent.ledger import Hop, HopState, RoundLedger
from mdl.peers.roles.membership.members import Members, TrainerSeen
from mdl.peers.roles.run_end import Ending
from mdl.protocol.counts import Evaluation, Judgements, ModelJudgement, is_confusion_of, is_sound, judge
from mdl.protocol.machine import Effect, RecordRound
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.segments import share_counted
from mdl.protocol.status_messages import MAX_SCHEDULE, DeviceRecord, HopSummary, RoundSummary, Schedule
from mdl.protocol.vocabulary import Holding, Partials, Staged
from mdl.scheduler.policies.segment_plan import SegmentPlan


def summarise_round(
    ledger: RoundLedger,
    result: Holding | Staged,
    marks: dict[str, float],
    digest: bytes,
    applied: list[TrainerSeen],
    vanished: frozenset[str] = frozenset(),
    cuts: tuple[str, ...] = (),
    plan: SegmentPlan | None = None,
    partial: Partials = (),
    why_hops: str = "",
    agent: str = "",
) -> RoundSummary:
    """Return the line of a closed round.

    Seconds: train until the last delta was ready, aggregate until one held all, broadcast until all had it.
    vanished: devices that contributed to the round before and were gone when this one was opened: lost too. plan: the
    segments that the result came about in, if it did. partial: devices that are in some of them only. why_hops: why it
    did not. agent: peer id of the device that leads.
    """
    merged = [hop for hop in ledger.hops.values() if hop.state is HopState.MERGED]
    losses = [report.training.loss for report in ledger.reports.values() if report.training]
    size = applied[0].report.size
    vector_bytes = plan.vector_bytes(size) if plan else 4 * size
    sent = [hop.decision.size_bytes for hop in merged if hop.decision]
    sent = [vector_bytes] * (len(result.contributors) - 1) if plan else sent  # each piece, but an owner's own
    ready_at = max(ledger.ready_at.values(), default=ledger.opened_at)
    seconds = {
        "train": ready_at - ledger.opened_at,
        "aggregate": max(0.0, marks["reduced"] - ready_at),
        "broadcast": marks["closing"] - marks["reduced"],
        "apply": marks["closed"] - marks["closing"],
        "total": marks["closed"] - ledger.opened_at,
    }
    return RoundSummary(
        round=ledger.round_id,
        theta=result.theta,
        contributors=tuple(sorted(peer.peer_id for peer in result.contributors)),
        hops=tuple((hop.sender.peer_id, hop.receiver.peer_id) for hop in merged),
        seconds={phase: round(value, 6) for phase, value in seconds.items()},
        bytes=sum(sent) + vector_bytes * (len(applied) - 1),
        loss=fmean(losses) if losses else None,
        lost=tuple(sorted({peer.peer_id for peer in ledger.lost} | vanished)),
        digest=digest.hex(),
        schedule=told_schedule(ledger),
        devices=device_records(ledger, applied, marks["closed"]),
        cuts=cuts,
        shares=plan.owns if plan else {},
        plan=printable(plan.reason if plan else why_hops),
        bound_s=round(plan.bound_s, 6) if plan else 0.0,
        partial={each.contributor.peer_id: round(share_counted(each, size), 6) for each in partial},
        size=size,
        agent=agent,
        clipped={
            peer.peer_id: report.training.clipped
            for peer, report in sorted(ledger.reports.items())
            if peer in result.contributors and report.training and report.training.clipped
        },
    )


def usual_evaluations(round_id: int, reports: Mapping[str, PeerReport]) -> dict[str, Evaluation]:
    """Return the devices' counts for this round's model. reports: by peer id.

    Counts over other classes than most devices have are left out: one wrong report must not hold up the mesh.
    """
    wanted = {name: report.evaluation for name, report in reports.items()}
    found = {name: each.evaluation for name, each in wanted.items() if each and each.round_id == round_id}
    classes = Counter(_kind(each) for each in found.values()).most_common(1)
    kept = {name: each for name, each in found.items() if _kind(each) == classes[0][0] is not None}
    return {name: _with_right_confusion(each) for name, each in kept.items()}


def add_evaluations(summary: RoundSummary, evaluations: Mapping[str, Evaluation]) -> RoundSummary:
    """Add the sum of the devices' counts (`usual_evaluations`), and beside each device its own score."""
    if not evaluations:
        return summary
    first, *others = evaluations.values()
    total = sum(others, first)
    told = tuple(_with_score(each, evaluations.get(each.peer_id)) for each in summary.devices)
    return msgspec.structs.replace(summary, devices=told, **(_measures(total) if total.n else {}))


def judgements(summary: RoundSummary, evaluations: Mapping[str, Evaluation]) -> Judgements:
    """Return each device's judgement of the round's model: by its test windows, or by training loss if nobody tests."""
    tested = tuple(judge(name, each) for name, each in evaluations.items() if each.n)
    return tested or tuple(
        ModelJudgement(each.peer_id, 1, loss=each.loss) for each in summary.devices if each.loss is not None
    )


def _measures(total: Evaluation) -> dict[str, Any]:
    if total.targets == "numbers":
        return {"fits": total.fits}
    if total.targets == "labels":
        return {"labelling": total.labelling, "macro_f1": total.macro_f1}
    confusion = total.confusion if total.n <= MAX_COUNT else ()  # else nobody could read the line
    return {"accuracy": total.accuracy, "macro_f1": total.macro_f1, "confusion": confusion}


def _with_right_confusion(evaluation: Evaluation) -> Evaluation:
    """Leave out a matrix that contradicts the counts beside it."""
    return evaluation if is_confusion_of(evaluation) else msgspec.structs.replace(evaluation, confusion=())


def _with_score(device: DeviceRecord, own: Evaluation | None) -> DeviceRecord:
    if own is None or not own.n:
        return device
    return msgspec.structs.replace(device, **{"accuracy" if own.targets == "classes" else "score": own.score})


def _kind(evaluation: Evaluation) -> tuple[str, int] | None:
    """Return the kind of targets, and their number; None if the counts contradict themselves."""
    lengths = {
        len(counts) for counts in (evaluation.true_positive, evaluation.false_positive, evaluation.false_negative)
    }
    return (evaluation.targets, lengths.pop()) if len(lengths) == 1 and is_sound(evaluation) else None


def told_schedule(ledger: RoundLedger) -> Schedule:
    """Return the last hops, as many as a receiver accepts."""
    return tuple(_hop_summary(hop, ledger) for hop in list(ledger.hops.values())[-MAX_SCHEDULE:])


def _hop_summary(hop: Hop, ledger: RoundLedger) -> HopSummary:
    lost = hop.state is HopState.ORDERED and hop.receiver in ledger.lost
    return HopSummary(
        hop.hop_id,
        hop.sender.peer_id,
        hop.receiver.peer_id,
        "lost" if lost else hop.state.value,
        since_opened(ledger, hop.ordered_at),
        None if hop.decided_at is None else since_opened(ledger, hop.decided_at),
        printable(hop.reason),
        hop.decision.size_bytes if hop.decision else 0,
        round(hop.decision.seconds, 6) if hop.decision else 0.0,
    )


def device_records(ledger: RoundLedger, known: Iterable[TrainerSeen], now: float) -> tuple[DeviceRecord, ...]:
    """Return the records of all members, by id. known: of these the link speed and the kind of use are told, too."""
    books = {member.contributor: member.device for member in known}
    records = []
    for peer in sorted(ledger.members):
        report, ready_at = ledger.reports.get(peer), ledger.ready_at.get(peer)
        resources, book = report.resources if report else None, books.get(peer)
        records.append(
            DeviceRecord(
                peer.peer_id,
                None if ready_at is None else since_opened(ledger, ready_at),
                book.link_mb_s if book else None,
                resources.battery_percent if resources else None,
                resources.charging if resources else None,
                tuple(
                    (since_opened(ledger, start), None if end is None else since_opened(ledger, end))
                    for start, end in ledger.busy.get(peer, ())
                ),
                printable(ledger.lost.get(peer, "")),
                int(book.kind(now)) if book else 0,
                book.merge_mb_s if book else None,
                report.training.loss if report and report.training else None,
            )
        )
    return tuple(records)


def since_opened(ledger: RoundLedger, at: float) -> float:
    """Return the seconds since the round was opened."""
    return round(at - ledger.opened_at, 6)


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
