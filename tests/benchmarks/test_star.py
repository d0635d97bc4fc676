"""A master with slaves as machines: the mean is right, whoever is late, and what gets lost is asked for again."""

from collections import deque

import numpy as np
import pytest

from benchmarks.evaluation.star import LOST_S, MOST_FETCHED, Master, Slave
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.machine import Finish, LocalDeltaReady, Received, SaveModel, Send, Tick, TrainLocally
from mdl.protocol.round_messages import DeltaMessage, DeltaWanted
from mdl.protocol.vector_work import ApplyDelta, MergeDeltas, apply_result, merge_deltas
from mdl.protocol.vocabulary import TrainingReport
from tests.peers.roles.at_once import sum_of

ROUNDS = 3


class Play:
    """Delivers at once what is said; device k's delta of round r is r * (k + 1)."""

    def __init__(self, size, collects):
        self.names = [f"dev{k}" for k in range(size)]
        self.me = {name: Contributor(name, 1) for name in self.names}
        start = np.zeros(2, np.float32)
        first = Master(self.me["dev0"], tuple(self.names[1:]), start, ROUNDS, collects)
        rest = [Slave(self.me[name], "dev0", start, ROUNDS) for name in self.names[1:]]
        self.machines = dict(zip(self.names, [first, *rest], strict=True))
        self.models, self.ended, self.sent = {}, set(), []
        self.lose = lambda send: False

    def run(self, turns=60):
        now = 0.0
        for _ in range(turns):
            now += 1.0
            for name, machine in self.machines.items():
                due = machine.deadline()
                if name not in self.ended and due is not None and due <= now:
                    self.step(name, Tick(), now)

    def step(self, name, event, now):
        queue = deque([(name, event)])
        while queue:
            name, event = queue.popleft()
            if name in self.ended:
                continue
            for effect in self.machines[name].handle(event, now):
                queue.extend(self.carry_out(name, effect))

    def carry_out(self, name, effect):
        if isinstance(effect, Send):
            self.sent.append((name, effect))
            values = None if effect.values is None else effect.values.copy()
            return [] if self.lose(effect) else [(effect.receiver, Received(self.me[name], effect.message, values))]
        if isinstance(effect, TrainLocally):
            values = np.full(2, effect.round_id * (self.names.index(name) + 1), np.float32)
            delta = ModelDelta(values, 1.0, frozenset([self.me[name]]))
            return [(name, LocalDeltaReady(effect.round_id, delta, TrainingReport(0.0, 1, 0.0)))]
        if isinstance(effect, MergeDeltas):
            return [(name, merge_deltas(effect))]
        if isinstance(effect, ApplyDelta):
            return [(name, apply_result(effect))]
        if isinstance(effect, SaveModel):
            self.models.setdefault(effect.round_id, []).append(effect.parameters.copy())
        if isinstance(effect, Finish):
            self.ended.add(name)
        return []


@pytest.mark.parametrize("collects", [True, False])
def test_all_stand_at_the_mean_after_each_round(collects):
    play = Play(5, collects)
    play.run()
    assert play.ended == set(play.names)
    wanted = 0.0
    for round_id in range(1, ROUNDS + 1):
        wanted -= round_id * 3  # the mean of 1 to 5
        assert np.allclose(play.models[round_id], wanted)
        assert len(play.models[round_id]) == 5


def test_a_round_moves_two_vectors_for_each_slave():
    play = Play(5, True)
    play.run()
    carried = [send for _, send in play.sent if send.values is not None and send.message.round_id == 2]
    assert len(carried) == 2 * 4


def test_what_gets_lost_is_asked_for_again():
    play, lost = Play(3, True), []

    def lose(send):
        is_first = isinstance(send.message, DeltaMessage) and send.message.round_id == 2 and not lost
        lost.extend([send] if is_first else [])
        return is_first

    play.lose = lose
    play.run(turns=60 + int(LOST_S))
    assert lost
    assert play.ended == set(play.names)
    assert np.allclose(play.models[ROUNDS], -(1 + 2 + 3) * 2)


def test_a_master_that_collects_merges_when_it_has_all():
    for collects, held in ((True, 3), (False, 0)):
        me = [Contributor(f"dev{k}", 1) for k in range(5)]
        master = Master(me[0], tuple(each.peer_id for each in me[1:]), np.zeros(1, np.float32), 1, collects, 1)
        one = sum_of([1.0], [me[0]], room=8)
        master.mine = one
        merges = 0
        for each in me[1:4]:
            said = DeltaMessage(1, 1, 1.0, (each,))
            effects = master.handle(Received(each, said, one.values.copy().view(np.float32)), 0.0)
            for effect in [effect for effect in effects if isinstance(effect, MergeDeltas)]:
                merges += 1
                master.handle(merge_deltas(effect), 0.0)
        assert merges == 3 - held


def test_no_more_are_fetched_than_a_node_takes_in():
    from mdl.protocol.round_messages import GlobalWanted

    me = [Contributor(f"dev{k}", 1) for k in range(6)]
    master = Master(me[0], tuple(each.peer_id for each in me[1:]), np.zeros(1, np.float32), 1, True, 1)
    asked = [effect for each in me[1:] for effect in master.handle(Received(each, GlobalWanted(1)), 0.0)]
    assert [type(send.message) for send in asked] == [DeltaWanted] * MOST_FETCHED
