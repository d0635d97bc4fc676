"""One member's knowledge of the mesh, as `mdl status`, the page and JSON show it (docs/api.md). Data alone.

Entries with a name of their own stand in an object by that name, so that a change can name the entry
(`peers/view/merge_patch.py`). A field that is None is unknown; a reader treats a missing one alike. Texts are for
people; names and texts of others are bounded and printable (`mdl/bounds.py`), and are never markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_type_hints

import msgspec

from mdl.task import Targets

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
class Shown:
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
    round: Annotated[int | None, Shown("whole", column="round", metric="round")] = None
    silent_s: int = 0
    theta: Annotated[float | None, Shown(column="theta")] = None
    loss: Annotated[float | None, Shown("nats", column="loss", fact="loss", metric="loss_nats")] = None
    arrived: float | None = None
    arrives_from: str = ""
    cpu_percent: Annotated[float | None, Shown("percent", column="cpu", metric="cpu_ratio", scale=0.01)] = None
    free_memory_bytes: Annotated[int | None, Shown("bytes", column="free", fact="free", metric="memory_free_bytes")] = (
        None
    )
    memory_left_bytes: int | None = None
    battery_percent: Annotated[float | None, Shown(metric="battery_ratio", scale=0.01)] = None
    battery_left_percent: float | None = None
    charging: Annotated[bool | None, Shown(metric="charging")] = None
    in_use: Annotated[bool | None, Shown(metric="in_use")] = None
    temperature_c: Annotated[float | None, Shown("celsius", fact="temp", metric="temperature_celsius")] = None
    energy_j: Annotated[float | None, Shown(metric="energy_joules")] = None
    round_energy_j: Annotated[float | None, Shown(metric="round_energy_joules")] = None
    energy_from: str = ""
    link_mb_s: Annotated[
        float | None, Shown("rate", column="MB/s", fact="link", metric="link_bytes_per_second", scale=1e6)
    ] = None
    merge_mb_s: Annotated[float | None, Shown(metric="merge_bytes_per_second", scale=1e6)] = None
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
SHOWN: dict[str, Shown] = {
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
