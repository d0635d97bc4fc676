"""The Python API behind `peers.join`: an own PyTorch model and loop as a peer of a mesh.

The node runs in threads of its own; the loop stays with the caller. At the start of each round the model holds w(t);
what the caller's loop made of it by the end of the round is this device's contribution. Within a round the model is
the caller's: its tensors may move (`.to()`, `p.data = ...`), values are read and written where they are. While the loop
waits for a round nobody may train the model. What the node does is logged as "mdl", as `mdl peer` tells it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mdl.config import Config, MeshSection, RoundSection
from mdl.errors import ConfigError, MdlError, TrainingCancelledError
from mdl.files.ballot import BALLOT, BallotFile
from mdl.files.checkpoint import ModelCache
from mdl.files.journal import Journal
from mdl.learning.flat import FlatModel, hash_task
from mdl.learning.tensors import unwrap
from mdl.learning.training import check_trained, model_delta
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import ModelDelta, Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Evaluate,
    Evaluated,
    Event,
    LocalDeltaReady,
    PauseChanged,
    RecallDelta,
    RecordRound,
    SaveBallot,
    SaveModel,
    TrainingPaused,
    TrainLocally,
)
from mdl.protocol.vector_work import MergeDeltas, Outer
from mdl.protocol.vocabulary import TrainingReport
from peers.edge.identity import claim_identity, find_code, release_identity, state_home
from peers.edge.narrate import Narrator
from peers.edge.node import METRICS, drive, record_round, start_peer
from peers.edge.resume import DEVICE_FILES, Origin, State, keep_state, restore_state, set_aside
from peers.edge.sampler import MergeTimer, Sampler
from peers.roles.build import PeerStart, build_machine, configured_start
from peers.view.plain import limit_floods
from transport.trust.keys import Mesh

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

logger = logging.getLogger(__name__)
told = logging.getLogger("mdl")  # where peers.edge.narrate goes on

_STOP_S = 5.0


@dataclass
class Round:
    """One round of the mesh. loss and samples: what the loop may set, for the mesh's metrics.

    given_up: a loop that must pause sets it: what it made of the model is dropped, and the round comes again later.
    """

    round_id: int
    planned_rounds: int
    loss: float = 0.0
    samples: int = 0
    given_up: bool = False


class Member:
    """A device in a mesh: iterate over its rounds, or `run()` them. Use as a context manager.

    At the start of each round, and at the end, `model` holds the mesh's global parameters; the end may be an exception.
    mesh, name: the mesh's name, and this device's in it. round_id: the last round whose result is here; 0 if none.
    """

    def __init__(
        self,
        mesh: Mesh,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        data: Batches | None,
        loss: Loss | None,
        name: str | None,
        theta: float,
        out: Path | None,
        section: MeshSection,
        fresh: bool = False,
        classes: Iterable[str] = (),
        rounds: int = 0,
    ) -> None:
        limit_floods()
        self.model = model
        self._failure: BaseException | None = None
        self._optimizer, self._data, self._loss = optimizer, data, loss
        self._flat = FlatModel(model)
        self._check_optimizer()
        self._me, self._directory = claim_identity(state_home(mesh.name), name, out)
        self.mesh, self.name = mesh.name, self._me.peer_id
        self._theta = theta
        self._trained_from: Callable[[], Vector | None] = lambda: None
        self._holds_result = self._has_warned = False
        self._joined, self._section, self._rounds = mesh, section, rounds
        self._cache, self._ballots = ModelCache(self._directory), BallotFile(self._directory / BALLOT)
        self._todo: queue.SimpleQueue[TrainLocally | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[LocalDeltaReady | TrainingPaused | None] = queue.SimpleQueue()
        self._origin = Origin(mesh.name, hash_task(self._flat.task_schema, classes), _describe(self._flat))
        state = self._restore(fresh)
        start, merges = self._start(state), MergeTimer()
        peer = build_machine(start, state.parameters)
        assert peer.trainer is not None
        self._machine = peer.trainer
        self._runtime = start_peer(
            start,
            peer,
            mesh,
            section,
            {**self._work(), MergeDeltas: merges.work},
            observe=Narrator(self.mesh, "start the same program there", self.name).look,
            sample=Sampler(merges=merges),
        )
        self._thread = threading.Thread(target=self._drive, name="mdl-member", daemon=True)

    @property
    def round_id(self) -> int:
        return self._machine.round_id

    def __enter__(self) -> Member:
        told.info("%s joins mesh %r and waits for its devices; it has round %d", self.name, self.mesh, self.round_id)
        self._thread.start()
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        self._runtime.stop()
        self._done.put(None)
        self._thread.join(_STOP_S)
        release_identity(self._directory)
        try:
            self._take_result()
        except ConfigError as error:
            if problem is None:
                raise
            logger.warning("the model does not hold the result of round %d: %s", self.round_id, error)

    def __iter__(self) -> Iterator[Round]:
        """The rounds of the mesh, until it finishes. Raises ConfigError if this device was refused, or what failed."""
        if self._thread.ident is None:
            raise ConfigError("a member is used as `with peers.join(...) as mesh: for this in mesh: ...`")
        while (work := self._todo.get()) is not None:
            self._flat.load(work.parameters)
            started = time.perf_counter()
            this = Round(work.round_id, work.planned_rounds)
            yield this
            if this.given_up:
                self._done.put(TrainingPaused(this.round_id))
                continue
            delta = model_delta(work.parameters, self._flat.gather())
            self._look_at(delta)
            report = TrainingReport(float(this.loss), int(this.samples), time.perf_counter() - started)
            self._done.put(
                LocalDeltaReady(work.round_id, ModelDelta(delta, self._theta, frozenset([self._me])), report)
            )
        self._take_result()
        if self._failure is not None:
            raise self._failure

    def pause(self, reason: str) -> None:
        """Tell the mesh that this device may not train now, and why; "": it may again. From any thread."""
        self._runtime.post(PauseChanged(reason))

    def run(self) -> None:
        """Train one pass over `data` in every round, until the mesh finishes."""
        if self._optimizer is None or self._data is None or self._loss is None:
            raise ConfigError(
                "run() needs optimizer, data and loss; or iterate over the rounds with a loop of your own"
            )
        with self:
            for this in self:
                total = 0.0
                for x, y in self._data:
                    self._optimizer.zero_grad()
                    loss = self._loss(self.model(x), y)
                    loss.backward()  # type: ignore[no-untyped-call]
                    self._optimizer.step()
                    total += float(loss.detach()) * len(y)
                    this.samples += len(y)
                this.loss = total / max(this.samples, 1)

    def _take_result(self) -> None:
        """Once: what the caller makes of the model after the last round stays."""
        if not self._holds_result:
            self._flat.load(self._machine.parameters)
            self._holds_result = True

    def _look_at(self, delta: Vector) -> None:
        """A loop may train something else without knowing: a copy, or parameters that `load_state_dict` replaced."""
        if not self._has_warned and not delta.any():
            self._has_warned = True
            logger.warning("the loop has changed nothing in the model: does it train the one that it handed to join?")

    def _check_optimizer(self) -> None:
        if self._optimizer is None:
            return
        trained = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        if trained.isdisjoint(map(id, self.model.parameters())):
            raise ConfigError("the optimizer holds none of the model's parameters: make it from model.parameters()")

    def _restore(self, fresh: bool) -> State:
        """What the file cache has, or the model as it was handed in."""
        try:
            if fresh:
                set_aside(self._directory, DEVICE_FILES)
            return restore_state(self._cache, self._origin) or State(self._flat.values().copy())
        except ConfigError:
            release_identity(self._directory)
            raise

    def _start(self, state: State) -> PeerStart:
        trainer = state.start(self._origin.schema_hash, self._origin.model, self._ballots.load(), Outer())
        return configured_start(Config(round=RoundSection(rounds=self._rounds)), self._me, trainer, time.monotonic())

    def _drive(self) -> None:
        """In the node's own thread: whatever ends it is raised in the caller's loop."""
        try:
            finish = drive(self._runtime, self._joined, self._section)
            if finish.problem:
                self._failure = (ConfigError if finish.exit_code == ConfigError.exit_code else MdlError)(finish.problem)
        except BaseException as error:  # noqa: BLE001 (the outermost loop of this thread)
            self._failure = error
        finally:
            self._todo.put(None)

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
        """In the worker's thread: hand the round to the caller's loop and wait for what it made of it."""
        self._todo.put(effect)
        ready = self._done.get()
        while ready is not None and ready.round_id != effect.round_id:
            ready = self._done.get()  # of a round that went on without us
        if ready is None:
            self._done.put(None)  # for a round that was opened meanwhile
            raise TrainingCancelledError(f"round {effect.round_id}: the loop has ended")
        if isinstance(ready, TrainingPaused):
            return ready
        self._trained_from = weakref.ref(effect.parameters)
        check_trained(ready.delta.values, ready.round_id)
        return ready

    def _recall(self, effect: RecallDelta) -> Event:
        """The loop waits for its next round, so the model still holds w_i."""
        if self._trained_from() is not effect.parameters:
            return DeltaRecalled(effect.round_id, None)
        return DeltaRecalled(effect.round_id, model_delta(effect.parameters, self._flat.values()))

    def _save(self, effect: SaveModel) -> None:
        keep_state(self._cache, effect, self._origin)


def join(
    mesh: str | None = None,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    data: Batches | None = None,
    loss: Loss | None = None,
    code: str | None = None,
    name: str | None = None,
    theta: float = 1.0,
    out: Path | None = None,
    addresses: Sequence[str] = (),
    loopback: bool = False,
    fresh: bool = False,
    classes: Iterable[str] = (),
    rounds: int = 0,
) -> Member:
    """A member of the mesh `mesh`, whose join code is given, in MDL_CODE, or known to `mdl mesh list`.

    model: float32 where it is trained, the same on every device; what is frozen (requires_grad is False) is neither
    sent nor merged, and must be equal on all devices. optimizer, data, loss: for `run()` only. theta: weight of this
    device's delta (3.2.2). addresses: HOST:PORT of members, where multicast is blocked. fresh: what this device has of
    an earlier run is set aside; else it goes on from there. classes: what the outputs stand for: only a hash of them is
    told, and devices with others are refused. rounds: as of `mdl peer`; 0: no end. Raises ConfigError, also if what
    there is of an earlier run is of another model.
    """
    joined = Mesh.from_code(find_code(mesh, code))
    section = MeshSection(join=tuple(addresses), loopback=loopback)
    return Member(joined, model, optimizer, data, loss, name, theta, out, section, fresh, classes, rounds)


def _describe(model: FlatModel) -> str:
    """For the line that tells two models apart."""
    name = type(unwrap(model.module)).__name__
    return f"{name} with {model.frozen}" if model.frozen.size else name


def _evaluate(effect: Evaluate) -> Event:
    return Evaluated(effect.round_id, no_evaluation(0))
