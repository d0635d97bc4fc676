"""What the agent tells people: the line of metrics.jsonl that ends a round, and the status an observer asks for.

Both tell the schedule: each hop with its times and the policy's reason, and what each device was like meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from mdl.bounds import printable
from mdl.learning.evaluation import Evaluation
from mdl.protocol.messages import (
    MAX_SCHEDULE,
    DeviceRecord,
    Holding,
    HopSummary,
    MemberStatus,
    MeshStatus,
    PeerReport,
    RoundSummary,
    Schedule,
    Staged,
)
from peers.roles.agent.ledger import Hop, HopState, RoundLedger
from peers.roles.membership.members import Member

if TYPE_CHECKING:
    from peers.roles.agent.agent import MobileAgent

# A receiver accepts a little more than this (transport.wire.codec.MAX_HEADER_BYTES): the rest is who says it.
_ROOM_BYTES = 1_000_000
_ENCODE = msgspec.msgpack.Encoder().encode


def summarise_round(
    ledger: RoundLedger,
    result: Holding | Staged,
    marks: dict[str, float],
    digest: bytes,
    applied: list[Member],
    vanished: frozenset[str] = frozenset(),
    cuts: tuple[str, ...] = (),
) -> RoundSummary:
    """Seconds: train until the last delta was ready, aggregate until one held all, broadcast until all had it.

    vanished: who contributed to the round before and was gone when this one was opened: lost too.
    """
    merged = [hop for hop in ledger.hops.values() if hop.state is HopState.MERGED]
    losses = [report.training.loss for report in ledger.reports.values() if report.training]
    size_bytes = applied[0].report.size * 4
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
        bytes=sum(hop.decision.size_bytes for hop in merged if hop.decision) + size_bytes * (len(applied) - 1),
        loss=fmean(losses) if losses else None,
        lost=tuple(sorted({peer.peer_id for peer in ledger.lost} | vanished)),
        digest=digest.hex(),
        schedule=_schedule(ledger),
        devices=_device_records(ledger, applied, marks["closed"]),
        cuts=cuts,
    )


def add_evaluations(summary: RoundSummary, reports: Iterable[PeerReport]) -> tuple[RoundSummary, bool]:
    """Sum the devices' counts for this round's model; also whether everybody's are there.

    Counts over other classes than most devices have are left out: one wrong report must not hold up the mesh.
    """
    wanted = [report.evaluation for report in reports]
    found = [each.evaluation for each in wanted if each and each.round_id == summary.round]
    classes = Counter(_classes(each) for each in found).most_common(1)
    usual = [each for each in found if _classes(each) == classes[0][0] is not None]
    total = sum(usual[1:], usual[0]) if usual else None
    if total and total.n:
        summary = msgspec.structs.replace(summary, accuracy=total.accuracy, macro_f1=total.macro_f1)
    return summary, len(found) == len(wanted)


def mesh_status(
    agent: MobileAgent, policy: str, goal: int, finished: list[RoundSummary], since_round: int, now: float
) -> MeshStatus:
    ledger = agent.ledger
    members = tuple(_member_status(member, ledger, now) for member in agent.members.everyone())
    hops = _schedule(ledger) if ledger else ()
    round_id = ledger.round_id if ledger else max((member.round_id for member in members), default=0)
    new = [summary for summary in finished if summary.round > since_round]
    waiting = f": {agent.waiting_for}" if agent.phase.value == "gathering" and agent.waiting_for else ""
    status = MeshStatus(
        agent.term,
        round_id,
        goal,
        printable(agent.phase.value + waiting),
        printable(policy),
        members,
        hops,
        (),
        agent.me.peer_id,
        devices=_device_records(ledger, agent.members.everyone(), now) if ledger else (),
        elapsed_s=_since(ledger, now) if ledger else 0.0,
        cuts=agent.members.reach.describe(now),
    )
    return msgspec.structs.replace(status, finished=_newest_that_fit(new, _ROOM_BYTES - len(_ENCODE(status))))


def _newest_that_fit(finished: list[RoundSummary], room_bytes: int) -> tuple[RoundSummary, ...]:
    """In order; only the last one tells its schedule, and it does not either where the mesh is too large for that."""
    kept: list[RoundSummary] = []
    for summary in reversed(finished):
        slim = msgspec.structs.replace(summary, schedule=(), devices=())
        told = summary if not kept and len(_ENCODE(summary)) <= room_bytes else slim
        room_bytes -= len(_ENCODE(told))
        if room_bytes < 0:
            break
        kept.append(told)
    return tuple(reversed(kept))


def _classes(evaluation: Evaluation) -> int | None:
    lengths = {
        len(counts) for counts in (evaluation.true_positive, evaluation.false_positive, evaluation.false_negative)
    }
    return lengths.pop() if len(lengths) == 1 else None


def _member_status(member: Member, ledger: RoundLedger | None, now: float) -> MemberStatus:
    holding = ledger.holding(member.contributor) if ledger else None
    report = member.report
    return MemberStatus(
        member.contributor.peer_id,
        member.contributor.incarnation,
        member.alive,
        report.activity,
        report.round_id,
        round(now - member.heard_at, 3),
        theta=holding.theta if holding and holding.sent_hop is None else 0.0,
        resources=report.resources,
        transfer=report.transfer,
        loss=report.training.loss if report.training else None,
        problem=printable(member.problem),
    )


def _schedule(ledger: RoundLedger) -> Schedule:
    """The last hops, as many as a receiver accepts."""
    return tuple(_hop_summary(hop, ledger) for hop in list(ledger.hops.values())[-MAX_SCHEDULE:])


def _hop_summary(hop: Hop, ledger: RoundLedger) -> HopSummary:
    lost = hop.state is HopState.ORDERED and hop.receiver in ledger.lost
    return HopSummary(
        hop.hop_id,
        hop.sender.peer_id,
        hop.receiver.peer_id,
        "lost" if lost else hop.state.value,
        _since(ledger, hop.ordered_at),
        None if hop.decided_at is None else _since(ledger, hop.decided_at),
        printable(hop.reason),
        hop.decision.size_bytes if hop.decision else 0,
        round(hop.decision.seconds, 6) if hop.decision else 0.0,
    )


def _device_records(ledger: RoundLedger, known: Iterable[Member], now: float) -> tuple[DeviceRecord, ...]:
    """All members of the round, by id. known: of these also the link speed and the kind of use are told."""
    books = {member.contributor: member.device for member in known}
    records = []
    for peer in sorted(ledger.members):
        report, ready_at = ledger.reports.get(peer), ledger.ready_at.get(peer)
        resources, book = report.resources if report else None, books.get(peer)
        records.append(
            DeviceRecord(
                peer.peer_id,
                None if ready_at is None else _since(ledger, ready_at),
                book.link_mb_s if book else None,
                resources.battery_percent if resources else None,
                resources.charging if resources else None,
                tuple(
                    (_since(ledger, start), None if end is None else _since(ledger, end))
                    for start, end in ledger.busy.get(peer, ())
                ),
                printable(ledger.lost.get(peer, "")),
                int(book.kind(now)) if book else 0,
                book.merge_mb_s if book else None,
            )
        )
    return tuple(records)


def _since(ledger: RoundLedger, at: float) -> float:
    """Seconds since the round was opened."""
    return round(at - ledger.opened_at, 6)
