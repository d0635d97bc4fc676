"""Extra memory of a trainer while it aggregates, in deltas, for N peers: it must not grow with N (MDLdroid 3.2.2).

    python -m benchmarks memory --peers 2 3 5 9 --rounds 7

Real processes, encrypted links on loopback, deltas of the cnn-lstm's size (11.6 M values, 46.4 MB). Local training is
replaced by a random delta, so that the memory of autograd does not hide the memory of aggregation. Each process samples
its resident memory every few milliseconds, from the moment it holds its own delta until it trains again: aggregation,
broadcast, applying and saving; "extra" is the peak of that above the first value, and "until applied" the peak until
the new parameters are handed to the file cache. Small deltas measure too little: the C library may keep up to 32 MB
that was freed, so that it is resident before the round begins.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
import psutil

from benchmarks.tool.apart import words_of
from benchmarks.tool.options import Namespace, Parser, add_rounds, need_more_rounds
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.table import show
from mdl.config import Compress, Config, Exchange, FaultSection, MeshSection, RoundSection
from mdl.files.ballot import BALLOT, BallotFile
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.peers.edge.node import drive, start_peer
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
    Finish,
    LocalDeltaReady,
    RecallDelta,
    RecordRound,
    SaveBallot,
    SaveModel,
    TrainLocally,
)
from mdl.protocol.vocabulary import TrainingReport
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Runtime
from mdl.transport.trust.keys import Mesh, new_join_code

_SAMPLE_S = 0.004
# The first rounds of a mesh keep the own delta while they are applied, and fill buffers; they are told apart.
_WARM_UP = 2
# Of a whole mesh; a busy machine needs minutes for nine processes.
_END_S = 500.0
_MESH = MeshSection(loopback=True)
# Processes that compete for few cores are slow, not lost.
_FAULTS = FaultSection(lost_after_s=30.0)


class Meter:
    """Peaks of resident memory above what it was when the own delta was held, per round: until applied, and in all."""

    def __init__(self) -> None:
        self.applied_bytes: list[int] = []
        self.extra_bytes: list[int] = []
        self._process = psutil.Process()
        self._start = 0
        self._peak = 0
        self._armed = False
        self._lock = threading.Lock()  # of the peak, which both threads raise
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, LocalDeltaReady):
            with self._lock:
                self._start = self._peak = self._process.memory_info().rss
            self._armed = True
        is_applied = any(isinstance(effect, SaveModel | Finish) for effect in effects)
        if is_applied and self._armed and len(self.applied_bytes) == len(self.extra_bytes):
            self.applied_bytes.append(self._grown())

    def end_round(self) -> None:
        """The next one begins, or the run is over."""
        if self._armed:
            self._armed = False
            self.extra_bytes.append(self._grown())

    def _grown(self) -> int:
        with self._lock:
            self._peak = max(self._peak, self._process.memory_info().rss)
            return self._peak - self._start

    def _sample(self) -> None:
        while not self._end.wait(_SAMPLE_S):
            if self._armed:
                self._grown()


class Watch(Protocol):
    """Looks at a device beside the meter. told: what it has seen, for the line of JSON."""

    def attach(self, runtime: Runtime[Links]) -> None: ...

    def look(self, now: float, event: Event, effects: list[Effect]) -> None: ...

    def told(self) -> dict[str, Any]: ...


def run_peer(
    name: str,
    values: int,
    rounds: int,
    peers: int,
    exchange: Exchange,
    compress: Compress,
    watch: Watch | None = None,
) -> None:
    """One device; whichever of them leads, all end after `rounds`. Prints what it measured as JSON."""
    section = RoundSection(rounds=rounds, min_peers=peers, policy="greedy", exchange=exchange, compress=compress)
    config = Config(mesh=_MESH, faults=_FAULTS, round=section)
    seconds: list[float] = []
    me = Contributor(name, 1)
    start = configured_start(config, me, TrainerStart(values, b"", "schema", "random"), time.monotonic())
    machine = build_machine(start)
    meter = Meter()

    def draw(round_id: int, out: Vector | None = None) -> Vector:
        """As a trained model would give it again: from what is kept anyway."""
        rng = np.random.default_rng([round_id, *name.encode()])
        return rng.standard_normal(values, dtype=np.float32, out=out)

    scratch = tempfile.TemporaryDirectory()
    folder = Path(scratch.name)
    cache, ballots = ModelCache(folder), BallotFile(folder / BALLOT)

    def train(effect: TrainLocally) -> Event:
        meter.end_round()
        delta = ModelDelta(draw(effect.round_id), 1.0, frozenset([me]))
        return LocalDeltaReady(effect.round_id, delta, TrainingReport(0.0, 1, 0.0))

    mesh = Mesh.from_code(os.environ[CODE_VARIABLE])
    runtime = start_peer(
        start,
        machine,
        mesh,
        _MESH,
        {
            TrainLocally: train,
            RecallDelta: lambda e: DeltaRecalled(e.round_id, draw(e.round_id, e.parameters if e.in_place else None)),
            Evaluate: lambda e: Evaluated(e.round_id, no_evaluation(0)),
            SaveModel: lambda e: cache.save(CachedModel(e.parameters, e.round_id, "schema", "memory", {})),
            SaveBallot: lambda e: ballots.save(e.ballot),
            RecordRound: lambda e: seconds.append(e.summary.seconds["total"]),
        },
        observe=watch.look if watch else meter.look,
    )
    if watch:
        watch.attach(runtime)
    drive(runtime, mesh, _MESH)
    meter.end_round()
    told = {"extra_bytes": meter.extra_bytes, "applied_bytes": meter.applied_bytes, "seconds": seconds}
    print(json.dumps(told | (watch.told() if watch else {})))
    scratch.cleanup()


def measure(peers: int, rounds: int, values: int, exchange: str, compress: str) -> dict[str, Any]:
    """One mesh; extra memory of every peer and round, in deltas. Raises Failed if a peer fails."""
    told = run_peers("benchmarks.memory:run_peer", values, rounds, peers, exchange, compress)
    extra = [[size / (values * 4) for size in each["extra_bytes"]] for each in told]
    applied = [size / (values * 4) for each in told for size in each["applied_bytes"][_WARM_UP:]]
    settled = [size for each in extra for size in each[_WARM_UP:]]
    if not settled or not applied:
        raise Failed(f"{peers} peers have had no more than {_WARM_UP} rounds: take more")
    seconds = [one for each in told for one in each["seconds"]]
    return {
        "peers": peers,
        "rounds": rounds,
        "extra_deltas_max": round(max(settled), 3),
        "extra_deltas_median": round(statistics.median(settled), 3),
        "until_applied_max": round(max(applied), 3),
        "until_applied_median": round(statistics.median(applied), 3),
        "first_rounds_max": round(max(size for each in extra for size in each[:_WARM_UP]), 3),
        "extra_deltas_by_peer_and_round": [[round(size, 2) for size in each] for each in extra],
        "round_s_median": round(statistics.median(seconds), 3),
    }


def run_peers(
    function: str, values: int, rounds: int, peers: int, exchange: str, compress: str
) -> list[dict[str, Any]]:
    """Return the figures of each peer of a mesh; each is a process that calls this function. Raises Failed."""
    environment = {**os.environ, CODE_VARIABLE: new_join_code("memory")}
    named = {
        name: subprocess.Popen(
            words_of(function, name, values, rounds, peers, exchange, compress),
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for name in (f"peer-{index}" for index in range(peers))
    }  # fmt: skip
    try:
        return [_read_peer(name, trainer) for name, trainer in named.items()]
    finally:
        for trainer in named.values():
            trainer.kill()
            trainer.wait()


def _read_peer(name: str, trainer: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the figures of a peer, once it has ended. Raises Failed."""
    try:
        said = trainer.communicate(timeout=_END_S)[0].splitlines()
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} is not done after {_END_S:.0f} s: take fewer rounds or peers") from None
    if trainer.returncode or not said:
        raise Failed(f"{name} ended with {trainer.returncode} and without a figure")
    told: dict[str, Any] = json.loads(said[-1])
    return told


def add_options(parser: Parser) -> None:
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 3, 5, 9])
    add_rounds(parser, 5)
    parser.add_argument("--values", type=int, default=11_600_000, help="size of the model, in float32 values")
    parser.add_argument("--exchange", choices=get_args(Exchange), default="chain", help="round.exchange")
    parser.add_argument("--compress", choices=get_args(Compress), default="none", help="round.compress, of segments")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure one mesh of each size. Raises ConfigError, Failed."""
    need_more_rounds(given.rounds, _WARM_UP)
    results = []
    for peers in given.peers:
        results.append(measure(peers, given.rounds, given.values, given.exchange, given.compress))
        print(f"{peers} peers: {results[-1]['extra_deltas_max']} deltas at most", file=sys.stderr, flush=True)
    keys = ("peers", "extra_deltas_max", "extra_deltas_median", "until_applied_max", "until_applied_median",
            "first_rounds_max")  # fmt: skip
    head = ("peers", "extra, largest", "median", "until applied", "median", "first rounds")
    show(head, [[one[key] for key in keys] for one in results])
    asked = {name: getattr(given, name) for name in ("values", "exchange", "compress")}
    sheet.tell(asked | {"results": results})
