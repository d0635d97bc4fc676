"""One person's devices share data (MDLdroid 1, the individual model): time and energy beside one device alone.

    python -m benchmarks individual DATA_DIR/spsw_har/spsw_har_small.npz

The owner's phone has the windows of a phone and a watch (real recordings, people 1 to 16; people 17 to 23 test), as one
person with sufficient data would. It trains alone, or shares them by what the devices offer, as `mdl data share` does.
Training is real: the accuracy of a round is that of the same model on real devices. Time and energy are modelled: the
devices' own machines run in virtual time, links and relative processor speeds are those of the device classes
(docs/device-models.md), training takes 1.5 W, sending 1.0 W, receiving 0.8 W, on top of what the owner does. The phone
is taken to train as fast as one thread of this machine, which is measured first (or told: `--windows-s`); `--slower 10`
makes all ten times slower. What handing over the windows takes is in all figures of those who share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.config import TrainingSettings
from mdl.data import DataSet, Windows, make_windows, take_windows
from mdl.data.parcel import deal_windows
from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.errors import ConfigError
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta
from mdl.peers.edge.device import device_seed
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.sharing import measure_speed
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector
from mdl.protocol.machine import DeltaRecalled, Effect, Event, LocalDeltaReady, RecallDelta, Send, TrainLocally
from mdl.protocol.sharing_messages import Offer, share_out
from mdl.protocol.vocabulary import Role, TrainingReport
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.mesh.process import Node
from mdl.sim.timing.scenario import LINK_RANGES_MB_S, MERGE_RANGES_MB_S, energy_percent

PAPER_TIME, PAPER_ENERGY = (2.0, 3.5), (2.0, 8.5)
TRAIN_W = MERGE_W  # a full processor, as for a merge
# Medians of CPU scores of phones against the fastest class.
CLASS_SPEED = (1.0, 0.53, 0.14, 0.08)
# The owner's phone, its watch, and what else one may have: a tablet, an old phone, a second tablet.
DEVICES = (("phone", 0), ("watch", 2), ("tablet", 0), ("old phone", 1), ("tablet 2", 0))
TIME, STEP, TEST_FROM = 64, 32, 17
_RECALL_S = 0.01


def read_windows(path: Path) -> DataSet:
    """Windows of 1.28 s at 50 Hz, half overlapping, of one execution on one device; labelled as most samples are."""
    with np.load(path, allow_pickle=False) as stored:
        x = (stored["codes"] * stored["units_per_code"]).astype(np.float32)
        told = {name: stored[name].astype(np.int64) for name in ("label", "subject", "execution", "device")}
    x[:, :3] /= 9.81
    pieces: list[tuple[np.ndarray, int, int, int]] = []
    run = told["subject"] * 10_000 + told["execution"] * 2 + told["device"]
    for group in np.unique(run):
        rows = np.flatnonzero(run == group)
        for start in range(0, len(rows) - TIME + 1, STEP):
            taken = rows[start : start + TIME]
            label = int(np.bincount(told["label"][taken]).argmax())
            pieces.append((x[taken].T, label, int(told["subject"][taken[0]]), int(group)))
    xs, *rest = (np.array(column) for column in zip(*pieces, strict=True))
    windows = make_windows(xs, *rest)
    test = windows.subject >= TEST_FROM
    names = ("seated", "standing up", "walking", "turning", "sitting down")
    return DataSet("spsw-har", take_windows(windows, ~test), take_windows(windows, test), names, "subject", rate_hz=50)


@dataclass
class Bill:
    """What the owner's phone spends. Seconds at work, and joules on top of what its owner does with it."""

    train_s: float = 0.0
    joules: float = 0.0
    radio_bytes: int = 0

    def train(self, seconds: float) -> None:
        self.train_s += seconds
        self.joules += TRAIN_W * seconds

    def transfer(self, size_bytes: int, rate_mb_s: float, merge_mb_s: float, is_sent: bool) -> None:
        self.radio_bytes += size_bytes
        seconds = size_bytes / 1e6 / rate_mb_s
        self.joules += SEND_W * seconds if is_sent else RECEIVE_W * seconds + MERGE_W * size_bytes / 1e6 / merge_mb_s


@dataclass
class Curve:
    """Accuracy over time: (virtual seconds, accuracy, joules of the owner's phone) at the end of each epoch."""

    points: list[tuple[float, float, float]] = field(default_factory=list)

    def reach(self, accuracy: float) -> tuple[float, float] | None:
        """Seconds and joules until it is this accurate."""
        return next(((at, joules) for at, found, joules in self.points if found >= accuracy), None)


class Person(SimMesh):
    """The devices of one person in virtual time, each with its share. speeds: windows a second of each."""

    most_events = 10_000_000

    def __init__(
        self, data: DataSet, shares: list[Windows], classes: list[int], speeds: list[float],
        settings: TrainingSettings, seed: int,
    ) -> None:  # fmt: skip
        first = _make_model(data, seed).values().copy()
        self.names = [f"d{number}" for number in range(len(shares))]
        rates = {name: middle(LINK_RANGES_MB_S[each]) for name, each in zip(self.names, classes, strict=True)}
        merges = {name: middle(MERGE_RANGES_MB_S[each]) for name, each in zip(self.names, classes, strict=True)}
        network = Network(np.random.default_rng([seed, 0x1D]), rates_mb_s=rates, merge_mb_s=merges)
        super().__init__(network, Accounts(first), first.nbytes)
        self.bill, self.curve = Bill(), Curve()
        self._data, self._speeds = data, dict(zip(self.names, speeds, strict=True))
        self._trainers: dict[str, LocalTrainer] = {}
        self._given: dict[str, tuple[Vector, Vector]] = {}
        self._tested = _make_model(data, seed)
        self.on_say = _bill_transfer
        for number, (name, share) in enumerate(zip(self.names, shares, strict=True), start=1):
            module = _make_model(data, seed)
            own = msgspec.structs.replace(settings, seed=device_seed(seed, number))
            self._trainers[name] = LocalTrainer(module, share.x, share.y, own)
            start = simulated_start(
                *(Contributor(name, 1), "greedy", len(shares), "wait", TrainerStart(first.size, digest_of(first)), 0.0),
            )
            assert start.trainer is not None
            its = msgspec.structs.replace(start.trainer.settings, keep_deltas=False)
            agent = msgspec.structs.replace(start.agent, rounds=settings.planned_rounds, min_peers=len(shares))
            trainer = msgspec.structs.replace(start.trainer, settings=its)
            machine = build_machine(msgspec.structs.replace(start, trainer=trainer, agent=agent), first)
            self.add(name, Role.TRAINER, machine)

    def hand_over(self, sizes: list[int]) -> float:
        """The windows go out before, one device after the other; seconds that takes."""
        total_s = 0.0
        for name, size in zip(self.names[1:], sizes[1:], strict=True):
            rate = min(self.network.rate_mb_s("d0"), self.network.rate_mb_s(name))
            self.bill.transfer(size, rate, 1.0, is_sent=True)
            total_s += size / 1e6 / rate
        return total_s

    def _carry_out(self, node: Node, effect: Effect) -> None:
        if work := self._work(node.peer_id, effect):
            self._schedule(work[0], node, work[1])
        else:
            super()._carry_out(node, effect)

    def _work(self, name: str, effect: Effect) -> tuple[float, Event] | None:
        if isinstance(effect, TrainLocally):
            if name == "d0" and effect.round_id > 1:
                self.note(effect.parameters)
            done = self._trainers[name].train_round(effect.parameters, effect.round_id)
            values, seconds = model_delta(effect.parameters, done.values), done.samples / self._speeds[name]
            self._given[name] = effect.parameters, values.copy()
            if name == "d0":
                self.bill.train(seconds)
            delta = ModelDelta(values, float(done.samples), frozenset([Contributor(name, 1)]))
            return seconds, LocalDeltaReady(effect.round_id, delta, TrainingReport(done.loss, done.samples, seconds))
        if isinstance(effect, RecallDelta):
            known = name in self._given and self._given[name][0] is effect.parameters
            return _RECALL_S, DeltaRecalled(effect.round_id, self._given[name][1] if known else None)
        return None

    def note(self, parameters: Vector) -> None:
        self._tested.load(parameters)
        self.curve.points.append((self.now, test(self._tested, self._data), self.bill.joules))


def _bill_transfer(mesh: SimMesh, node: Node, send: Send) -> None:
    assert isinstance(mesh, Person)
    if send.values is None or "d0" not in (node.peer_id, send.receiver):
        return
    rate = min(mesh.network.rate_mb_s(node.peer_id), mesh.network.rate_mb_s(send.receiver))
    size = getattr(send.values, "nbytes", 0)
    mesh.bill.transfer(size, rate, mesh.network.merge_mb_s["d0"], is_sent=node.peer_id == "d0")


def _make_model(data: DataSet, seed: int) -> FlatModel:
    return FlatModel(build_model("lenet", data.shape[0], TIME, len(data.classes), seed))


def test(model: FlatModel, data: DataSet) -> float:
    return evaluate(model.module, data.test.x, data.test.y, len(data.classes)).accuracy


def middle(bounds: tuple[float, float]) -> float:
    return sum(bounds) / 2


def train_alone(data: DataSet, speed: float, settings: TrainingSettings, seed: int) -> Curve:
    """The phone with all windows, an epoch after the other."""
    model = _make_model(data, seed)
    trainer = LocalTrainer(
        model, data.train.x, data.train.y, msgspec.structs.replace(settings, seed=device_seed(seed, 1))
    )
    parameters, bill, curve, now = model.values().copy(), Bill(), Curve(), 0.0
    for round_id in range(1, settings.planned_rounds + 1):
        done = trainer.train_round(parameters, round_id)
        parameters = done.values.copy()
        bill.train(done.samples / speed)
        now += done.samples / speed
        model.load(parameters)
        curve.points.append((now, test(model, data), bill.joules))
    return curve


def train_shared(
    data: DataSet, offers: list[Offer], classes: list[int], settings: TrainingSettings, seed: int, equal: bool = False
) -> tuple[Curve, list[int]]:
    """Shares by what is offered, or equal ones; the curve begins when the windows begin to be handed over."""
    own, *others = [Offer(1.0) for _ in offers] if equal else offers
    counts = share_out(len(data.train), data.train.x[0].nbytes, own, others)
    shares = [take_windows(data.train, rows) for rows, _ in deal_windows(data, counts, seed)]
    mesh = Person(data, shares, classes, [offer.windows_s for offer in offers], settings, seed)
    before_s = mesh.hand_over([share.x.nbytes for share in shares])
    if not mesh.run(1e7):
        raise RuntimeError(f"after {mesh.now:.0f} s {len(mesh.rounds)} rounds are closed, and no more")
    mesh.note(next(node.machine.trainer.parameters for node in mesh.nodes.values()))  # type: ignore[attr-defined]
    mesh.curve.points = [(at + before_s, found, joules) for at, found, joules in mesh.curve.points]
    return mesh.curve, counts


def compare(data: DataSet, speed: float, settings: TrainingSettings, target: float, seed: int) -> list[dict[str, Any]]:
    """A line for each number of devices, and how they share."""
    alone = train_alone(data, speed, settings, seed)
    best = max(found for _, found, _ in alone.points)
    if best < target:
        raise ConfigError(f"alone it reaches {best:.3f}, not {target}: take a lower --accuracy or more --epochs")
    lines = [line(1, "alone", [len(data.train)], alone, alone, target)]
    for count in range(2, len(DEVICES) + 1):
        classes = [each for _, each in DEVICES[:count]]
        speeds = [speed * CLASS_SPEED[each] for each in classes]
        on_battery = [Offer(each, battery_percent=80.0, charging=False) for each in speeds]
        charging = [on_battery[0], on_battery[1], *(Offer(each, charging=True) for each in speeds[2:])]
        ways = [("by speed", on_battery, False)]
        ways += [("equal", on_battery, True)] if count in (2, len(DEVICES)) else []
        ways += [("others charge", charging, False)] if count > 2 else []
        for name, offers, equal in ways:
            curve, counts = train_shared(data, offers, classes, settings, seed, equal)
            lines.append(line(count, name, counts, curve, alone, target))
    return lines


def line(count: int, how: str, shares: list[int], curve: Curve, alone: Curve, target: float) -> dict[str, Any]:
    """Figures to the accuracy and of the whole run; a ratio is how much more it takes alone."""
    told: dict[str, Any] = {"devices": count, "how": how, "shares": shares}
    total_s, told["accuracy"], total_j = curve.points[-1]
    base_s, _, base_j = alone.points[-1]
    told |= {"total_s": total_s, "total_j": total_j, "battery_percent": energy_percent(total_j)}
    told |= {"total_time_ratio": base_s / total_s, "total_energy_ratio": base_j / total_j}
    base, reached = alone.reach(target), curve.reach(target)
    if base is None or reached is None:
        return told | dict.fromkeys(("seconds", "joules", "time_ratio", "energy_ratio"))
    told |= {"seconds": reached[0], "joules": reached[1]}
    return told | {"time_ratio": base[0] / reached[0], "energy_ratio": base[1] / reached[1]}


def describe(told: dict[str, Any]) -> list[str]:
    """Return the cells of one row."""
    cells = [f"{told['devices']} {told['how']}", str(told["shares"])]
    for reached in ("", "total_"):
        seconds, joules = told["total_s" if reached else "seconds"], told["total_j" if reached else "joules"]
        if seconds is None:
            cells += ["not reached", ""]
            continue
        cells += [f"{seconds:.0f} s ({told[f'{reached}time_ratio']:.2f}x)"]
        cells += [f"{joules:.0f} J ({told[f'{reached}energy_ratio']:.2f}x)"]
    return [*cells, f"{told['accuracy']:.1%}"]


def add_options(parser: Parser) -> None:
    parser.add_argument("data", type=Path)
    parser.add_argument("--accuracy", type=float, default=0.85)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds-per-epoch", type=int, default=1)
    parser.add_argument("--windows-s", type=float, help="what the phone would train a second, instead of measuring")
    parser.add_argument("--slower", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure each number of devices, and how they share. Raises ConfigError."""
    data = read_windows(given.data)
    speed = (given.windows_s or measure_speed()) / given.slower
    rounds = given.epochs * given.rounds_per_epoch
    settings = TrainingSettings(rounds_per_epoch=given.rounds_per_epoch, planned_rounds=rounds)
    lines = compare(data, speed, settings, given.accuracy, given.seed)
    show(("devices", "shares", "to the accuracy", "", "whole run", "", "accuracy"), map(describe, lines))
    print(f"paper: time {PAPER_TIME[0]:g}x to {PAPER_TIME[1]:g}x, battery {PAPER_ENERGY[0]:g}x to {PAPER_ENERGY[1]:g}x")
    asked = {name: getattr(given, name) for name in ("accuracy", "epochs", "rounds_per_epoch", "seed")}
    sheet.tell({"windows": len(data.train), "test": len(data.test), "windows_s": speed, **asked, "lines": lines})
