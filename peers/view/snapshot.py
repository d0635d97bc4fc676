"""One member's knowledge of the mesh, as `mdl status`, the page and JSON show it (docs/api.md). Pure.

Entries with a name of their own stand in an object by that name, so that a change can name the entry. A field that is
None is unknown; a reader treats a missing one alike. Texts are for people; names and texts of others are bounded and
printable (`mdl/bounds.py`), and are never markup.

`take_snapshot` makes it from what an observer was told: the same input gives the same snapshot. A part of a finished
round or cycle is made once and is the same object from then on (`SnapshotTaker`), so that a mesh of a thousand rounds
costs no more to look at than a new one.

`merge_patch` is the change between two snapshots, as a JSON merge patch (RFC 7396). Objects are compared field by
field, other values as a whole; None stands for a removed field. Identical objects are not compared, so that finished
rounds cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec

from mdl.bounds import first_few
from mdl.errors import MdlError
from mdl.protocol.counts import MEASURES
from mdl.protocol.status_messages import LEFT_OUT, DeviceRecord, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import PeerInfo, ResourceState, Role
from mdl.scheduler.explain.chart import Chart, Span, SpanKind
from mdl.scheduler.explain.recorded_round import chart_real, finished_round, live_round
from mdl.task import Targets
from mdl.transport.trust.keys import fingerprint

# The version of this schema: it rises when a field changes its meaning, or is gone.
SCHEMA_VERSION = 1

# revoked: its owner's word ended its membership. quarantined: its work is not merged, because of its earlier work.
# training, waiting, holding, receiving, sent, staged and left are the device's own words (`Activity`).
State: TypeAlias = Literal[
    "waiting",
    "training",
    "holding",
    "receiving",
    "sent",
    "staged",
    "left",
    "silent",
    "refused",
    "revoked",
    "quarantined",
    "paused",
    "found",
]


@dataclass(frozen=True)
class FieldForm:
    """The form of a device's field wherever it is shown; the line in the docstring describes it everywhere.

    form: of its text: whole, number, nats, percent, bytes, celsius or rate (of megabytes a second).
    column: its title in a terminal; "": no column of its own.
    fact: its label on the page's card; "": none of its own.
    metric: its name for Prometheus, after mdl_device_; "": none.
    scale: the factor of the metric's value.
    """

    form: str = "number"
    column: str = ""
    fact: str = ""
    metric: str = ""
    scale: float = 1.0


class DevicePart(msgspec.Struct, frozen=True):
    """One device of the mesh. The part of a description before a semicolon is also the metric's.

    role: trainer or agent.
    leads: it is the mobile agent now.
    state: in one word; found: it was introduced, and nothing was heard of it yet.
    doing: the same in words, with why it is refused, revoked, quarantined or paused.
    round: the round of its model.
    silent_s: whole seconds since it was heard; 0 unless it is silent.
    theta: of the partial sum that it holds.
    loss: loss of its last training; in nats.
    arrived: share of the values it waits for that is here.
    arrives_from: the sender of those values.
    cpu_percent: share of its processor that other programs take.
    free_memory_bytes: memory that a program may take.
    memory_left_bytes: the rest of the memory that its owner offers.
    battery_percent: charge of its battery; None: it has no battery, or does not tell.
    battery_left_percent: the rest of the charge that its owner offers.
    charging: it is on its charger.
    in_use: a person is using it.
    temperature_c: temperature of its warmest sensor; in degrees Celsius.
    energy_j: joules since mdl started on it; measured or modelled, see energy_from.
    round_energy_j: joules of its last round; likewise.
    energy_from: battery, board or processor: measured by it; modelled, or mixed: partly measured; "": not known.
    link_mb_s: speed of its link, as its transfers have shown; in megabytes a second.
    merge_mb_s: speed of its merges; in megabytes a second.
    bugs: messages that met a bug in its process.
    took_part: rounds of the last ones with work of it.
    of_rounds: number of these, at most ten.
    behind: rounds that the mesh's model is ahead of its own.
    host: its IP address; "": not known.
    port: TCP port where others meet it; 0: not known.
    incarnation: of its process; 0: not known.
    schema_hash: of its model; "": it has none, or it is not known.
    fingerprint: words of its key; "": it has shown none.
    """

    role: str
    leads: bool
    state: State
    doing: str
    round: Annotated[int | None, FieldForm("whole", column="round", metric="round")] = None
    silent_s: int = 0
    theta: Annotated[float | None, FieldForm(column="theta")] = None
    loss: Annotated[float | None, FieldForm("nats", column="loss", fact="loss", metric="loss_nats")] = None
    arrived: float | None = None
    arrives_from: str = ""
    cpu_percent: Annotated[float | None, FieldForm("percent", column="cpu", metric="cpu_ratio", scale=0.01)] = None
    free_memory_bytes: Annotated[
        int | None, FieldForm("bytes", column="free", fact="free", metric="memory_free_bytes")
    ] = None
    memory_left_bytes: int | None = None
    battery_percent: Annotated[float | None, FieldForm(metric="battery_ratio", scale=0.01)] = None
    battery_left_percent: float | None = None
    charging: Annotated[bool | None, FieldForm(metric="charging")] = None
    in_use: Annotated[bool | None, FieldForm(metric="in_use")] = None
    temperature_c: Annotated[float | None, FieldForm("celsius", fact="temp", metric="temperature_celsius")] = None
    energy_j: Annotated[float | None, FieldForm(metric="energy_joules")] = None
    round_energy_j: Annotated[float | None, FieldForm(metric="round_energy_joules")] = None
    energy_from: str = ""
    link_mb_s: Annotated[
        float | None, FieldForm("rate", column="MB/s", fact="link", metric="link_bytes_per_second", scale=1e6)
    ] = None
    merge_mb_s: Annotated[float | None, FieldForm(metric="merge_bytes_per_second", scale=1e6)] = None
    bugs: int = 0
    took_part: int = 0
    of_rounds: int = 0
    behind: int = 0
    host: str = ""
    port: int = 0
    incarnation: int = 0
    schema_hash: str = ""
    fingerprint: str = ""


# Field of DevicePart -> how it is shown; the other fields have no form of their own.
SHOWN: dict[str, FieldForm] = {
    name: how
    for name, kind in get_type_hints(DevicePart, include_extras=True).items()
    for how in getattr(kind, "__metadata__", ())
}


class MeshPart(msgspec.Struct, frozen=True):
    """The mesh and its devices.

    name: the mesh's name.
    agent: peer id of the leader; "": there is none.
    term: the agent's term.
    told: what the mesh is doing, in words, or why nothing is known of it.
    policy: the policy that decides the aggregations.
    devices: by peer id.
    cuts: in words, which devices do not reach each other, doubt each other, or have unlike data.
    pages: addresses (http://HOST:PORT) of other members that serve this snapshot.
    """

    name: str
    agent: str = ""
    term: int = 0
    told: str = ""
    policy: str = ""
    devices: dict[str, DevicePart] = {}
    cuts: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()


class SpanPart(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of time of one device, as an array.

    kind: training, waiting, busy, send, receive, segments, stalled, merge, done or lost.
    start_s: seconds since the round was opened.
    end_s: likewise; None: it goes on.
    partner: the other device; "": none.
    """

    kind: str
    start_s: float
    end_s: float | None
    partner: str = ""


class HopPart(msgspec.Struct, frozen=True):
    """One pair aggregation; seconds since the round was opened.

    sender: peer id.
    receiver: peer id.
    outcome: ordered, merged, aborted, looked-at or lost.
    start_s: when it was ordered.
    sent_s: when its values had arrived; None: they have not.
    end_s: when it was decided; None: it is not.
    reason: of the policy, or why it was aborted.
    """

    sender: str
    receiver: str
    outcome: str
    start_s: float
    sent_s: float | None
    end_s: float | None
    reason: str


class ExchangePart(msgspec.Struct, frozen=True):
    """A round with deltas that travel in segments.

    plan: the reason for the shares, in words.
    owns: peer id -> segments.
    start_s: when all devices held their own delta, seconds since the round was opened.
    end_s: when all had the result; None: not yet.
    bound_s: the best that the links allow; None: not known.
    """

    plan: str
    owns: dict[str, int]
    start_s: float
    end_s: float | None
    bound_s: float | None


class ChartPart(msgspec.Struct, frozen=True):
    """The activities of all devices in one round.

    title: in words.
    start_s: the first moment worth showing; before it all devices trained.
    end_s: of the chart, seconds since the round was opened; for an open round, now.
    makespan_s: when one device held everything; None: none does yet.
    rows: peer id -> its spans, without gaps.
    hops: by their number, from 1, in the order of time.
    exchange: None: the round goes by hops.
    """

    title: str
    start_s: float
    end_s: float
    makespan_s: float | None
    rows: dict[str, tuple[SpanPart, ...]]
    hops: dict[str, HopPart]
    exchange: ExchangePart | None = None


class RoundPart(msgspec.Struct, frozen=True):
    """The open round, or the last one.

    number: of the round.
    goal: the run's last round; None: it goes on until a user ends it.
    phase: the current step, and what it waits for, in words.
    is_open: members work on it.
    chart: of this round, or, between two, of the last one; None: nothing is known of it yet.
    before: of the last finished round with a known schedule, while another one is open; None: there is none.
    """

    number: int
    goal: int | None
    phase: str
    is_open: bool
    chart: ChartPart | None = None
    before: ChartPart | None = None


class FitPart(msgspec.Struct, frozen=True):
    """The errors of one predicted number.

    rmse: root of the mean squared error, in the number's unit.
    mae: mean absolute error, likewise.
    r2: share of its variance that is explained, 1 at best; None: it is constant.
    """

    rmse: float
    mae: float
    r2: float | None


class LabellingPart(msgspec.Struct, frozen=True):
    """The quality of predicted labels.

    micro_f1: over all labels and windows.
    exact: share of windows with all labels right.
    """

    micro_f1: float
    exact: float


class RoundPoint(msgspec.Struct, frozen=True):
    """One finished round.

    loss: mean training loss of its members, in nats.
    accuracy: of its model on the test windows of all devices that tested; None: none did, or it gives no classes.
    macro_f1: likewise, also of labels.
    contributors: number of devices that contributed to it.
    bytes: of model values that were sent.
    seconds: by phase (train, aggregate, broadcast, apply), and in all (total).
    lost: the devices that the round went on without, in words.
    losses: peer id -> its training loss, where it was told.
    accuracies: peer id -> the accuracy on its own test windows, where it was told.
    score: by the measure of the targets (`LearningPart`): accuracy, R² or micro F1.
    scores: peer id -> the same on its own test windows, where it was told.
    fits: of each predicted number; empty if there are none.
    labelling: of labels; None if there are none.
    changed: devices that came and went since the round before, in words: earlier scores are those of other devices.
    """

    loss: float | None
    accuracy: float | None
    macro_f1: float | None
    contributors: int
    bytes: int
    seconds: dict[str, float]
    lost: tuple[str, ...] = ()
    losses: dict[str, float] = {}
    accuracies: dict[str, float] = {}
    score: float | None = None
    scores: dict[str, float] = {}
    fits: tuple[FitPart, ...] = ()
    labelling: LabellingPart | None = None
    changed: str = ""


class LearningPart(msgspec.Struct, frozen=True):
    """The results of learning.

    rounds: the last ones, by number.
    alone: score of the median device that trained alone; None: not known.
    central: score of a model that saw all data; None: not known.
    confusion: of the last round that tells it: test windows by true class (rows) and predicted class; empty: none does.
    confusion_round: the number of that round; 0: none.
    classes: names in the order of `confusion`, or of numbers or labels; empty: this member does not know them.
    targets: classes, numbers or labels.
    measure: of a score: accuracy, R² or micro F1.
    """

    rounds: dict[str, RoundPoint] = {}
    alone: float | None = None
    central: float | None = None
    confusion: tuple[tuple[int, ...], ...] = ()
    confusion_round: int = 0
    classes: tuple[str, ...] = ()
    targets: Targets = "classes"
    measure: str = "accuracy"


class SchedulePart(msgspec.Struct, frozen=True):
    """The rounds and policies of a replay.

    rounds: numbers of the rounds that this member has the schedule of.
    policies: that can be asked what they would have done.
    """

    rounds: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()


class CyclePart(msgspec.Struct, frozen=True):
    """One cycle of the cloud.

    groups: number of the group -> the devices that taught it, and are taught by it; -1 is all others.
    scores: device -> accuracy of its model, if the cloud has tried it.
    left_out: devices with models that did not teach.
    seconds: duration of the cycle.
    """

    groups: dict[str, tuple[str, ...]] = {}
    scores: dict[str, float] = {}
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0


class CloudPart(msgspec.Struct, frozen=True):
    """The lessons of a cloud.

    version: the one that it teaches now; 1 is from its own data.
    cycles: the last ones, by version.
    """

    version: int
    cycles: dict[str, CyclePart] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """The whole snapshot.

    schema: SCHEMA_VERSION.
    source: of this snapshot: a peer id, a run directory, or "cloud".
    mesh: the mesh and its devices.
    round: the open one; None: nothing was heard of any.
    learning: the results of learning.
    schedule: the rounds and policies of a replay.
    cloud: None: this member does not know of one.
    """

    schema: int
    source: str
    mesh: MeshPart
    round: RoundPart | None = None
    learning: LearningPart = LearningPart()
    schedule: SchedulePart = SchedulePart()
    cloud: CloudPart | None = None


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


class SnapshotTaker:
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
    return SnapshotTaker().take(told)


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


def merge_patch(before: Any, after: Any) -> Any:
    """Return the patch from `before` to `after`, as builtins; {} if nothing changed.

    Both: structs or dicts of one kind.
    """
    old, new = _fields(before), _fields(after)
    patch = {name: None for name, value in old.items() if value is not None and new.get(name) is None}
    for name, value in new.items():
        known = old.get(name)
        if value is None or value is known:
            continue
        if _is_object(value) and _is_object(known):
            if inner := merge_patch(known, value):
                patch[name] = inner
        elif value != known:
            patch[name] = msgspec.to_builtins(value)
    return patch


def apply_patch(before: Any, patch: Any) -> Any:
    """Apply a patch as RFC 7396 defines it, on builtins, as a reader of changes does."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = apply_patch(after.get(name), value)
    return after


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, msgspec.Struct) and not value.__struct_config__.array_like)


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {name: getattr(value, name) for name in value.__struct_fields__}
