"""A user's own PyTorch model and loop as a peer of a mesh, as `mdl.join` makes it, and a line a round for its user.

The node runs in threads of its own; the loop stays with the caller. At the start of each round the model holds w(t);
its change by the caller's loop until the end of the round is this device's contribution. Within a round the model is
the caller's: its tensors may move (`.to()`, `p.data = ...`); values are read and written in their current place. While
the loop waits for a round nothing may train the model. The node logs its steps as "mdl", as `mdl peer` does.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import nn

from mdl.config import Config
from mdl.defence.judge import length
from mdl.errors import ConfigError, MdlError, NameRefusedError, TrainingCancelledError
from mdl.files.ballot import BALLOT, BallotFile
from mdl.files.checkpoint import ModelCache
from mdl.files.export import save_tensors
from mdl.files.figures import Journal
from mdl.learning.flat import FlatModel, OwnState, hash_task, own_names, unwrap
from mdl.learning.loop import Loop
from mdl.learning.training import check_trained, model_delta
from mdl.peers.edge.identity import claim_again, claim_identity, release_identity, state_home
from mdl.peers.edge.membership import name_here, next_name, open_membership
from mdl.peers.edge.narrate import Narrator
from mdl.peers.edge.node import METRICS, drive, record_round, start_peer
from mdl.peers.edge.resume import DEVICE_FILES, LoopState, Origin, ResumeState, keep_state, restore_state, set_aside
from mdl.peers.edge.sampler import MergeTimer, Sampler
from mdl.peers.interrupts import interrupted_quietly
from mdl.peers.roles.build import PeerStart, build_machine, configured_start
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.run_end import Leaving
from mdl.peers.roles.trainer.guard import Defence
from mdl.peers.view.plain import OwnStream, PlainFormatter, limit_floods
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import ModelDelta
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    LocalDeltaReady,
    PauseChanged,
    RecallDelta,
    RecordRound,
    SaveBallot,
    SaveModel,
    StopRequested,
    TrainingPaused,
    TrainLocally,
)
from mdl.protocol.vector_work import MergeDeltas, Outer
from mdl.protocol.vocabulary import TrainingReport
from mdl.transport.trust.keys import Mesh

logger = logging.getLogger(__name__)

T = TypeVar("T")

logger = logging.getLogger("mdl")

# The most rounds that a callback may be behind: it is asked once in each round of its own loop.
_MOST_WAITING = 1_000


@dataclass(frozen=True)
class RoundDone:
    """A round with its result. planned_rounds: the run's last round; 0: open.

    devices: number of contributors. loss, samples: of this device's own training, None and 0 if it did not train in it.
    seconds: since this device began to train for it. sent_bytes, received_bytes: over its links since the last one.
    """

    round_id: int
    planned_rounds: int
    devices: int
    loss: float | None
    samples: int
    seconds: float
    sent_bytes: int
    received_bytes: int

    def __str__(self) -> str:
        of = f" of {self.planned_rounds}" if self.planned_rounds else ""
        own = "" if self.loss is None else f"loss {self.loss:.4g} on {self.samples:,} samples, "
        bytes_told = f"{_megabytes(self.sent_bytes)} MB sent, {_megabytes(self.received_bytes)} MB received"
        many = "" if self.devices == 1 else "s"
        return f"round {self.round_id}{of}: {own}{self.devices} device{many}, {self.seconds:.1f} s, {bytes_told}"


class RoundLines:
    """Logs a line a round; part of `observe` of a runtime. counts: (sent, received) bytes so far. quiet: no lines."""

    def __init__(self, counts: Callable[[], tuple[int, int]], quiet: bool = False) -> None:
        self._counts, self._quiet = counts, quiet
        # By round: of the open one, and with `overlap` of the next.
        self._began: dict[int, float] = {}
        self._trained: dict[int, TrainingReport] = {}
        self._planned = 0
        self._told = (0, 0)
        self._done: queue.SimpleQueue[RoundDone] = queue.SimpleQueue()

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, LocalDeltaReady):
            self._trained[event.round_id] = event.training
        for effect in effects:
            if isinstance(effect, TrainLocally):
                self._began[effect.round_id], self._planned = now, effect.planned_rounds
            elif isinstance(effect, SaveModel):
                self._end(effect, now)

    def report(self, progress: Callable[[RoundDone], object] | None) -> None:
        """Hand over the rounds that are done since the last call, in the caller's thread."""
        while not self._done.empty():
            done = self._done.get()
            if progress is not None:
                progress(done)

    def _end(self, effect: SaveModel, now: float) -> None:
        sent, received = self._counts()
        own, began = self._trained.get(effect.round_id), self._began.get(effect.round_id, now)
        done = RoundDone(
            effect.round_id,
            self._planned,
            len(effect.history.base),
            own.loss if own else None,
            own.samples if own else 0,
            now - began,
            sent - self._told[0],
            received - self._told[1],
        )
        self._told = sent, received
        self._began, self._trained = _after(effect.round_id, self._began), _after(effect.round_id, self._trained)
        if not self._quiet:
            logger.info("%s", done)
        while self._done.qsize() >= _MOST_WAITING:
            self._done.get()
        self._done.put(done)


def _after(round_id: int, of: dict[int, T]) -> dict[int, T]:
    return {later: told for later, told in of.items() if later > round_id}


class _Unless(logging.Filter):
    """Passes lines only if no logging is set up, and none about steps within a round."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.root.handlers and not getattr(record, "is_step", False)


def tell_on_stderr() -> None:
    """Log to stderr in a program without logging of its own; once it sets up logging, our lines go there."""
    if logger.hasHandlers():
        return
    handler = OwnStream(sys.stderr)
    handler.setFormatter(PlainFormatter("mdl: %(message)s"))
    handler.addFilter(_Unless())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}" if count >= 1_000_000 else f"{count / 1e6:.3f}"


Progress: TypeAlias = Callable[[RoundDone], object]

told = logging.getLogger("mdl")  # mdl.peers.edge.narrate logs there too

RESULT = "global.safetensors"
_STOP_S = 5.0


@dataclass
class Round:
    """One round of the mesh. loss and samples: the loop may set them, for the mesh's metrics.

    given_up: a loop that must pause sets it: its change of the model is dropped, and the round comes again later.
    """

    round_id: int
    planned_rounds: int
    loss: float = 0.0
    samples: int = 0
    given_up: bool = False


class Place(NamedTuple):
    """A member's files, name and weight; as of `join`."""

    name: str | None = None
    out: Path | None = None
    theta: float = 1.0
    fresh: bool = False
    classes: tuple[str, ...] = ()


class Saying(NamedTuple):
    """A member's messages; as of `join`."""

    progress: Progress | None = None
    quiet: bool = False


class Member:
    """A device in a mesh: iterate over its rounds, or `run()` them. Use as a context manager.

    At the start of each round, and at the end, `model` holds the mesh's global parameters; the end may be an exception.
    Ctrl-C is raised as ever, and ends a program that does not catch it without a traceback.
    mesh, name: the mesh's name, and this device's in it. round_id: of the last result that is here; 0 if none is.
    path: of that result, as a safetensors file, once the member has ended.
    """

    def __init__(self, mesh: Mesh, model: nn.Module, loop: Loop, place: Place, saying: Saying, config: Config) -> None:
        limit_floods()
        if not saying.quiet:
            tell_on_stderr()
        self.model = model
        self._failure: BaseException | None = None
        self._loop, self._saying, self._config = loop, saying, config
        self._flat = FlatModel(model, own=own_names(model, config.training.batch_norm))
        self._check_optimizer()
        self._joined, self._place = mesh, place
        self._todo: queue.SimpleQueue[TrainLocally | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[LocalDeltaReady | TrainingPaused | None] = queue.SimpleQueue()
        self._has_ended, self._changing = False, threading.Lock()
        self._enter(name_here(open_membership(mesh.keys) if mesh.keys else None) if place.name is None else "")
        self._thread = threading.Thread(target=self._drive, name="mdl-member", daemon=True)

    def _enter(self, host: str) -> None:
        """Take this name, if none was given, and everything that belongs to it. Raises ConfigError."""
        mesh, place, loop, config, saying = self._joined, self._place, self._loop, self._config, self._saying
        self._me, self._directory = claim_identity(state_home(mesh.name), place.name, place.out, host)
        with ExitStack() as undo:
            undo.callback(release_identity, self._directory)
            self.mesh, self.name = mesh.shown, self._me.peer_id
            self.path = self._directory / RESULT
            self._trained_from: Callable[[], Vector | None] = lambda: None
            self._holds_result = self._has_warned = False
            self._theta = place.theta
            self._cache, self._ballots = ModelCache(self._directory), BallotFile(self._directory / BALLOT)
            self._origin = Origin(mesh.name, hash_task(self._flat.task_schema, place.classes), _describe(self._flat))
            own = {"batch norm": OwnState(self._flat.own_state)} if self._flat.own_state() else {}
            self._state = LoopState(self._directory, self._origin.schema_hash, loop.stateful() | own)
            state = self._restore(place.fresh)
            self._leaving = Leaving(config.round.rounds, state.round_id)
            start, merges = self._start(state), MergeTimer()
            self._sampler = Sampler(merges=merges)
            peer = build_machine(start, state.parameters)
            assert peer.trainer is not None
            self._machine = peer.trainer
            self._runtime = start_peer(
                start,
                peer,
                mesh,
                config.mesh,
                {**self._work(), MergeDeltas: merges.work},
                observe=self._observe,
                sample=self._sampler,
                renew=self._begin_again,
            )
            counts = self._runtime.links.counts
            self._narrator = Narrator(self.mesh, "start the same program there", self.name, self._leaving.stays_for)
            self._lines = RoundLines(lambda: (counts.sent_bytes, counts.received_bytes), saying.quiet)
            undo.pop_all()

    @property
    def round_id(self) -> int:
        return self._machine.round_id

    def __enter__(self) -> Member:
        if self._failure is not None:
            raise self._failure
        if not self._saying.quiet:
            joins = "%s joins mesh %r and waits for its devices; it has round %d"
            told.info(joins, self.name, self.mesh, self.round_id)
        self._thread.start()
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        try:
            self._end()
            self._take_result()
            self._save_result()
        except ConfigError as error:
            if problem is None:
                raise
            logger.warning("the model does not hold the result of round %d: %s", self.round_id, error)
        if isinstance(problem, KeyboardInterrupt):
            interrupted_quietly(problem)

    def __iter__(self) -> Iterator[Round]:
        """Yield the rounds of the mesh, until it finishes.

        Raises ConfigError if this device was refused, or the node's error.
        """
        if self._thread.ident is None:
            self._runtime.close()
            release_identity(self._directory)  # a program that joins again is the same device
            self._failure = ConfigError("a member is used as `with mdl.join(...) as mesh: for this in mesh: ...`")
            raise self._failure
        while (work := self._todo.get()) is not None:
            self._lines.report(self._saying.progress)
            self._flat.load(work.parameters)
            started = time.perf_counter()
            this = Round(work.round_id, work.planned_rounds)
            yield this
            if this.given_up:
                self._done.put(TrainingPaused(this.round_id))
                continue
            delta = model_delta(work.parameters, self._flat.gather())
            self._look_at(delta)
            self._flat.check_constants(delta)
            seconds = time.perf_counter() - started
            report = TrainingReport(float(this.loss), int(this.samples), seconds, length=length(delta))
            self._done.put(
                LocalDeltaReady(work.round_id, ModelDelta(delta, self._theta, frozenset([self._me])), report)
            )
            self._state.keep(work.round_id)
        self._take_result()
        self._lines.report(self._saying.progress)
        if self._failure is not None:
            raise self._failure

    def pause(self, reason: str) -> None:
        """Tell the mesh why this device may not train now; "": it may again. May be called from any thread."""
        self._runtime.post(PauseChanged(reason))

    def run(self) -> None:
        """Train one pass over `data` in every round, until the mesh finishes."""
        self._loop.prepare(self.model)
        with self:
            for this in self:
                this.loss, this.samples = self._loop.train(self.model)

    def _end(self) -> None:
        """Leave the mesh; a second Ctrl-C meanwhile does not wait for it."""
        try:
            with self._changing:
                self._has_ended = True
                self._runtime.stop()
            self._done.put(None)
            self._thread.join(_STOP_S)
        except KeyboardInterrupt as again:
            interrupted_quietly(again)
            raise
        finally:
            release_identity(self._directory)

    def _observe(self, now: float, event: Event, effects: list[Effect]) -> None:
        """Look at a step, in the node's thread."""
        if not self._saying.quiet:
            self._narrator.look(now, event, effects)
        self._lines.look(now, event, effects)
        if any(isinstance(effect, SaveModel) for effect in effects):
            self._sampler.close_round()
        machine = self._machine
        if why := self._leaving.why(machine.round_id, machine.goal, machine.part is not None, False):
            told.info("%s", why)
            self._runtime.post(StopRequested())

    def _save_result(self) -> None:
        """Save the mesh's result beside the file cache, for `load_state_dict`, without frozen parameters."""
        if not self.round_id:
            return
        try:
            save_tensors(self.path, self._flat, {"mesh": self.mesh, "round_id": str(self.round_id)})
            told.info("the result of round %d is in the model, and in %s", self.round_id, self.path)
        except MdlError as error:
            logger.warning("the result of round %d is in the model alone: %s", self.round_id, error)

    def _take_result(self) -> None:
        """Load the result once: changes by the caller after the last round stay."""
        if not self._holds_result:
            self._flat.load(self._machine.parameters)
            self._holds_result = True

    def _look_at(self, delta: Vector) -> None:
        """Warn once if a delta is zero: the loop may train a copy, or parameters that `load_state_dict` replaced."""
        if not self._has_warned and not delta.any():
            self._has_warned = True
            logger.warning("the loop has changed nothing: it has to train the model that it handed to join")

    def _check_optimizer(self) -> None:
        if (optimizer := self._loop.optimizer) is None:
            return
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if trained.isdisjoint(map(id, self.model.parameters())):
            raise ConfigError("the optimizer holds none of the model's parameters: make it from model.parameters()")

    def _restore(self, fresh: bool) -> ResumeState:
        """Return the state in the file cache, or the model as it was handed in."""
        if fresh:
            set_aside(self._directory, DEVICE_FILES)
        state = restore_state(self._cache, self._origin) or ResumeState(self._flat.values().copy())
        self._state.restore(state.round_id)
        return state

    def _begin_again(self) -> tuple[PeerStart, Peer]:
        """Begin again as another start, from the last model on the disk.

        The result of the loop's current round is dropped.
        """
        self._me = claim_again(self._directory, self._me)
        state = restore_state(self._cache, self._origin) or ResumeState(self._machine.parameters)
        start = self._start(state)
        peer = build_machine(start, state.parameters)
        assert peer.trainer is not None
        self._machine = peer.trainer
        return start, peer

    def _start(self, state: ResumeState) -> PeerStart:
        trainer = state.start(self._origin.schema_hash, self._origin.model, self._ballots.begin(), Outer(), self._theta)
        return configured_start(self._config, self._me, trainer, time.monotonic(), defence=Defence(seed=randbits(63)))

    def _drive(self) -> None:
        """Drive the node in its own thread; any error is raised in the caller's loop."""
        try:
            finish = self._drive_under_a_free_name()
            self._ballots.end()
            if finish.problem:
                self._failure = (ConfigError if finish.exit_code == ConfigError.exit_code else MdlError)(finish.problem)
        except BaseException as error:  # noqa: BLE001 (the outermost loop of this thread)
            self._failure = error
        finally:
            self._todo.put(None)

    def _drive_under_a_free_name(self) -> Finish:
        """Run the node; while its name turns out to be another device's, take the next one and begin again."""
        while True:
            try:
                return drive(self._runtime, self._joined, self._config.mesh)
            except NameRefusedError as refused:
                with self._changing:
                    if (
                        self._has_ended
                        or self._place.name is not None
                        or not (name := next_name(self._joined, refused))
                    ):
                        raise
                    release_identity(self._directory)
                    self._enter(name)

    def _work(self) -> dict[Any, Callable[[Any], Event | None]]:
        metrics = Journal(self._directory / METRICS)
        return {
            TrainLocally: self._train,
            RecallDelta: self._recall,
            Evaluate: _evaluate,
            SaveModel: self._save,
            SaveBallot: lambda effect: self._ballots.save(effect.ballot),
            RecordRound: lambda effect: record_round(metrics, effect),
        }

    def _train(self, effect: TrainLocally) -> Event:
        """Hand the round to the caller's loop and wait for its delta, in the worker's thread."""
        if not self._leaving.stays_for(effect.round_id):
            return TrainingPaused(effect.round_id)
        self._trained_from = lambda: None  # until the loop has done with it
        self._todo.put(effect)
        ready = self._done.get()
        while ready is not None and ready.round_id != effect.round_id:
            ready = self._done.get()  # from a round that went on without us
        if ready is None:
            self._done.put(None)  # for a round that was opened meanwhile
            raise TrainingCancelledError(f"round {effect.round_id}: the loop has ended")
        if isinstance(ready, TrainingPaused):
            return ready
        self._trained_from = weakref.ref(effect.parameters)
        check_trained(ready.delta.values, ready.round_id)
        return ready

    def _recall(self, effect: RecallDelta) -> Event:
        """Return this round's delta again; the loop waits for its next round, so the model still holds w_i."""
        if self._trained_from() is not effect.parameters:
            return DeltaRecalled(effect.round_id, None)
        if effect.in_place:
            self._trained_from = lambda: None
        return DeltaRecalled(effect.round_id, model_delta(effect.parameters, self._flat.values(), effect.in_place))

    def _save(self, effect: SaveModel) -> None:
        keep_state(self._cache, effect, self._origin)


def _describe(model: FlatModel) -> str:
    """Describe the model for the line that tells two models apart."""
    name = type(unwrap(model.module)).__name__
    return f"{name} with {model.frozen}" if model.frozen.size else name


def _evaluate(effect: Evaluate) -> Event:
    return Evaluated(effect.round_id, no_evaluation(0))
