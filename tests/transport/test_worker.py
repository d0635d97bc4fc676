"""The worker's thread and the story, without any network."""

import base64
import json
import threading

import numpy as np
import pytest

from mdl.errors import DataError, LocalProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Evaluate, Received, SaveModel, Send, Tick, TrainLocally, WorkFailed
from mdl.protocol.round_messages import ModelMessage
from mdl.protocol.status_messages import StatusWanted
from transport.story import Story
from transport.worker import MAX_WAITING, Worker

W = np.zeros(4, np.float32)
PATIENCE_S = 10.0


class Bench:
    """A worker whose training waits for `go`."""

    def __init__(self):
        self.done, self.events, self.crashes = [], [], []
        self.begun, self.go = threading.Event(), threading.Event()
        work = {TrainLocally: self.train, Evaluate: self.note, SaveModel: self.note}
        self.worker = Worker(work, self.events.append, self.crashes.append)

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

    worker = Worker({SaveModel: fail}, events.append, crashes.append)
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
