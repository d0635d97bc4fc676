"""Real peer processes under SIGKILL and SIGSTOP: does every round close, how soon, and what does it cost in accuracy?

    python -m benchmarks chaos --data uci-har:PATH --kills 200 --stops 50 --seed 0 --plot chaos.svg

Each peer is one `mdl peer` with a run directory of its own, so that a restarted one finds its file cache and a new
incarnation; whichever of them leads is the agent. A plan drawn from the seed kills processes at random moments (a good
part of them whoever leads just then), starts them again after 0.5 to 3 s, and suspends others for 1 to 8 s. All is
measured from outside: answers of the agents ten times a second, metrics, and every delta that the peers wrote. Then
the same settings run for as many rounds without faults, to compare the accuracy.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.plot import draw_chaos
from benchmarks.faults.watch import SPREAD, Book, DeltaCheck, Eye, Fault, summarise, watch
from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_settings
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.table import show
from mdl.config import load_config
from mdl.peers.launch.processes import Child, Children
from mdl.peers.use.inference import evaluate_model
from mdl.transport.trust.keys import Mesh, new_join_code

_SETTINGS = (
    "training.optimizer=sgd",
    "training.learning_rate=0.02",
    "training.batch_size=8",
    "training.label_smoothing=0.1",
    "round.keep_deltas=true",
)
_SLOW = ("training.batch_size=1", "training.learning_rate=0.0025")
AGENT = "agent"  # a dedicated one stands by without a word
_GAP_S = 1.0  # until the next fault, on average, once enough others are there again
_AT_ONCE = 0.12  # share of faults that follow the one before it at once
# How many may be down after a fault, as shares of the peers: one or two of six, seldom a majority.
_DEPTHS, _DEPTH_SHARES = (0.17, 0.34, 0.7), (0.2, 0.76, 0.04)
_AGENT_SHARE = 0.4  # share of kills that hit whoever leads
_HANG_S = 60.0
_DEAF_S = 60.0  # a process that runs, but takes no part for so long
_CALM_ROUNDS = 5  # closed with everybody there, before the end
_END_S = 20.0


@dataclass
class Process:
    """One peer of the mesh, through all its incarnations."""

    name: str
    arguments: list[str]
    child: Child | None = None
    starts: int = 0
    stopped: bool = False

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.process.poll() is None and not self.stopped

    def send(self, number: int) -> None:
        assert self.child is not None
        self.child.process.send_signal(number)


@dataclass
class Arena:
    """The processes of one run, and the clock of what is to be done to them."""

    children: Children
    processes: dict[str, Process]
    eye: Eye
    book: Book
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.due, (when, next(self.numbers), action))

    def run_due(self) -> None:
        while self.due and self.due[0][0] <= time.monotonic():
            heapq.heappop(self.due)[2]()

    def start(self, process: Process) -> None:
        process.starts += 1
        process.child = self.children.start(f"{process.name}-{process.starts}", *process.arguments)
        self.book.started.append((time.monotonic(), process.name))

    def kill(self, process: Process, was_agent: bool, restart_s: float) -> None:
        self._note("kill", process, was_agent, restart_s)
        process.send(signal.SIGKILL)
        assert process.child is not None
        process.child.process.wait()
        if process.child.process.stdin:
            process.child.process.stdin.close()
        self.at(time.monotonic() + restart_s, lambda: self.start(process))

    def stop(self, process: Process, was_agent: bool, pause_s: float) -> None:
        self._note("stop", process, was_agent, pause_s)
        process.send(signal.SIGSTOP)
        process.stopped = True
        self.at(time.monotonic() + pause_s, lambda: self.go_on(process))

    def go_on(self, process: Process) -> None:
        process.send(signal.SIGCONT)
        process.stopped = False

    def down(self) -> list[str]:
        """Whom the mesh has to do without: not running, suspended, or not heard yet since its start."""
        heard = self.eye.alive()
        return [p.name for p in self.processes.values() if not (p.is_running and p.name in (*heard, AGENT))]

    def _note(self, kind: str, process: Process, was_agent: bool, seconds: float) -> None:
        term, seen = self.eye.agent_term(), self.eye.incarnation(process.name)
        fault = Fault(
            time.monotonic(), kind, process.name, seen, was_agent, seconds, self.eye.closed, term, self.down()
        )
        self.book.faults.append(fault)
        if kind == "kill":
            self.eye.forget(process.name)

    def close(self) -> None:
        for process in self.processes.values():
            if process.stopped:
                self.go_on(process)


@dataclass(frozen=True)
class Planned:
    """gap_s: since the moment it became possible; depth: the share of the peers that may be down with it."""

    kind: str
    agent: bool
    gap_s: float
    seconds: float
    depth: float


def draw_plan(kills: int, stops: int, rng: np.random.Generator) -> list[Planned]:
    kinds = [("kill", index < round(kills * _AGENT_SHARE)) for index in range(kills)]
    kinds += [("stop", index < round(stops * _AGENT_SHARE)) for index in range(stops)]
    plan = []
    for index in rng.permutation(len(kinds)):
        kind, agent = kinds[index]
        seconds = rng.uniform(0.5, 3.0) if kind == "kill" else rng.uniform(1.0, 8.0)
        gap_s = 0.0 if rng.random() < _AT_ONCE else float(rng.exponential(_GAP_S))
        depth = max(_DEPTHS[0] if gap_s else _DEPTHS[1], float(rng.choice(_DEPTHS, p=_DEPTH_SHARES)))
        plan.append(Planned(kind, agent, gap_s, float(seconds), depth))
    return plan


def choose_victim(arena: Arena, planned: Planned, rng: np.random.Generator) -> Process | None:
    """A process that is up; None as long as there is none of the wanted kind, or too few others would be left."""
    down = arena.down()
    if len(down) + 1 > max(1, round(planned.depth * len(arena.processes))):
        return None
    leader = arena.eye.leader()
    up = [process for process in arena.processes.values() if process.name not in down]
    if planned.agent:
        return next((process for process in up if process.name == leader), None)
    others = [process for process in up if process.name != leader]
    return others[int(rng.integers(len(others)))] if others and leader else None


def play(arena: Arena, plan: list[Planned], rng: np.random.Generator, progress: Progress) -> None:
    """All faults of the plan. What the mesh does at that moment has no influence on when they come."""
    for number, planned in enumerate(plan):
        what = f"fault {number + 1} of {len(plan)}"
        while choose_victim(arena, planned, rng) is None:
            progress.turn(arena, what)
        strikes_at = time.monotonic() + planned.gap_s
        victim = None
        while victim is None:
            progress.turn(arena, what)
            if time.monotonic() >= strikes_at:
                victim = choose_victim(arena, planned, rng)
        was_agent = victim.name == arena.eye.leader()
        act = arena.kill if planned.kind == "kill" else arena.stop
        act(victim, was_agent, planned.seconds)
        whom = f"{victim.name}{' (agent)' if was_agent else ''} for {planned.seconds:.1f} s"
        print(f"{time.monotonic() - arena.book.began:6.1f} s: {planned.kind} {whom}", file=sys.stderr, flush=True)


@dataclass
class Progress:
    """Every turn of the main loop: due actions, new files, hangs, a line now and then."""

    check: DeltaCheck
    give_up_at: float
    hangs: list[float] = field(default_factory=list)
    deaf: list[str] = field(default_factory=list)
    heard_at: dict[str, float] = field(default_factory=dict)
    majority_since: float = 0.0
    closed: int = 0
    closed_at: float = 0.0
    say_at: float = 0.0

    def turn(self, arena: Arena, what: str) -> None:
        arena.eye.changed.wait(0.02)
        arena.eye.changed.clear()
        arena.run_due()
        now = time.monotonic()
        self.check.look(now)
        running = sum(process.is_running for process in arena.processes.values())
        if 2 * running <= len(arena.processes) or not self.majority_since:
            self.majority_since = now
        if arena.eye.closed > self.closed:
            self.closed, self.closed_at = arena.eye.closed, now
        if now - max(self.majority_since, self.closed_at) > _HANG_S:
            self.hangs.append(now - arena.book.began)
            self.majority_since = now
            status = arena.eye.status
            print(f"HANG at {now - arena.book.began:.0f} s: {status}", file=sys.stderr)
        self._restart_the_deaf(arena, now)
        for process in arena.processes.values():
            if process.child and process.child.process.poll() not in (None, -signal.SIGKILL):
                raise Failed(f"{process.name} ended by itself: {process.child.problem()} ({process.child.log})")
        if now > self.give_up_at:
            raise Failed(f"not done in time: {what}, {self.closed} rounds closed, status {arena.eye.status}")
        if now >= self.say_at:
            self.say_at = now + 10.0
            said = f"{what}, {self.closed} rounds, agent {arena.eye.leader() or '-'}, {len(arena.down())} down"
            print(f"{now - arena.book.began:6.0f} s: {said}", file=sys.stderr, flush=True)

    def _restart_the_deaf(self, arena: Arena, now: float) -> None:
        down = arena.down()
        for name, process in arena.processes.items():
            if name not in down or not process.is_running:
                self.heard_at[name] = now
            elif now - self.heard_at.setdefault(name, now) > _DEAF_S and process.child:
                print(f"DEAF: {name}, process {process.child.process.pid}, is started again", file=sys.stderr)
                self.deaf.append(name)
                process.send(signal.SIGKILL)
                process.child.process.wait()
                arena.start(process)
                self.heard_at[name] = now


def run_mesh(given: Namespace, out: Path, plan: list[Planned], rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    """One mesh: the plan's faults, then rounds in peace until `rounds` are closed; how it went."""
    code = new_join_code("chaos")
    config = load_config(None, {"mesh.loopback": True})
    out.mkdir(parents=True, exist_ok=True)
    book = Book(time.monotonic())
    with Children(out / "logs", code, 1) as children, watch(Mesh.from_code(code), config.mesh) as eye:
        arena = Arena(children, _processes(given, out), eye, book)
        check = DeltaCheck(out, [name for name in arena.processes if name != AGENT])
        progress = Progress(check, time.monotonic() + given.limit_s)
        try:
            for process in arena.processes.values():
                arena.start(process)
            while eye.closed < 1 or arena.down():
                progress.turn(arena, "starting")
            book.began = time.monotonic()
            try:
                play(arena, plan, rng, progress)
            except KeyboardInterrupt:
                print("interrupted: what there was of faults is judged; again Ctrl-C ends it", file=sys.stderr)
            book.ended = time.monotonic()
            calm = 0
            while eye.closed < max(rounds, calm + _CALM_ROUNDS) or arena.down() or arena.due:
                if arena.down() or arena.due:
                    calm = eye.closed
                progress.turn(arena, "calm")
            _end_all(arena)
        finally:
            arena.close()
            children.stop()
    check.look(time.monotonic(), last=True)
    models = sorted(out.glob("peer-*/global.safetensors"))
    accuracy = evaluate_model(models[0], given.data)["accuracy"]
    return {
        "book": book,
        "eye": eye,
        "check": check,
        "hangs": progress.hangs,
        "deaf": progress.deaf,
        "accuracy": accuracy,
        "models": models,
    }


def _end_all(arena: Arena) -> None:
    """SIGTERM for everybody at once; they export what they have."""
    for process in arena.processes.values():
        process.send(signal.SIGTERM)
    for process in arena.processes.values():
        assert process.child is not None
        try:
            process.child.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            print(f"{process.name} did not end in {_END_S:g} s", file=sys.stderr)


def _processes(given: Namespace, out: Path) -> dict[str, Process]:
    sets = [*_SETTINGS, f"training.rounds_per_epoch={given.rounds_per_epoch}"]
    sets += [f"training.planned_rounds={given.planned_rounds}", f"round.min_peers={given.peers}", *given.set]
    common = ["--loopback", "--json", *(word for each in sets for word in ("--set", each))]
    processes = {}
    for index in range(1, given.peers + 1):
        name = f"peer-{index}"
        own = ["--data", given.data, "--shard", f"{index}/{given.peers}", "--name", name, "--out", str(out / name)]
        own += ["--model", given.model, "--seed", str(given.seed)]
        own += [word for each in (_SLOW if index <= given.slow else ()) for word in ("--set", each)]
        processes[name] = Process(name, ["peer", *common, *own])
    if given.agent:
        processes[AGENT] = Process(AGENT, ["agent", *common, "--out", str(out / AGENT)])
    return processes


def add_options(parser: Parser) -> None:
    add_data(parser, what="for example uci-har:PATH")
    add_model(parser)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--slow", type=int, default=0, help="so many peers train on one window at a time, for longer")
    parser.add_argument("--agent", action="store_true", help="also start a dedicated `mdl agent`")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds-per-epoch", type=int, default=3)
    parser.add_argument("--planned-rounds", type=int, default=200, help="over which the learning rate falls")
    add_settings(parser)
    parser.add_argument("--no-reference", action="store_true", help="without the run that has no faults")
    parser.add_argument("--limit-s", type=float, default=2400.0, help="a run that takes longer is given up")
    parser.add_argument("--keep", type=Path, help="a folder for logs and run directories")
    parser.add_argument("--plot", type=Path, help="write a figure (SVG)")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure a mesh with the plan's faults, and one without. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = given.keep or Path(folder)
        rng = np.random.default_rng(given.seed)
        plan = draw_plan(given.kills, given.stops, rng)
        faulty = run_mesh(given, out / "faults", plan, given.planned_rounds, rng)
        result = {"peers": given.peers, "seed": given.seed, **summarise(faulty)}
        if not given.no_reference:
            calm = run_mesh(given, out / "calm", [], result["rounds_closed"], rng)
            result["accuracy_without_faults"] = calm["accuracy"]
            result["accuracy_difference"] = result["accuracy"] - calm["accuracy"]
    if given.plot:
        given.plot.write_text(draw_chaos(result))
    show(("", ""), [(name, told) for name, told in result.items() if not isinstance(told, list | dict)])
    spreads = {name: told for name, told in result.items() if isinstance(told, dict)}
    show(("seconds", *SPREAD), [(name, *(told[each] for each in SPREAD)) for name, told in spreads.items()])
    sheet.tell(result)
