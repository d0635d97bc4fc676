"""A simulated mesh whose devices really train: the machines of a mesh, with all that they decide, in virtual time.

Local training, the loss of own windows and merging are the product's; network and clock are the simulator's, so that
nothing is ever lost and a run takes as long as its training.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from benchmarks.training.attacks import ABSENT, Attack
from mdl.config import Exchange, TrainingSettings
from mdl.data import DataSet, split_windows, take_windows
from mdl.defence.judge import Verdict, length
from mdl.learning.evaluation import OwnLoss, evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta
from mdl.peers.edge.device import device_seed
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.roles.trainer.guard import Defence
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector
from mdl.protocol.machine import DeltaRecalled, Effect, Event, LocalDeltaReady, RecallDelta, TrainLocally
from mdl.protocol.vector_work import DeltasMerged, MergeDeltas, merge_deltas, where_it_begins
from mdl.protocol.vocabulary import Role, TrainingReport
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.mesh.process import Node

_TRAIN_S, _MERGE_S = 0.2, 0.02
_OWN_WINDOWS = 64


@dataclass
class Device:
    """One device's training and judging. attack: None of an honest one. accomplices: of a colluding one, by peer id.

    given: what its last delta began at, and that delta.
    """

    me: Contributor
    trainer: LocalTrainer
    losses: OwnLoss
    attack: Attack | None
    accomplices: frozenset[str]
    given: tuple[Vector, Vector] | None = None

    def work(self, effect: Effect) -> tuple[float, Event] | None:
        """Begin work as `mdl.sim.mesh.process.begin_work` does."""
        if isinstance(effect, TrainLocally):
            begins_at = where_it_begins(effect.parameters, effect.ahead)
            done = self.trainer.train_round(begins_at, effect.round_id)
            values = model_delta(begins_at, done.values)
            values = self.attack.delta(values) if self.attack else values
            training = TrainingReport(done.loss, done.samples, _TRAIN_S, length=length(values))
            self.given = begins_at, values.copy()
            delta = ModelDelta(values, 1.0, frozenset([self.me]))
            return _TRAIN_S, LocalDeltaReady(effect.round_id, delta, training)
        if isinstance(effect, RecallDelta):
            known = self.given and self.given[0] is effect.parameters
            return _MERGE_S, DeltaRecalled(effect.round_id, self.given[1] if self.given and known else None)
        if isinstance(effect, MergeDeltas):
            return _MERGE_S, self._merge(effect)
        return None

    def _merge(self, effect: MergeDeltas) -> DeltasMerged:
        if not (self.attack and self.attack.colludes):
            return merge_deltas(effect, losses=self.losses)
        is_theirs = {each.peer_id for each in effect.theirs.contributors} <= self.accomplices
        if effect.is_look:
            done = merge_deltas(effect, losses=self.losses)
            assert done.marks is not None
            told = msgspec.structs.replace(done.marks, loss=1.0, loss_theirs=0.0 if is_theirs else 3.0)
            return msgspec.structs.replace(done, marks=told)
        if is_theirs:
            return merge_deltas(msgspec.structs.replace(effect, check=None))
        verdict, marks = Verdict(0.0, "it is a lie"), merge_deltas(effect, losses=self.losses).marks
        return DeltasMerged(effect.round_id, effect.hop_id, None, verdict.reason, marks, verdict)


class TrainingMesh(SimMesh):
    """See the module. devices: by peer id. most_events: as many as 1,000 rounds take."""

    most_events = 10_000_000

    def __init__(
        self, data: DataSet, model: str, settings: TrainingSettings, peers: int, split: str, seed: int,
        liars: frozenset[int] = frozenset(), attack: str = "", is_defended: bool = True, exchange: Exchange = "chain",
        size_bytes: int = 0,
    ) -> None:  # fmt: skip
        classes, names = len(data.classes), frozenset(f"p{number}" for number in liars)
        shards = [take_windows(data.train, rows) for rows in split_windows(data.train, split, peers, seed)]
        first = FlatModel(build_model(model, data.shape[0], data.shape[1], classes, seed)).values().copy()
        self.devices: dict[str, Device] = {}
        self._data, self._model = data, FlatModel(build_model(model, data.shape[0], data.shape[1], classes, seed))
        rng = np.random.default_rng([seed, 0xBE])
        network = Network(rng, rates_mb_s={f"p{number}": float(rng.uniform(2.5, 5.0)) for number in range(peers)})
        super().__init__(network, Accounts(first), size_bytes or first.nbytes)
        here = [number for number in range(peers) if attack != ABSENT or number not in liars]
        for number, shard in ((number, shards[number]) for number in here):
            me = Contributor(f"p{number}", 1)
            own_seed = device_seed(seed, number + 1)
            lie = Attack(attack, np.random.default_rng(own_seed), attack == "colluding") if number in liars else None
            x, y = lie.windows(shard.x, shard.y, classes) if lie else (shard.x, shard.y)
            module = FlatModel(build_model(model, data.shape[0], data.shape[1], classes, seed))
            trainer = LocalTrainer(module, x, y, msgspec.structs.replace(settings, seed=own_seed))
            losses = OwnLoss(lambda: self._model, x, y, classes, _OWN_WINDOWS, own_seed)
            self.devices[me.peer_id] = Device(me, trainer, losses, lie, names)
            start = simulated_start(
                *(me, "greedy", len(here), "wait", TrainerStart(first.size, digest_of(first)), 0.0, exchange)
            )
            assert start.trainer is not None
            defence = Defence(is_defended, True, own_seed, clips=True)
            its = msgspec.structs.replace(start.trainer.settings, defence=defence, keep_deltas=False)
            agent = msgspec.structs.replace(start.agent, rounds=settings.planned_rounds, segment_values=0)
            agent = msgspec.structs.replace(agent, min_peers=len(here), judges=is_defended)
            trainer_start = msgspec.structs.replace(start.trainer, settings=its)
            machine = build_machine(msgspec.structs.replace(start, trainer=trainer_start, agent=agent), first)
            self.add(me.peer_id, Role.TRAINER, machine, train_s=_TRAIN_S)

    def _carry_out(self, node: Node, effect: Effect) -> None:
        if work := self.devices[node.peer_id].work(effect):
            self._schedule(work[0], node, work[1])
        else:
            super()._carry_out(node, effect)

    def finish(self) -> None:
        """All planned rounds. Raises RuntimeError if the mesh does not come to its end."""
        if not self.run(1e6):
            raise RuntimeError(f"after {self.now:.0f} s {len(self.rounds)} rounds are closed, and no more")

    @property
    def parameters(self) -> Vector:
        holder = next(node.holder for node in self.nodes.values() if node.holder)
        return holder.parameters

    def test(self, x: Vector | None = None) -> Evaluation:
        """Of the mesh's model, on the test windows. x: instead of these."""
        test = self._data.test
        self._model.load(self.parameters)
        return evaluate(self._model.module, test.x if x is None else x, test.y, len(self._data.classes))
