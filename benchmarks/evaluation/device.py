"""One device of a mesh, or of a master with slaves: a process of its own, on whatever link its host has.

Both have the same driver, links, vectors, file cache and local training; `star.py` and the product's `Peer` are what
differs. Prints one line of JSON: by round the clock when its delta was ready and when the result was applied, bytes of
its network interface, seconds of processor, and memory above what it had with its own delta (`benchmarks/memory.py`).

`benchmarks/evaluation/lan.py` starts it with one word of JSON: the fields of `Asked`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also when called by its path

from benchmarks.evaluation.star import Master, Slave
from benchmarks.memory import Meter
from mdl.config import Compress, Config, Exchange, FaultSection, MeshSection, RoundSection, TrainingSettings
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.peers.edge.node import drive, start_peer, start_runtime
from mdl.peers.roles.build import TrainerStart, build_machine, configured_start
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    LocalDeltaReady,
    Machine,
    RecallDelta,
    RecordRound,
    SaveBallot,
    SaveModel,
    TrainLocally,
)
from mdl.protocol.vocabulary import PeerInfo, Role, TrainingReport
from mdl.transport.trust.keys import Mesh

_COUNTERS = Path("/sys/class/net")
# Processes that compete for few cores are slow, not lost.
_FAULTS = FaultSection(lost_after_s=30.0)


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The orders for one device.

    system: mesh, master, or running (a master that merges each delta as it comes).
    exchange, compress: of a mesh.
    values: of a delta of noise.
    data: a data spec, of a device that trains; "" for noise.
    training: training settings as JSON.
    keep: a folder for the models of all rounds, which rank 0 writes; "" for none.
    """

    system: Literal["mesh", "master", "running"]
    rank: int
    size: int
    rounds: int
    folder: str
    exchange: Exchange = "chain"
    compress: Compress = "none"
    values: int = 0
    data: str = ""
    model: str = "lenet"
    split: str = "subject"
    seed: int = 0
    training: str = "{}"
    interface: str = "eth0"
    keep: str = ""


class Noise:
    """Training that takes no time: a random delta, the same for the same round. start: w(0), float32 (P,)."""

    def __init__(self, size: int, rank: int) -> None:
        self.start, self._rank = np.zeros(size, np.float32), rank

    def train(self, parameters: Vector, round_id: int) -> tuple[Vector, int]:
        rng = np.random.default_rng([round_id, self._rank])
        return rng.standard_normal(self.start.size, dtype=np.float32), 1

    def recall(self, parameters: Vector, round_id: int) -> Vector:
        return self.train(parameters, round_id)[0]


class Recorded:
    """Training on this device's share of recordings. Raises ConfigError, DataError."""

    def __init__(self, given: Asked, size: int) -> None:
        from benchmarks.evaluation.shares import make_trainer
        from mdl.learning.training import model_delta

        self._delta = model_delta
        self._trainer = make_trainer(
            given.data, given.model, given.split, size, given.rank, given.seed, settings(given)
        )
        self.start, self._trained = self._trainer.model.values().copy(), 0

    def train(self, parameters: Vector, round_id: int) -> tuple[Vector, int]:
        done, self._trained = self._trainer.train_round(parameters, round_id), round_id
        return self._delta(parameters, done.values), done.samples

    def recall(self, parameters: Vector, round_id: int) -> Vector | None:
        return self._delta(parameters, self._trainer.model.values()) if round_id == self._trained else None


def settings(given: Asked) -> TrainingSettings:
    told: dict[str, Any] = json.loads(given.training)
    return msgspec.convert({"planned_rounds": given.rounds} | told, TrainingSettings)


class Book:
    """What one device has seen, by round. kept: models are written there as `ROUND.npy`; None: they are not."""

    def __init__(self, interface: str, kept: Path | None) -> None:
        self.told: dict[str, list[Any]] = {
            name: [] for name in ("begun", "ready", "applied", "sent", "received", "cpu")
        }
        self._interface, self._kept = interface, kept

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, LocalDeltaReady):
            self.told["ready"].append(now)
        for effect in effects:
            if isinstance(effect, TrainLocally):
                self._begin(now)
            if isinstance(effect, SaveModel) and effect.round_id:
                self.told["applied"].append(now)
                if self._kept:
                    np.save(self._kept / f"{effect.round_id}.npy", effect.parameters)

    def _begin(self, now: float) -> None:
        self.told["begun"].append(now)
        self.told["sent"].append(self._bytes("tx"))
        self.told["received"].append(self._bytes("rx"))
        self.told["cpu"].append(time.process_time())

    def end(self) -> None:
        """The last round is over: what it took is the difference to here."""
        self._begin(time.monotonic())

    def _bytes(self, way: str) -> int:
        return int((_COUNTERS / self._interface / "statistics" / f"{way}_bytes").read_text())


def main() -> None:
    given = msgspec.json.decode(sys.argv[1], type=Asked)
    me, rounds = Contributor(f"dev{given.rank}", time.time_ns() // 1000), given.rounds
    work = Recorded(given, given.size) if given.data else Noise(given.values, given.rank)
    meter, book = Meter(), Book(given.interface, Path(given.keep) if given.keep and not given.rank else None)
    cache = ModelCache(Path(given.folder) / me.peer_id)
    section = MeshSection(loopback=given.interface == "lo")

    def train(effect: TrainLocally) -> Event:
        meter.end_round()
        started = time.perf_counter()
        values, samples = work.train(effect.parameters, effect.round_id)
        report = TrainingReport(0.0, samples, time.perf_counter() - started)
        return LocalDeltaReady(effect.round_id, ModelDelta(values, 1.0, frozenset([me])), report)

    def observe(now: float, event: Event, effects: list[Effect]) -> None:
        meter.look(now, event, effects)
        book.look(now, event, effects)

    def save(effect: SaveModel) -> None:
        cache.save(CachedModel(effect.parameters, effect.round_id, "schema", "evaluation", {}, effect.digest))

    slow: dict[type[Any], Any] = {
        TrainLocally: train,
        SaveModel: save,
        SaveBallot: lambda effect: None,
        RecordRound: lambda effect: None,
        RecallDelta: lambda e: DeltaRecalled(e.round_id, work.recall(e.parameters, e.round_id)),
        Evaluate: lambda effect: Evaluated(effect.round_id, no_evaluation(0)),
    }
    mesh = Mesh.from_code(os.environ[CODE_VARIABLE])
    if given.system == "mesh":
        chain = RoundSection(rounds=rounds, min_peers=given.size, policy="greedy", exchange=given.exchange)
        config = Config(mesh=section, faults=_FAULTS, round=msgspec.structs.replace(chain, compress=given.compress))
        told = TrainerStart(work.start.size, b"", "schema", "evaluation")
        start = configured_start(config, me, told, time.monotonic())
        runtime = start_peer(start, build_machine(start, work.start), mesh, section, slow, observe=observe)
    else:
        info = PeerInfo(me.peer_id, me.incarnation, Role.TRAINER, "", section.port, "schema")
        machine = _machine(given, me, work.start)
        size = work.start.size
        runtime = start_runtime(machine, info, mesh, section, max_values=size, work=slow, observe=observe)
    threading.Thread(target=_watch_stdin, args=(runtime.stop,), daemon=True).start()
    finish = drive(runtime, mesh, section)
    meter.end_round()
    book.end()
    memory = {"extra_bytes": meter.extra_bytes, "applied_bytes": meter.applied_bytes}
    print(json.dumps(book.told | memory | {"problem": finish.problem, "values": work.start.size}), flush=True)


def _machine(given: Asked, me: Contributor, start: Vector) -> Machine:
    """Of a star: rank 0 is the master."""
    names = [f"dev{rank}" for rank in range(given.size)]
    if given.rank:
        return Slave(me, names[0], start, given.rounds)
    return Master(me, tuple(names[1:]), start, given.rounds, collects=given.system == "master")


def _watch_stdin(stop: Any) -> None:
    """Whoever started this has gone, or given up."""
    sys.stdin.read()
    stop()
    stop()


if __name__ == "__main__":
    main()
