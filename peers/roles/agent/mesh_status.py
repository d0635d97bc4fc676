"""The agent's answer to an observer: the members, the open round, and the last rounds as they ended."""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from mdl.bounds import MAX_HEADER_BYTES, first_few, printable
from mdl.peers.roles.agent.aggregation import Attendance
from mdl.peers.roles.agent.conductor import AGGREGATING, BROADCASTING, GATHERING, Conductor, Phase
from mdl.peers.roles.agent.ledger import RoundLedger
from mdl.peers.roles.agent.round_summary import device_records, since_opened, told_schedule
from mdl.peers.roles.membership.members import Distrust, Members, TrainerSeen
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import RoundTold
from mdl.protocol.status_messages import MAX_CUTS, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import Lineage
from mdl.transport.limits import TokenBucket

# Room around a message: the version, and its speaker: an id of at most 64 characters and a number.
_ENVELOPE_BYTES = 256
# The reason of a policy begins with its name. Some say that they wait, which the phase says already.
_POLICY = re.compile(r"[\w.-]+: ")
_WAITS = "waiting: "
_ENCODE = msgspec.msgpack.Encoder().encode


# Answers to one observer: at once, and in a second; a page asks five times a second. Each may take milliseconds.
_ANSWERS, _ANSWERS_A_S = 20, 10.0
# Observers that are remembered.
_MOST_ASKING = 256


class Asking:
    """The budget of each observer that asks for the status: one that asks without end keeps the agent from nothing."""

    def __init__(self) -> None:
        self._of: dict[str, TokenBucket] = {}

    def may(self, peer_id: str, now: float) -> bool:
        """Return True if this observer is to be answered once more."""
        budget = self._of.setdefault(peer_id, TokenBucket(_ANSWERS, _ANSWERS_A_S))
        if len(self._of) > _MOST_ASKING:
            del self._of[next(iter(self._of))]
        return budget.take(now)


class Leader(Protocol):
    """The facts told of an agent; see `mdl.peers.roles.agent.agent.MobileAgent`."""

    me: Contributor
    term: int
    members: Members
    round: Conductor | None
    distrust: Distrust
    unlike: tuple[str, ...]
    attendance: Attendance
    lineage: Lineage

    @property
    def ledger(self) -> RoundLedger | None: ...

    @property
    def phase(self) -> Phase: ...

    @property
    def waiting_for(self) -> str: ...


def mesh_status(
    agent: Leader, policy: str, goal: int, finished: list[RoundSummary], since_round: int, now: float
) -> MeshStatus:
    ledger = agent.ledger
    everyone = agent.members.everyone()
    members = tuple(_member_status(member, ledger, agent.distrust, agent.attendance, now) for member in everyone)
    hops = told_schedule(ledger) if ledger else ()
    round_id = ledger.round_id if ledger else max((member.round_id for member in members), default=0)
    new = [summary for summary in finished if summary.round > since_round]
    waiting = tell_waiting(agent.phase, agent.waiting_for or _tell_training(agent.phase, ledger))
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
        devices=device_records(ledger, agent.members.everyone(), now) if ledger else (),
        elapsed_s=since_opened(ledger, now) if ledger else 0.0,
        cuts=(
            _tell_split(agent.members, agent.lineage, now)
            + agent.members.reach.describe(now)
            + _tell_unheard(agent.members)
        )[:MAX_CUTS],
        doubts=agent.distrust.doubts(agent.members.everyone(), round_id),
        unlike=agent.unlike,
    )
    if agent.round and (plan := agent.round.plan):
        status = msgspec.structs.replace(
            status,
            phase=printable("exchanging segments" + waiting) if agent.phase is BROADCASTING else status.phase,
            shares=plan.owns,
            plan=printable(plan.reason),
            bound_s=round(plan.bound_s, 6),
            exchanging_s=round(agent.round.marks.get("closing", now) - agent.round.marks["reduced"], 6),
        )
    room_bytes = MAX_HEADER_BYTES - _ENVELOPE_BYTES - len(_ENCODE(status))
    return msgspec.structs.replace(status, finished=_newest_that_fit(new, room_bytes))


def tell_waiting(phase: Phase, reason: str) -> str:
    """Return the words after the phase's name: a sentence after a colon, or what the phase waits for."""
    if not reason:
        return ""
    if phase is GATHERING or _POLICY.match(reason):
        return f": {reason.removeprefix(_WAITS)}"
    return f", waits for {reason}"


def _tell_training(phase: Phase, ledger: RoundLedger | None) -> str:
    """Return the devices that train, in words: until two can be paired, the policy is not asked for a reason."""
    if ledger is None or phase is not AGGREGATING:
        return ""
    training = sorted(peer.peer_id for peer in ledger.live() if peer not in ledger.ready_at)
    return f"{first_few(training)} to train" if training else ""


def _newest_that_fit(finished: list[RoundSummary], room_bytes: int) -> tuple[RoundSummary, ...]:
    """Return the newest rounds that fit, in order.

    Only the last one tells its schedule, devices and confusion, or none where the mesh is too large.
    """
    kept: list[RoundSummary] = []
    for summary in reversed(finished):
        told = _without_details(summary) if kept else _shorten(summary, room_bytes)
        room_bytes -= len(_ENCODE(told))
        if room_bytes < 0:
            break
        kept.append(told)
    return tuple(reversed(kept))


def tell_round(summary: RoundSummary, term: int) -> RoundTold:
    """Return the message that brings a round's line to all devices. term: the agent's."""
    return RoundTold(term, summary.round, _shorten(summary, MAX_HEADER_BYTES - _ENVELOPE_BYTES))


def _shorten(summary: RoundSummary, room_bytes: int) -> RoundSummary:
    return summary if len(_ENCODE(summary)) <= room_bytes else _without_details(summary)


def _without_details(summary: RoundSummary) -> RoundSummary:
    return msgspec.structs.replace(summary, schedule=(), devices=(), confusion=())


def _member_status(
    member: TrainerSeen, ledger: RoundLedger | None, distrust: Distrust, attendance: Attendance, now: float
) -> MemberStatus:
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
        problem=printable(member.problem or _why_idle(member, distrust)),
        link_mb_s=member.device.link_mb_s,
        merge_mb_s=member.device.merge_mb_s,
        bugs=report.bugs,
        took_part=attendance.took_part(member.peer_id),
        of_rounds=attendance.rounds,
    )


def _tell_split(members: Members, lineage: Lineage, now: float) -> tuple[str, ...]:
    """Return, in words, the members cut off from this side without having left, and for how long."""
    away = [member for member in members.everyone() if not (member.alive or member.has_left or member.problem)]
    if not away:
        return ()
    told = first_few([f"{member.peer_id} for {now - member.heard_at:.0f} s" for member in away])
    is_fork = bool(lineage) and any(member.report.lineage != lineage for member in away)
    alone = f"; this side goes on by itself since round {lineage[-1].round_id}" if is_fork else ""
    return (printable(f"not heard: {told}{alone}"),)


def _tell_unheard(members: Members) -> tuple[str, ...]:
    """Return, in words, the devices that do not hear others, since a message met a bug there."""
    return tuple(
        printable(f"{who} does not hear {first_few(member.report.unheard)} for a while: a message met a bug there")
        for member in members.everyone()
        if member.alive and member.report.unheard
        for who in [member.contributor.peer_id]
    )


def _why_idle(member: TrainerSeen, distrust: Distrust) -> str:
    if reason := distrust.tell(member.contributor):
        return f"quarantined: {reason}"
    return f"paused: {member.report.away}" if member.report.away else ""
