"""What one member knows of the mesh, as it is shown: by `mdl status`, on the page, as JSON (docs/api.md). Data alone.

Whatever has a name of its own stands in an object by that name, so that a change can say which entry changed
(`peers/view/merge_patch.py`). A field that is None is not known; a reader takes a missing one for the same. Texts are
for people, names and texts of others are bounded and printable (`mdl/bounds.py`), and are never markup.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from mdl.task import Targets

# Of this schema: it rises when a field that was there means something else, or is gone.
SCHEMA_VERSION = 1

# revoked: its owner's word ended its membership. quarantined: its work is not merged, for what it did.
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


class DevicePart(msgspec.Struct, frozen=True):
    """One device of the mesh.

    role: trainer or agent.
    leads: it is the mobile agent now.
    state: in one word; found: it was introduced, and nothing was heard of it yet.
    doing: the same in words, with why it is refused, revoked, quarantined or paused.
    round: where its model stands.
    silent_s: whole seconds since it was heard; 0 unless it is silent.
    theta: of the partial mean that it holds.
    loss: of its last training, in nats.
    arrived: share of what it waits for that is here.
    arrives_from: who sends it.
    cpu_percent: of its processor, taken by other programs.
    free_memory_bytes: that a program may take.
    memory_left_bytes: of what its owner offers.
    battery_percent: of a full charge; None: it has no battery, or does not tell.
    battery_left_percent: of the charge that its owner offers.
    charging: it is on its charger.
    in_use: somebody is using it.
    temperature_c: of its warmest sensor, in degrees Celsius.
    link_mb_s: megabytes a second, as its transfers have shown.
    merge_mb_s: megabytes a second that it merges.
    bugs: messages that met a bug in its process.
    """

    role: str
    leads: bool
    state: State
    doing: str
    round: int | None = None
    silent_s: int = 0
    theta: float | None = None
    loss: float | None = None
    arrived: float | None = None
    arrives_from: str = ""
    cpu_percent: float | None = None
    free_memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    battery_percent: float | None = None
    battery_left_percent: float | None = None
    charging: bool | None = None
    in_use: bool | None = None
    temperature_c: float | None = None
    link_mb_s: float | None = None
    merge_mb_s: float | None = None
    bugs: int = 0


class MeshPart(msgspec.Struct, frozen=True):
    """Who is there.

    name: of the mesh.
    agent: peer id of who leads; "": nobody does.
    term: of that agent.
    told: what the mesh is doing, in words, or why nothing is known of it.
    policy: who aggregates with whom is its decision.
    devices: by peer id.
    cuts: in words, which devices do not reach each other, and what they hold against each other.
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
    partner: with whom; "": alone.
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
    """A round whose deltas travel in segments.

    plan: why they are shared out so, in words.
    owns: peer id -> segments.
    start_s: everybody held its own delta, seconds since the round was opened.
    end_s: all had the result; None: not yet.
    bound_s: what the links allow at best; None: not known.
    """

    plan: str
    owns: dict[str, int]
    start_s: float
    end_s: float | None
    bound_s: float | None


class ChartPart(msgspec.Struct, frozen=True):
    """Who did what when in one round.

    title: in words.
    start_s: where there is something to see; before it everybody trained.
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
    goal: the run's last round; None: it goes on until somebody ends it.
    phase: what is done, and what is waited for, in words.
    is_open: members work on it.
    chart: of this round, or, between two, of the last one; None: nothing is known of it yet.
    before: of the last finished round whose schedule is known, while another one is open; None: there is none.
    """

    number: int
    goal: int | None
    phase: str
    is_open: bool
    chart: ChartPart | None = None
    before: ChartPart | None = None


class FitPart(msgspec.Struct, frozen=True):
    """How near one number is predicted.

    rmse: root of the mean squared error, in the number's unit.
    mae: mean absolute error, likewise.
    r2: share of its variance that is explained, 1 at best; None: it is constant.
    """

    rmse: float
    mae: float
    r2: float | None


class LabellingPart(msgspec.Struct, frozen=True):
    """How well labels are found.

    micro_f1: over all labels and windows.
    exact: share of windows with all labels right.
    """

    micro_f1: float
    exact: float


class RoundPoint(msgspec.Struct, frozen=True):
    """One finished round.

    loss: mean training loss of its members, in nats.
    accuracy: of its model on the test windows of all who tested; None: nobody did, or it gives no classes.
    macro_f1: likewise, also of labels.
    contributors: how many devices' work is in it.
    bytes: of model values that were sent.
    seconds: by phase (train, aggregate, broadcast, apply), and in all (total).
    lost: who the round went on without, in words.
    losses: peer id -> its training loss, where it was told.
    accuracies: peer id -> the accuracy on its own test windows, where it was told.
    score: by the measure of what is learned (`LearningPart`): accuracy, R² or micro F1.
    scores: peer id -> the same on its own test windows, where it was told.
    fits: of each number that is predicted; empty where none is.
    labelling: of labels; None where there are none.
    changed: which devices came and went since the round before, in words: scores before are those of other devices.
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
    """What was learned.

    rounds: the last ones, by number.
    alone: score of the median device that trained alone; None: not known.
    central: score of a model that saw all data; None: not known.
    confusion: of the last round that tells it: test windows by true class (rows) and predicted class; empty: none does.
    confusion_round: which round that is; 0: none.
    classes: names in the order of `confusion`, or of numbers or labels; empty: this member does not know them.
    targets: what is learned: classes, numbers or labels.
    measure: what a score is: accuracy, R² or micro F1.
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
    """What can be played again.

    rounds: numbers of those whose schedule this member has.
    policies: that can be asked what they would have done.
    """

    rounds: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()


class CyclePart(msgspec.Struct, frozen=True):
    """One cycle of the cloud.

    groups: number of the group -> the devices that taught it, and are taught by it; -1 is everybody else.
    scores: device -> accuracy of its model where the cloud has tried it.
    left_out: devices whose models did not teach.
    seconds: it took.
    """

    groups: dict[str, tuple[str, ...]] = {}
    scores: dict[str, float] = {}
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0


class CloudPart(msgspec.Struct, frozen=True):
    """What a cloud has taught.

    version: of what it teaches now; 1 is from its own data.
    cycles: the last ones, by version.
    """

    version: int
    cycles: dict[str, CyclePart] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """All of it.

    schema: SCHEMA_VERSION.
    source: who tells it: a peer id, a run directory, or "cloud".
    mesh: who is there.
    round: the open one; None: nothing was heard of any.
    learning: what was learned.
    schedule: what can be played again.
    cloud: None: this member does not know of one.
    """

    schema: int
    source: str
    mesh: MeshPart
    round: RoundPart | None = None
    learning: LearningPart = LearningPart()
    schedule: SchedulePart = SchedulePart()
    cloud: CloudPart | None = None
