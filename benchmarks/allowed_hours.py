"""How many hours a day phones may train under a `--when`, from recordings, and whether training keeps to it.

    python -m benchmarks allowed_hours --traces phone_traces/phone_traces.csv.gz --train

For each phone the share of its recorded time in which all conditions hold, times 24: the hours a day, if the recorded
time is like the rest of it. With --train each recording is also the clock and the sensors of a device that trains:
its time runs as fast as the batches are computed, and no batch may begin that the conditions forbade at the last look.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.config import TrainingSettings
from mdl.data import default_cache_dir, load_data
from mdl.devices.gate import PauseConditions, SensorReading, parse_when
from mdl.errors import TrainingCancelledError
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer
from mdl.peers.edge.gatekeeper import LOOK_EVERY_S, Gatekeeper
from mdl.protocol.grid import Vector

# A longer silence between two readings ends a session: nobody knows what the phone did meanwhile.
SESSION_GAP_S = 30.0
# The status of Android's battery: charging, or full on the charger.
_ON_CHARGER = ("2", "5")
# DeepType (UbiComp 2019), Fig. 11: screen off, charging and high battery, half of the users have more; and any power.
PAPER_HOURS, PAPER_HOURS_ANY_POWER = 2.7, 11.4
# Without --when: the favoured state, "high" read in several ways; and without the charger.
CONDITIONS = (
    "idle,charging,battery>50",
    "idle,charging,battery>20",
    "idle,charging",
    "idle,battery>50",
    "idle",
    "charging",
)
Train = Callable[[Callable[[], bool]], None]


@dataclass
class Session:
    """Uninterrupted readings of one phone, and the time in it. at_s: UNIX seconds. now_s: moved by `play`."""

    at_s: list[float] = field(default_factory=list)
    readings: list[SensorReading] = field(default_factory=list)
    now_s: float = 0.0

    def reading_at(self, at_s: float) -> SensorReading:
        return self.readings[bisect_right(self.at_s, at_s) - 1]

    def stretches(self) -> Iterator[tuple[float, float, SensorReading]]:
        yield from zip(self.at_s, self.at_s[1:], self.readings)  # noqa: B905 - the last reading has no end

    def minute(self) -> float:
        """Of the day; the recording does not say in which time zone."""
        now = datetime.fromtimestamp(self.now_s, UTC)
        return now.hour * 60 + now.minute + now.second / 60


@dataclass(frozen=True)
class Played:
    """begun_s: when each batch began. late_s: how long training went on at most after a condition ceased to hold."""

    begun_s: list[float]
    late_s: float


def read_sessions(path: Path) -> dict[str, list[Session]]:
    """By phone, in the order of the file; readings in time order."""
    rows: dict[str, dict[float, SensorReading]] = defaultdict(dict)
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            is_idle, is_charging = row["isInteractive"] == "false", row["status"] in _ON_CHARGER
            reading = SensorReading(is_idle, is_charging, float(row["level"]), row["WiFi"] == "true")
            rows[row["device"]][float(row["Timestamp"]) / 1e3] = reading
    found: dict[str, list[Session]] = {}
    for phone, readings in rows.items():
        sessions: list[Session] = []
        for at_s, reading in sorted(readings.items()):
            if not sessions or at_s - sessions[-1].at_s[-1] > SESSION_GAP_S:
                sessions.append(Session())
            sessions[-1].at_s.append(at_s)
            sessions[-1].readings.append(reading)
        found[phone] = [session for session in sessions if len(session.at_s) > 1]
    return found


def allowed_hours(sessions: list[Session], gate: PauseConditions) -> tuple[float, float]:
    """Recorded hours, and those of them in which all conditions hold."""
    recorded_s = allowed_s = 0.0
    for session in sessions:
        for start_s, end_s, reading in session.stretches():
            session.now_s = start_s
            recorded_s += end_s - start_s
            allowed_s += (end_s - start_s) * (not gate.forbids(reading, session.minute()))
    return recorded_s / 3600, allowed_s / 3600


def play(
    session: Session,
    gate: PauseConditions,
    batch_s: float,
    train: Train,
    sensors: Callable[[], SensorReading] | None = None,
) -> Played:
    """Train through a session, `batch_s` of its time a batch. train: asks before each batch whether to stop.

    sensors: instead of the session's readings as they are.
    """
    session.now_s = looked_s = session.at_s[0]
    begun_s: list[float] = []

    def let_pass(seconds: float) -> None:
        nonlocal looked_s
        session.now_s += seconds
        if session.now_s > session.at_s[-1]:
            keeper.stop()
        elif session.now_s - looked_s >= LOOK_EVERY_S:
            looked_s = session.now_s
            keeper.look()

    keeper = Gatekeeper(
        gate,
        sensors or (lambda: session.reading_at(session.now_s)),
        session.minute,
        wait=lambda: let_pass(LOOK_EVERY_S),
    )

    def before_batch() -> bool:
        if begun_s:
            let_pass(batch_s)
        is_over = keeper.hold()
        begun_s.extend([] if is_over else [session.now_s])
        return is_over

    train(before_batch)
    return Played(begun_s, _latest(session, gate, begun_s, batch_s))


def _latest(session: Session, gate: PauseConditions, begun_s: list[float], batch_s: float) -> float:
    """Seconds from a moment at which the conditions ceased to hold to the end of the last batch begun before they held
    again."""
    latest_s, ceased_s, last_end_s = 0.0, None, 0.0
    batches = iter([*begun_s, math.inf])
    begun = next(batches)
    for start_s, end_s, reading in session.stretches():
        session.now_s = start_s
        is_allowed = not gate.forbids(reading, session.minute())
        ceased_s = None if is_allowed else start_s if ceased_s is None else ceased_s
        while begun < end_s:
            last_end_s, begun = begun + batch_s, next(batches)
        if ceased_s is not None:
            latest_s = max(latest_s, last_end_s - ceased_s)
    return latest_s


def _wait_only(is_over: Callable[[], bool]) -> None:
    assert is_over()


def make_training(model: str = "lenet") -> Train:
    """Real training on made windows until it is to stop."""
    data = load_data("motion?people=2&test_people=1&windows=64", default_cache_dir(), 0)
    channels, length = data.shape
    module = build_model(model, channels, length, len(data.classes), 0)
    return train_on(module, data.train.x, data.train.y, TrainingSettings(batch_size=16))


def train_on(module: nn.Module, x: Vector, y: NDArray[np.int64], settings: TrainingSettings) -> Train:
    """Rounds of a mesh's own local training."""
    model = FlatModel(module)
    trainer = LocalTrainer(model, x, y, settings)

    def train(is_over: Callable[[], bool]) -> None:
        try:
            for round_id in itertools.count(1):
                trainer.train_round(model.values().copy(), round_id, is_over)
        except TrainingCancelledError:
            return

    return train


def add_options(parser: Parser) -> None:
    parser.add_argument("--traces", type=Path, required=True, help="phone_traces.csv.gz")
    parser.add_argument("--when", action="append", help="conditions, may be given again; several without it")
    parser.add_argument("--train", action="store_true", help="train through every recording too, under the first")
    parser.add_argument("--batch-s", type=float, default=2.0, help="time of the phone that a batch takes")


def run(asked: Namespace, sheet: Sheet) -> None:
    """Measure each of the conditions."""
    phones = read_sessions(asked.traces)
    sheet.tell({"phones": len(phones), "paper": [PAPER_HOURS, PAPER_HOURS_ANY_POWER]})
    rows = []
    for when in asked.when or CONDITIONS:
        found = {phone: allowed_hours(sessions, parse_when(when)) for phone, sessions in phones.items()}
        a_day = {phone: 24 * allowed / recorded for phone, (recorded, allowed) in found.items()}
        recorded, allowed = (sum(column) for column in zip(*found.values(), strict=True))
        median, pooled = statistics.median(a_day.values()), 24 * allowed / recorded
        rows.append((when, f"{median:.2f}", f"{pooled:.2f}", f"{max(a_day.values()):.2f}"))
        sheet.tell({when: {"median": median, "pooled": pooled, "by_phone": a_day, "recorded_h": recorded}})
    show(("hours a day", "median", "all phones' time together", "highest"), rows)
    if asked.train:
        sheet.tell({"trained": _train_through(phones, (asked.when or CONDITIONS)[0], asked.batch_s)})


def _train_through(phones: dict[str, list[Session]], when: str, batch_s: float) -> dict[str, object]:
    gate, count, late_s, forbidden = parse_when(when), 0, 0.0, 0
    for sessions in phones.values():
        for session in sessions:
            played = play(session, gate, batch_s, make_training() if allowed_hours([session], gate)[1] else _wait_only)
            count, late_s = count + len(played.begun_s), max(late_s, played.late_s)
            forbidden += sum(bool(gate.forbids(session.reading_at(at_s), 0.0)) for at_s in played.begun_s)
    told = f"{forbidden} began while forbidden; paused at most {late_s:.1f} s late"
    print(f"{count} batches of {batch_s:g} s under {when}; {told}")
    return {"when": when, "batches": count, "begun_while_forbidden": forbidden, "latest_s": late_s, "batch_s": batch_s}
