"""Makes the snapshot of a mesh from what an observer was told. Pure: the same input gives the same snapshot.

A part of a finished round or cycle is made once and is the same object from then on (`Taker`), so that a mesh of a
thousand rounds costs no more to look at than a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mdl.bounds import first_few
from mdl.errors import MdlError
from mdl.peers.view.snapshot import (
    SCHEMA_VERSION,
    ChartPart,
    CloudPart,
    CyclePart,
    DevicePart,
    ExchangePart,
    FitPart,
    HopPart,
    LabellingPart,
    LearningPart,
    MeshPart,
    RoundPart,
    RoundPoint,
    SchedulePart,
    Snapshot,
    SpanPart,
    State,
)
from mdl.protocol.counts import MEASURES
from mdl.protocol.status_messages import LEFT_OUT, DeviceRecord, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import PeerInfo, ResourceState, Role
from mdl.scheduler.explain.chart import Chart, Span, SpanKind
from mdl.scheduler.explain.recorded_round import chart_real, finished_round, live_round
from mdl.task import Targets
from mdl.transport.trust.words import fingerprint

# An agent that has said nothing for so long counts as silent: it answers ten times a second.
SILENT_S = 3.0
# The most cycles shown; a cloud has one in minutes.
_CYCLES_KEPT = 200
# A problem that begins with one of these words and a colon names the state; any other is a reason for refusal.
_PROBLEMS: dict[str, State] = {"paused": "paused", "revoked": "revoked", "quarantined": "quarantined"}
# A field of the same name is taken unchanged: from the agent's word, the device's own report, or its introduction.
_MEMBER, _RESOURCES, _INTRODUCTION = (
    [name for name in kind.__struct_fields__ if name in DevicePart.__struct_fields__ and name != "role"]
    for kind in (MemberStatus, ResourceState, PeerInfo)
)


class Told(msgspec.Struct, frozen=True):
    """Everything that one member has been told, by whatever means.

    mesh: its name.
    source: as in Snapshot.
    status: the last one heard; None: none yet.
    heard_s_ago: seconds since then.
    rounds: the finished ones, oldest first.
    peers: those that discovery has introduced, by peer id.
    cycles: of a cloud, by version, as its lines are; None: it is not known whether there is one.
    alone: as in LearningPart.
    central: likewise.
    pages: as in MeshPart.
    policies: as in SchedulePart.
    classes: as in LearningPart.
    revoked: peer ids of devices that an owner has locked out -> why, in words; "": no reason was given.
    problem: why nothing is heard, in words.
    """

    mesh: str
    source: str = ""
    status: MeshStatus | None = None
    heard_s_ago: float = 0.0
    rounds: Sequence[RoundSummary] = ()
    peers: Mapping[str, PeerInfo] = {}
    cycles: Mapping[int, CyclePart] | None = None
    alone: float | None = None
    central: float | None = None
    pages: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    revoked: Mapping[str, str] = {}
    problem: str = ""


class Taker:
    """Makes snapshots, and keeps the parts of finished rounds."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[RoundSummary, RoundPoint]] = {}
        self._last: tuple[RoundSummary, ChartPart | None] | None = None

    def take(self, told: Told) -> Snapshot:
        points = {
            str(summary.round): self._point(summary, before)
            for before, summary in zip([None, *told.rounds], told.rounds, strict=False)
        }
        kept = {summary.round for summary in told.rounds}
        self._points = {number: known for number, known in self._points.items() if number in kept}
        playable = tuple(summary.round for summary in told.rounds if summary.devices)
        return Snapshot(
            SCHEMA_VERSION,
            told.source,
            _mesh(told),
            self._round(told.status, told.rounds),
            _learning(points, told),
            SchedulePart(playable, told.policies),
            _cloud(told.cycles),
        )

    def _round(self, status: MeshStatus | None, rounds: Sequence[RoundSummary]) -> RoundPart | None:
        last = self._last_chart(rounds)
        if status is None:
            return RoundPart(rounds[-1].round, None, "finished", False, last) if rounds else None
        shown = (status.round_id, status.rounds or None, status.phase)
        return RoundPart(*shown, True, _live_chart(status), last) if status.devices else RoundPart(*shown, False, last)

    def _last_chart(self, rounds: Sequence[RoundSummary]) -> ChartPart | None:
        """Return the chart of the last finished round that tells its schedule."""
        found = next((summary for summary in reversed(rounds) if summary.devices), None)
        if found is None:
            return None
        if self._last is None or self._last[0] is not found:
            self._last = found, _finished_chart(found)
        return self._last[1]

    def _point(self, summary: RoundSummary, before: RoundSummary | None) -> RoundPoint:
        known = self._points.get(summary.round)
        if known is None or known[0] is not summary:
            self._points[summary.round] = known = summary, _make_point(summary, before)
        return known[1]


def take_snapshot(told: Told) -> Snapshot:
    """Return the whole snapshot of what was told."""
    return Taker().take(told)


def chart_part(chart: Chart, end_s: float | None = None) -> ChartPart:
    """Return the chart as shown. end_s: now, for an open round: spans that go on until then have no end yet."""
    rows = {row.device: tuple(_span(span, end_s) for span in row.spans) for row in chart.rows}
    hops = {
        str(hop.number): HopPart(
            *(hop.sender, hop.receiver, hop.outcome, hop.start_s, hop.sent_s, hop.end_s, hop.reason)
        )
        for hop in chart.hops
    }
    exchange = None
    if found := chart.exchange:
        exchange = ExchangePart(found.plan, found.owns, found.start_s, found.end_s, found.bound_s or None)
    return ChartPart(chart.title, chart.start_s, chart.end_s, chart.makespan_s, rows, hops, exchange)


def _span(span: Span, end_s: float | None) -> SpanPart:
    goes_on = end_s is not None and span.end_s >= end_s and span.kind not in (SpanKind.DONE, SpanKind.LOST)
    return SpanPart(span.kind.value, span.start_s, None if goes_on else span.end_s, span.partner)


def _mesh(told: Told) -> MeshPart:
    status = told.status
    if status is None:
        devices = dict(_introduced(told.peers, "")) | _revoked(told.revoked, ())
        return MeshPart(told.mesh, told=told.problem or "nobody leads yet", devices=devices, pages=told.pages)
    silent = told.heard_s_ago >= SILENT_S
    newest = max((member.round_id for member in status.members), default=0)
    known = {
        member.peer_id: _device(member, status, silent, newest, told.peers.get(member.peer_id))
        for member in status.members
    }
    known |= _revoked(told.revoked, [member.peer_id for member in status.members if member.alive])
    rest = {name: part for name, part in _introduced(told.peers, status.agent) if name not in known}
    text = f"no agent was heard for {told.heard_s_ago:.0f} s; it was {status.agent}" if silent else status.phase
    return MeshPart(
        *(told.mesh, "" if silent else status.agent, status.term, told.problem or text, status.policy),
        dict(sorted((known | rest).items())),
        (*status.cuts, *status.doubts, *status.unlike),
        told.pages,
    )


def _revoked(revoked: Mapping[str, str], alive: Collection[str]) -> dict[str, DevicePart]:
    """Return the revoked devices. alive: peers that are heard; a new device may have the name of a revoked one."""
    return {
        name: DevicePart(Role.TRAINER.value, False, "revoked", f"revoked: {why}" if why else "revoked by an owner")
        for name, why in revoked.items()
        if name not in alive
    }


def _introduced(peers: Mapping[str, PeerInfo], agent: str) -> Iterable[tuple[str, DevicePart]]:
    """Yield devices that discovery knows, but no report: an agent without data, or a peer that is silent yet."""
    for name, info in peers.items():
        leads = name == agent
        if leads or info.role is not Role.OBSERVER:
            state: State = "waiting" if leads else "found"
            yield name, DevicePart(info.role.value, leads, state, "leads" if leads else "found", **_address(info))


def _address(info: PeerInfo | None) -> dict[str, Any]:
    """Return the fields that a device's introduction tells."""
    if info is None:
        return {}
    words = fingerprint(info.proof.enrolled.device) if info.proof else ""
    return {name: getattr(info, name) for name in _INTRODUCTION} | {"fingerprint": words}


def _device(
    member: MemberStatus, status: MeshStatus, agent_is_silent: bool, newest: int, info: PeerInfo | None
) -> DevicePart:
    """Return the device of a member. newest: the last round of any member's model. info: its introduction."""
    resources, transfer = member.resources, member.transfer
    state, doing = _state(member)
    arriving = transfer if transfer and transfer.size_bytes else None
    leads = member.peer_id == status.agent
    told = {name: getattr(resources, name) for name in _RESOURCES} if resources else {}
    told |= {name: getattr(member, name) for name in _MEMBER} | _address(info)
    told |= {
        "round": member.round_id,
        "silent_s": int(member.heard_s_ago) if state == "silent" else 0,
        "theta": member.theta or None,
        "arrived": round(arriving.received_bytes / arriving.size_bytes, 3) if arriving else None,
        "arrives_from": arriving.sender if arriving else "",
        "behind": max(0, newest - member.round_id),
    }
    leads_on = leads and not agent_is_silent
    return DevicePart(Role.TRAINER.value, leads_on, "silent" if leads and agent_is_silent else state, doing, **told)


def _state(member: MemberStatus) -> tuple[State, str]:
    if state := _PROBLEMS.get(member.problem.partition(":")[0]):
        return state, member.problem
    if member.problem:
        return "refused", f"refused: {member.problem}"
    if not member.alive:
        return "silent", "silent"
    doing: State = member.activity.value
    return doing, _DOING[doing]


_DOING: dict[State, str] = {
    "waiting": "waiting for a round",
    "training": "training on its own data",
    "holding": "holds merged work",
    "receiving": "receives work to merge",
    "sent": "has passed its work on",
    "staged": "has the round's result",
    "left": "has left",
}


def _live_chart(status: MeshStatus) -> ChartPart:
    """Return the open round's chart; until the first hop is ordered, from the round's opening on.

    Until then it shows that all still train.
    """
    chart = chart_real(live_round(status, ()))
    if not chart.hops and chart.exchange is None:
        chart = msgspec.structs.replace(chart, start_s=0.0)
    return chart_part(chart, chart.end_s if chart.makespan_s is None else None)


def _finished_chart(summary: RoundSummary) -> ChartPart | None:
    try:
        return chart_part(chart_real(finished_round(summary, "finished")))
    except MdlError:
        return None  # a line of an older version


def _learning(points: dict[str, RoundPoint], told: Told) -> LearningPart:
    last = next((summary for summary in reversed(told.rounds) if summary.confusion), None)
    confusion, number = (last.confusion, last.round) if last else ((), 0)
    tested = next((summary for summary in reversed(told.rounds) if summary.score is not None), None)
    targets: Targets = tested.targets if tested else "classes"
    outputs = len(confusion) if targets == "classes" else len(tested.fits) if tested and tested.fits else None
    names = told.classes if outputs is None or len(told.classes) == outputs else ()
    return LearningPart(points, told.alone, told.central, confusion, number, names, targets, MEASURES[targets])


def _make_point(summary: RoundSummary, before: RoundSummary | None) -> RoundPoint:
    return RoundPoint(
        *(summary.loss, summary.accuracy, summary.macro_f1, len(summary.contributors), summary.bytes),
        {phase: round(value, 6) for phase, value in summary.seconds.items()},
        _tell_lost(summary),
        {each.peer_id: each.loss for each in summary.devices if each.loss is not None},
        {each.peer_id: each.accuracy for each in summary.devices if each.accuracy is not None},
        summary.score,
        {each.peer_id: score for each in summary.devices if (score := _score(each)) is not None},
        tuple(FitPart(*msgspec.structs.astuple(fit)) for fit in summary.fits),
        LabellingPart(*msgspec.structs.astuple(summary.labelling)) if summary.labelling else None,
        tell_changed(before.present, summary.present) if before else "",
    )


def _tell_lost(summary: RoundSummary) -> tuple[str, ...]:
    """Tell the devices that the round went on without: "bob (later: it needs about 14.0 s more; ...)"."""
    whys = {f"{each.peer_id} (later)": each.lost.removeprefix(LEFT_OUT) for each in summary.devices}
    told = ((text, whys.get(text, "")) for text in summary.tell_lost())
    return tuple(f"{text[:-1]}: {why})" if why else text for text, why in told)


def tell_changed(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Return "with cat, without bob" for devices that came and went; "" if these are the same devices."""
    come, gone = ([name for name in one if name not in other] for one, other in ((now, before), (before, now)))
    return ", ".join(f"{word} {first_few(names)}" for word, names in (("with", come), ("without", gone)) if names)


def _score(device: DeviceRecord) -> float | None:
    return device.score if device.accuracy is None else device.accuracy


def _cloud(cycles: Mapping[int, CyclePart] | None) -> CloudPart | None:
    if cycles is None:
        return None
    last = sorted(cycles)[-_CYCLES_KEPT:]
    return CloudPart(last[-1] if last else 0, {str(version): cycles[version] for version in last})
