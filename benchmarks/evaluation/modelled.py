"""Rounds in virtual time, by the real machines: a mesh, or a master with slaves, on phones that are alike.

Seconds are those of links and processors that are given; joules are modelled from them, on top of what the owner does.
Deltas are the same in each round: what is asked here does not depend on what they hold. Rounds in segments are not
here: the simulated links carry one message after the other, which is right for whole vectors alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np

from benchmarks.evaluation.star import Master, Slave
from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    LocalDeltaReady,
    Machine,
    RecallDelta,
    SaveModel,
    TrainLocally,
)
from mdl.protocol.vocabulary import Role, TrainingReport
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.mesh.process import Node

TRAIN_W = MERGE_W  # a full processor, as for a merge
SYSTEMS = ("master", "chain")
# What a phone of the middle class merges (docs/device-models.md).
MERGE_MB_S = 450.0
# The first round finds everybody and learns the links.
_WARM_UP, _ROUNDS = 2, 6
_RECALL_S = 0.01
_BATTERY_V = 3.85
# The paper's phones (Fig. 1a).
BATTERY_MAH = 3500.0


@dataclass(frozen=True)
class Phone:
    """windows_s: trained a second. link_mb_s: of its radio, both ways."""

    windows_s: float
    link_mb_s: float


@dataclass(frozen=True)
class Round:
    """Mean of rounds: seconds from one start of training to the next; joules by device, training and radio apart."""

    seconds: float
    train_j: float
    radio_j: tuple[float, ...]

    @property
    def busiest_j(self) -> float:
        return self.train_j + max(self.radio_j)


class Radio(Network):
    """A network whose bytes cost joules. What is said again while it is under way is not sent again, and costs none."""

    def __init__(self, phone: Phone, names: list[str]) -> None:
        merges = dict.fromkeys(names, MERGE_MB_S)
        super().__init__(np.random.default_rng(0x19), default_mb_s=phone.link_mb_s, merge_mb_s=merges)
        self.joules = dict.fromkeys(names, 0.0)

    def deliver(self, sender: str, receiver: str, size_bytes: int, now: float, is_merged: bool = False) -> list[float]:
        seconds = size_bytes / 1e6 / self.default_mb_s
        self.joules[sender] += SEND_W * seconds
        self.joules[receiver] += RECEIVE_W * seconds
        return super().deliver(sender, receiver, size_bytes, now, is_merged)


class Phones(SimMesh):
    """N of them that train `windows` each, a round."""

    most_events = 10_000_000

    def __init__(self, system: str, size: int, values: int, phone: Phone, windows: float) -> None:
        self.names = [f"dev{rank}" for rank in range(size)]
        start = np.zeros(values, np.float32)
        self.radio = Radio(phone, self.names)
        super().__init__(self.radio, Accounts(start), start.nbytes)
        self.marks: list[tuple[float, tuple[float, ...]]] = []
        self._train_s, self._delta = windows / phone.windows_s, start + np.float32(1)
        for name in self.names:
            self.add(name, Role.TRAINER, _machine(system, self.names, name, start))

    def _carry_out(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, TrainLocally):
            if node.peer_id == self.names[0]:
                self.marks.append((self.now, tuple(self.radio.joules.values())))
            me = frozenset([node.contributor])
            delta = ModelDelta(self._delta.copy(), 1.0, me)
            told = TrainingReport(0.0, 1, self._train_s)
            self._schedule(self._train_s, node, LocalDeltaReady(effect.round_id, delta, told))
        elif isinstance(effect, RecallDelta):
            self._schedule(_RECALL_S, node, DeltaRecalled(effect.round_id, self._delta.copy()))
        elif not isinstance(effect, SaveModel):
            super()._carry_out(node, effect)


def play(system: str, size: int, values: int, phone: Phone, windows: float) -> Round:
    """The mean round. windows: that each device trains in it. One device alone sends nothing.

    Raises RuntimeError if the rounds do not end.
    """
    if size == 1:
        return Round(windows / phone.windows_s, TRAIN_W * windows / phone.windows_s, (0.0,))
    mesh = Phones(system, size, values, phone, windows)
    if not mesh.run(1e7, stop=lambda: len(mesh.marks) > _WARM_UP + _ROUNDS):
        raise RuntimeError(f"{system} of {size}: {len(mesh.marks)} rounds in {mesh.now:.0f} s, and no more")
    counted = mesh.marks[_WARM_UP:]
    seconds = fmean(later[0] - sooner[0] for sooner, later in pairwise(counted))
    spent = zip(counted[0][1], counted[-1][1], strict=True)
    radio = tuple((after - before) / (len(counted) - 1) for before, after in spent)
    return Round(seconds, TRAIN_W * windows / phone.windows_s, radio)


def battery_percent(joules: float) -> float:
    """Of a full one."""
    return 100.0 * joules / (BATTERY_MAH * 3.6 * _BATTERY_V)


def _machine(system: str, names: list[str], name: str, start: Vector) -> Machine:
    me, rounds = Contributor(name, 1), _WARM_UP + _ROUNDS + 2
    if system == "master":
        if name == names[0]:
            return Master(me, tuple(names[1:]), start.copy(), rounds)
        return Slave(me, names[0], start.copy(), rounds)
    told = TrainerStart(start.size, digest_of(start))
    one = simulated_start(me, "greedy", len(names), "wait", told, 0.0)
    assert one.trainer is not None
    settings = msgspec.structs.replace(one.trainer.settings, keep_deltas=False)
    trainer = msgspec.structs.replace(one.trainer, settings=settings)
    agent = msgspec.structs.replace(one.agent, rounds=rounds, min_peers=len(names))
    return build_machine(msgspec.structs.replace(one, trainer=trainer, agent=agent), start.copy())
