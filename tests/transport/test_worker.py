"""The worker's thread and the story, without any network."""

import base64
import json
import queue
import threading
import weakref

import numpy as np
import pytest

from mdl.errors import DataError, LocalProtocolError
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.machine import (
    Evaluate,
    Evaluated,
    LocalDeltaReady,
    Received,
    RecordRound,
    SaveModel,
    Send,
    Tick,
    TrainLocally,
    WorkFailed,
)
from mdl.protocol.round_messages import ModelMessage
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vector_work import DeltaHashed, HashDelta
from mdl.transport.story import Story
from mdl.transport.worker import MAX_WAITING, NodeWorkers, Worker

W = np.zeros(4, np.float32)
PATIENCE_S = 10.0


class Bench:
    """A worker whose training waits for `go`."""

    def __init__(self):
        self.done, self.events, self.crashes = [], [], []
        self.begun, self.go = threading.Event(), threading.Event()
        work = {TrainLocally: self.train, Evaluate: self.note, SaveModel: self.note}
        self.worker = Worker(work, self.events.append, lambda error, cause: self.crashes.append(error))

    def train(self, effect):
        self.begun.set()
        self.go.wait(PATIENCE_S)
        return self.note(effect)

    def note(self, effect):
        self.done.append((type(effect).__name__, effect.round_id, threading.current_thread().name))

    def put(self, *effects):
        for effect in effects:
            self.worker.put(effect)


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.go.set()
    bench.worker.finish(PATIENCE_S)


def test_effects_run_in_order_in_one_other_thread(bench):
    bench.go.set()
    bench.put(*(SaveModel(i, W, b"") for i in range(20)))
    bench.worker.finish(PATIENCE_S)
    assert bench.done == [("SaveModel", i, "mdl-worker") for i in range(20)]


def test_at_the_end_models_are_saved_and_queued_training_is_forgotten(bench):
    bench.put(TrainLocally(1, W))
    assert bench.begun.wait(PATIENCE_S)
    bench.put(Evaluate(1, W), TrainLocally(2, W), SaveModel(3, W, b""))
    bench.go.set()
    bench.worker.finish(PATIENCE_S)
    assert [(name, round_id) for name, round_id, _ in bench.done] == [("TrainLocally", 1), ("SaveModel", 3)]


def test_a_training_that_does_not_end_keeps_no_model_from_being_saved(bench):
    bench.put(TrainLocally(1, W))
    assert bench.begun.wait(PATIENCE_S)
    bench.put(SaveModel(3, W, b""))
    bench.worker.finish(timeout_s=0.01)
    assert bench.done == [("SaveModel", 3, threading.current_thread().name)]


def test_a_model_that_is_being_written_is_waited_for():
    begun, go, saved = threading.Event(), threading.Event(), []

    def save(effect):
        begun.set()
        go.wait(PATIENCE_S)
        saved.append(effect.round_id)

    worker = Worker({SaveModel: save}, print, print)
    worker.put(SaveModel(1, W, b""))
    assert begun.wait(PATIENCE_S)
    ending = threading.Thread(target=worker.finish, args=(0.0,))
    ending.start()
    go.set()
    ending.join(PATIENCE_S)
    assert saved == [1]


def test_of_a_node_that_crashed_what_is_under_way_is_the_last():
    begun, go, done = threading.Event(), threading.Event(), []

    def train(effect):
        begun.set()
        go.wait(PATIENCE_S)
        done.append(effect.round_id)

    worker = Worker({TrainLocally: train}, print, print)
    worker.put(TrainLocally(1, W))
    worker.put(TrainLocally(2, W))
    assert begun.wait(PATIENCE_S)
    worker.abandon()
    go.set()
    worker.finish(PATIENCE_S)
    assert done == [1]


def test_work_that_fails_is_told_to_the_machine_and_a_bug_stops_the_node():
    refused = OSError(24, "Too many open files")
    events, crashes, answers = [], [], iter([DataError("disk full"), refused, LocalProtocolError("bug"), KeyError("k")])

    def fail(effect):
        raise next(answers)

    worker = Worker({SaveModel: fail}, events.append, lambda error, cause: crashes.append(error))
    for round_id in range(4):
        worker.put(SaveModel(round_id, W, b""))
    worker.finish(PATIENCE_S)
    assert events == [WorkFailed("SaveModel", "disk full"), WorkFailed("SaveModel", str(refused))]
    assert [type(crash) for crash in crashes] == [LocalProtocolError, KeyError]


def test_what_nobody_can_carry_out_or_too_much_of_it_is_a_bug(bench):
    with pytest.raises(LocalProtocolError, match="carry out Tick"):
        bench.worker.put(Tick())
    with pytest.raises(LocalProtocolError, match="cannot keep up"):
        bench.put(*(TrainLocally(i, W) for i in range(MAX_WAITING + 2)))


def test_a_story_is_bounded_readable_and_keeps_no_model_alive(tmp_path):
    story, values, digest = Story(length=3), np.zeros(1000, np.float32), b"0123456789abcdef"
    story.add(0.0, Tick(), [])
    assert len(story) == 0, "a tick that decided nothing is no news"
    for number in range(5):
        message = ModelMessage(number, b"d")
        story.add(number, Received(Contributor("a", 1), message, values, digest), [Send("b", StatusWanted())])
    story.save(tmp_path / "run" / "story.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "run" / "story.jsonl").read_text().splitlines()]
    assert [line["at_s"] for line in lines] == [2, 3, 4]
    heard = lines[0]["event"]["Received"]
    assert heard["values"] == {"dtype": "float32", "size": 1000}
    assert base64.b64decode(heard["digest"]) == digest
    assert lines[0]["event"]["Received"]["message"]["round_id"] == 2
    assert lines[0]["effects"] == [
        {"Send": {"receiver": "b", "message": {"type": "StatusWanted", "since_round": 0}, "values": None}}
    ]


# -- the three of them ------------------------------------------------------------------------------------------------


class Slow:
    """Workers of which training and saving wait for the test."""

    def __init__(self):
        self.trains, self.saves, self.tests = threading.Event(), threading.Event(), threading.Event()
        self.begun, self.saved, self.tested, self.recorded, self.events = [], [], [], [], queue.SimpleQueue()
        self.delta, self.has_begun = None, threading.Event()
        work = {TrainLocally: self.train, SaveModel: self.save, Evaluate: self.test, RecordRound: self.record}
        self.workers = NodeWorkers(work, self.events.put, pytest.fail)

    def train(self, effect):
        self.begun.append(effect)
        self.has_begun.set()
        self.trains.wait(PATIENCE_S)
        return (self.delta and LocalDeltaReady(effect.round_id, self.delta, None)) or Evaluated(effect.round_id, None)

    def save(self, effect):
        self.saves.wait(PATIENCE_S)
        self.saved.append(effect.round_id)

    def record(self, effect):
        self.recorded.append(effect.summary)

    def test(self, effect):
        self.tests.wait(PATIENCE_S)
        self.tested.append(effect.round_id)
        return Evaluated(effect.round_id, "tested")


@pytest.fixture
def slow():
    slow = Slow()
    yield slow
    slow.trains.set()
    slow.saves.set()
    slow.tests.set()
    slow.workers.finish(PATIENCE_S)


def test_what_is_trained_ahead_begins_where_the_round_before_it_was_trained_to(slow):
    slow.trains.set()
    slow.workers.put(TrainLocally(2, W, 9, W + 3))
    slow.events.get(timeout=PATIENCE_S)
    assert [(each.round_id, list(each.parameters), each.ahead) for each in slow.begun] == [(2, [-3.0] * 4, None)]


def test_what_cannot_be_prepared_stops_the_node():
    crashes = queue.SimpleQueue()
    workers = NodeWorkers({TrainLocally: pytest.fail}, pytest.fail, crashes.put)
    workers.put(TrainLocally(2, W, 9, np.zeros(5, np.float32)))
    assert isinstance(crashes.get(timeout=PATIENCE_S), ValueError)
    workers.abandon()


def test_while_a_training_ahead_lasts_nobody_keeps_what_it_begins_at_apart(slow):
    w, ahead = W + 1, W + 3
    kept = [weakref.ref(each) for each in (w, ahead)]
    slow.workers.put(TrainLocally(2, w, 9, ahead))
    del w, ahead
    assert slow.has_begun.wait(PATIENCE_S)
    assert [each() for each in kept] == [None, None]


def test_the_delta_comes_with_its_integers_and_earlier_work_is_in_them(slow):
    slow.delta = ModelDelta(W + 1, 1.0, frozenset())
    slow.trains.set()
    earlier = W + 0.5, W + 0.25
    slow.workers.put(TrainLocally(2, W, 9, None, earlier, 1))
    ready = slow.events.get(timeout=PATIENCE_S)
    held = ready.held
    assert (list(ready.delta.values), held.sum.theta) == ([1.0] * 4, 1.0)
    assert list(held.grid.to_mean(held.sum.values, 1.0)) == [1.75] * 4


def test_a_delta_for_a_round_that_is_not_open_yet_comes_without_integers(slow):
    slow.delta = ModelDelta(W + 1, 1.0, frozenset())
    slow.trains.set()
    slow.workers.put(TrainLocally(2, W, 9))
    assert slow.events.get(timeout=PATIENCE_S).held is None


def test_files_are_written_and_vectors_worked_on_while_a_training_lasts(slow):
    large = np.ones(1 << 19, np.float32)
    slow.workers.put(TrainLocally(2, W))
    slow.workers.put(HashDelta(1, 1, 1, large))
    assert slow.events.get(timeout=PATIENCE_S) == DeltaHashed(1, 1, 1, digest_of(large))
    slow.workers.put(SaveModel(1, W, b""))
    slow.saves.set()
    slow.workers._files.settle()
    assert slow.saved == [1]


def test_a_delta_is_told_once_the_model_that_it_began_at_is_on_the_disk(slow):
    slow.workers.put(SaveModel(1, W, b""))
    slow.workers.put(TrainLocally(2, W))
    slow.trains.set()
    with pytest.raises(queue.Empty):
        slow.events.get(timeout=0.2)
    slow.saves.set()
    assert slow.events.get(timeout=PATIENCE_S) == Evaluated(2, None)
    assert slow.saved == [1]


def test_a_model_is_tested_beside_the_next_training_and_told_before_its_delta(slow):
    slow.workers.put(Evaluate(1, W))
    slow.workers.put(TrainLocally(2, W))
    slow.trains.set()
    while slow.workers._trains._waiting:
        pass
    with pytest.raises(queue.Empty):
        slow.events.get(timeout=0.2)
    slow.tests.set()
    assert [slow.events.get(timeout=PATIENCE_S) for _ in range(2)] == [Evaluated(1, "tested"), Evaluated(2, None)]


def test_a_test_is_begun_with_the_next_training_or_at_once_if_it_is_waited_for(slow, monkeypatch):
    monkeypatch.setattr(slow.workers._tests, "_held_s", 1000.0)
    slow.tests.set()
    slow.workers.put(Evaluate(1, W, is_awaited=True))
    assert slow.events.get(timeout=PATIENCE_S) == Evaluated(1, "tested")
    slow.workers.put(Evaluate(2, W))
    with pytest.raises(queue.Empty):
        slow.events.get(timeout=0.2)
    slow.workers.put(TrainLocally(3, W))  # which is not at its end
    assert slow.events.get(timeout=PATIENCE_S) == Evaluated(2, "tested")


def test_without_another_training_a_test_is_made_all_the_same(slow, monkeypatch):
    monkeypatch.setattr(slow.workers._tests, "_held_s", 0.05)
    slow.tests.set()
    slow.workers.put(Evaluate(1, W))
    assert slow.events.get(timeout=PATIENCE_S) == Evaluated(1, "tested")


def test_of_models_that_wait_to_be_tested_the_newest_is(slow):
    slow.workers.put(Evaluate(1, W, is_awaited=True))
    while slow.workers._tests._running is None:
        pass
    for round_id in range(2, 200):
        slow.workers.put(Evaluate(round_id, W))
    slow.tests.set()
    slow.workers._tests.settle()
    assert slow.tested == [1, 199]


def test_of_models_that_wait_for_a_slow_disk_the_newest_is_written(slow):
    slow.workers.put(SaveModel(1, W, b""))
    while slow.workers._files._running is None:
        pass
    for round_id in range(2, 200):
        slow.workers.put(SaveModel(round_id, W, b""))
    slow.saves.set()
    slow.workers.finish(PATIENCE_S)
    assert slow.saved == [1, 199]


def test_records_of_rounds_that_wait_for_a_disk_that_hangs_end_no_node(slow, caplog):
    """65 rounds of it once ended a dedicated agent."""
    slow.workers.put(SaveModel(0, W, b""))
    while slow.workers._files._running is None:
        pass
    for number in range(300):
        slow.workers.put(RecordRound(number))
    slow.workers.put(SaveModel(1, W, b""))
    assert len(caplog.messages) == 1
    assert "the oldest record of a round is lost" in caplog.text
    slow.saves.set()
    slow.workers.finish(PATIENCE_S)
    assert slow.saved == [0, 1]
    assert slow.recorded == list(range(300 - MAX_WAITING + 1, 300)), "the newest are kept"


def test_small_vectors_are_worked_on_at_once(slow):
    slow.workers.put(HashDelta(1, 1, 1, W))
    assert slow.events.get_nowait() == DeltaHashed(1, 1, 1, digest_of(W))


def test_a_worker_forgets_what_waits_and_the_result_of_what_is_under_way_and_goes_on():
    bench = Bench()
    bench.put(TrainLocally(1, W), Evaluate(1, W))
    bench.begun.wait(PATIENCE_S)
    bench.worker.forget()
    bench.go.set()
    bench.worker.settle(PATIENCE_S)
    assert [done[:2] for done in bench.done] == [("TrainLocally", 1)]
    assert bench.events == []
    bench.put(Evaluate(2, W))
    bench.worker.settle(PATIENCE_S)
    assert bench.done[-1][:2] == ("Evaluate", 2)
    bench.worker.finish(1.0)


def test_a_worker_that_forgets_what_it_held_back_does_the_next_thing():
    """Its thread ended for want of anything to do, and the node's training waited for it for ever."""
    done = []
    worker = Worker({Evaluate: lambda effect: done.append(effect.round_id)}, print, print, held_s=0.2)
    worker.put(Evaluate(1, W))
    worker.forget()
    worker.settle(PATIENCE_S)
    threading.Event().wait(0.3)
    worker.put(Evaluate(2, W))
    worker.settle(PATIENCE_S)
    assert done == [2]
    worker.finish(1.0)
