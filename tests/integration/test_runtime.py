"""The runtime with tiny machines: events in, effects out, and a clean end."""

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mdl.errors import DataError, RemoteProtocolError
from mdl.files.ballot import BallotFile
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor, apply_delta, digest_of
from mdl.protocol.machine import (
    Evaluated,
    Finish,
    HeldUp,
    PeerFound,
    Received,
    ResourcesSampled,
    SaveBallot,
    SaveModel,
    Send,
    StopRequested,
    Tick,
    TrainLocally,
    WorkFailed,
)
from mdl.protocol.round_messages import ModelMessage
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vector_work import ApplyDelta, DeltaApplied, DeltaHashed, HashDelta, Outer
from mdl.protocol.vocabulary import Ballot, PeerInfo, ResourceState, Role
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Runtime
from tests.peers.roles.at_once import mean_of, sum_of

pytestmark = pytest.mark.alone

PATIENCE_S = 20.0
VALUES = np.random.default_rng(2).standard_normal(300_000).astype(np.float32)
EVALUATION = Evaluation((1,), (0,), (0,), 0.5, 1)


class Scripted:
    """A machine that answers with whatever `react` says, and tells the test what it saw."""

    def __init__(self, react=lambda event: [], ticks=()):
        self.react, self.ticks = react, list(ticks)
        self.seen, self.threads = [], set()
        self.changed = threading.Condition()

    def handle(self, event, now):
        with self.changed:
            if isinstance(event, Tick):
                assert self.ticks.pop(0) <= now
            self.seen.append(event)
            self.threads.add(threading.current_thread().name)
            self.changed.notify_all()
        effects = self.react(event)
        return [Finish()] if isinstance(event, StopRequested) and not effects else effects

    def deadline(self):
        return self.ticks[0] if self.ticks else None

    def wait_for(self, kind, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE_S), self.seen
        return self.of(kind)

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


class Nodes:
    def __init__(self, keys):
        self.keys, self.running = keys, []

    def start(self, peer_id, machine, work=None, join=None, **options):
        links = Links(
            PeerInfo(peer_id, 1, Role.TRAINER, "", 0),
            self.keys,
            max_values=VALUES.size,
            now=time.monotonic(),
            listen_host="127.0.0.1",
            join=[f"127.0.0.1:{join.links.me.port}"] if join else [],
        )
        runtime = Runtime(machine, links, work or {}, **options)
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(self.run(runtime)), name=f"loop-{peer_id}")
        self.running.append((runtime, thread, outcome))
        thread.start()
        return runtime

    @staticmethod
    def run(runtime):
        try:
            return runtime.run()
        except Exception as error:  # noqa: BLE001 (handed to the test)
            return error

    def outcome(self, runtime):
        thread, outcome = next((t, o) for r, t, o in self.running if r is runtime)
        thread.join(PATIENCE_S)
        return outcome[0]

    def close(self):
        for runtime, _, _ in self.running:
            runtime.stop()
            runtime.stop()
        for _, thread, _ in self.running:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def nodes(keys):
    nodes = Nodes(keys)
    yield nodes
    nodes.close()


def test_a_disk_that_hangs_is_told_to_the_machine_before_anything_else(nodes, tmp_path, monkeypatch):
    late_s = 0.0

    def sync(descriptor):
        nonlocal late_s
        late_s += 25.0

    monkeypatch.setattr("mdl.files.ballot.sync_content", sync)
    monkeypatch.setattr("mdl.writing.time", SimpleNamespace(monotonic=lambda: time.monotonic() + late_s))
    machine = Scripted(ticks=[0.0])
    machine.react = lambda event: [SaveBallot(Ballot(7))] if machine.seen == [Tick()] else []
    ballots = BallotFile(tmp_path / "ballot")
    nodes.start(
        "a",
        machine,
        {SaveBallot: lambda effect: ballots.save(effect.ballot)},
        clock=lambda: time.monotonic() + late_s,
        sample=lambda counts: ResourcesSampled(ResourceState(0, 0.0)),
    )
    (told,) = machine.wait_for(HeldUp)
    assert told.seconds >= told.disk_s >= 25.0
    before = machine.seen[: machine.seen.index(told)]
    assert all(isinstance(event, Tick | ResourcesSampled) for event in before)
    assert sum(isinstance(event, ResourcesSampled) for event in before) <= 1


def test_two_nodes_exchange_messages_and_a_model(nodes):
    def answer(event):
        match event:
            case Received(sender=sender, message=StatusWanted()):
                return [Send(sender.peer_id, ModelMessage(1, b"d"), VALUES)]
        return []

    first, second = Scripted(answer), Scripted()
    a = nodes.start("a", first)
    second.react = lambda event: [Send("a", StatusWanted())] if isinstance(event, PeerFound) else []
    b = nodes.start("b", second, join=a)
    (received,) = second.wait_for(Received)
    assert received == Received(Contributor("a", 1), ModelMessage(1, b"d"), received.values, received.digest)
    assert received.values.tobytes() == VALUES.tobytes()
    b.stop()
    assert nodes.outcome(b) == Finish()
    assert (first.threads, second.threads) == ({"loop-a"}, {"loop-b"})


def test_whole_vectors_are_worked_on_beside_training_and_small_ones_in_the_loop(nodes):
    trains = threading.Event()
    zeros, result = np.zeros(VALUES.size, np.float32), sum_of(VALUES)

    def react(event):
        if isinstance(event, Tick):
            return [TrainLocally(1, zeros), HashDelta(1, 1, 1, VALUES), ApplyDelta(1, zeros, result, Outer(0.5))]
        return []

    machine = Scripted(react, ticks=[time.monotonic()])
    runtime = nodes.start("a", machine, {TrainLocally: lambda effect: (trains.wait(PATIENCE_S), None)[1]})
    assert machine.wait_for(DeltaHashed) == [DeltaHashed(1, 1, 1, digest_of(VALUES))]
    (applied,) = machine.wait_for(DeltaApplied)
    np.testing.assert_array_equal(applied.state, apply_delta(zeros, mean_of(result), 0.5))
    assert applied.digest == digest_of(applied.state)
    assert [thread.name for thread in threading.enumerate()].count("mdl-worker") == 2
    trains.set()
    runtime.stop()
    assert nodes.outcome(runtime) == Finish()


def test_work_runs_in_one_other_thread_and_its_events_come_back(nodes):
    threads = []

    def train(effect):
        threads.append(threading.current_thread().name)
        return Evaluated(effect.round_id, EVALUATION)

    machine = Scripted()
    machine.react = lambda event: [TrainLocally(i, VALUES) for i in range(3)] if isinstance(event, Tick) else []
    machine.ticks = [time.monotonic()]
    nodes.start("a", machine, {TrainLocally: train})
    assert machine.wait_for(Evaluated, 3) == [Evaluated(i, EVALUATION) for i in range(3)]
    assert threads == ["mdl-worker"] * 3
    assert machine.threads == {"loop-a"}


def test_deadlines_are_met_while_training_runs(nodes):
    release = threading.Event()
    machine = Scripted()
    start = time.monotonic()
    machine.ticks = [start, *(start + 0.02 * i for i in range(1, 6))]
    machine.react = lambda event: [TrainLocally(1, VALUES)] if len(machine.seen) == 1 else []
    nodes.start("a", machine, {TrainLocally: lambda effect: release.wait(PATIENCE_S) and None})
    machine.wait_for(Tick, 6)
    release.set()


def test_work_that_fails_becomes_an_event(nodes):
    def save(effect):
        raise DataError("cache: the disk is full")

    machine = Scripted(ticks=[time.monotonic()])
    machine.react = lambda event: [SaveModel(1, VALUES, b"")] if isinstance(event, Tick) else []
    nodes.start("a", machine, {SaveModel: save})
    assert machine.wait_for(WorkFailed) == [WorkFailed("SaveModel", "cache: the disk is full")]


def test_nothing_is_sent_of_what_could_not_be_promised(nodes):
    """A ballot comes before every message that tells of it; if it is not on the disk, nobody hears of it."""

    def refuse(effect):
        raise DataError("ballot: the disk is gone")

    machine = Scripted(ticks=[time.monotonic()])
    machine.react = lambda event: [SaveBallot(Ballot(7)), SaveModel(1, VALUES, b"")] if isinstance(event, Tick) else []
    saved = []
    nodes.start("a", machine, {SaveBallot: refuse, SaveModel: saved.append})
    assert machine.wait_for(WorkFailed) == [WorkFailed("SaveBallot", "ballot: the disk is gone")]
    assert saved == []


def test_who_applies_a_round_when_its_promise_is_refused_leaves_after_it(nodes):
    """The device in office of two: the vote that decides is its own, and stands in one step with the result."""

    def refuse(effect):
        raise DataError("ballot: the disk is gone")

    def react(event):
        if event == Tick():
            return [SaveBallot(Ballot(7)), ApplyDelta(1, VALUES[:4], sum_of([0.0] * 4), Outer())]
        return [Finish("the disk is gone", 4)] if isinstance(event, DeltaApplied) else []

    machine = Scripted(react, [time.monotonic()])
    nodes.start("a", machine, {SaveBallot: refuse})
    machine.wait_for(DeltaApplied)
    assert [type(event) for event in machine.seen] == [Tick, WorkFailed, DeltaApplied]


def test_a_promise_that_could_not_be_kept_is_heard_of_before_the_next_event(nodes):
    """Else the machine, which takes it for kept, could tell of it meanwhile."""

    def refuse(effect):
        raise DataError("ballot: the disk is gone")

    machine = Scripted(ticks=[time.monotonic()] * 3)
    machine.react = lambda event: [SaveBallot(Ballot(7))] if machine.seen == [Tick()] else []
    nodes.start("a", machine, {SaveBallot: refuse})
    machine.wait_for(Tick, 3)
    assert [type(event) for event in machine.seen[:2]] == [Tick, WorkFailed]


def test_a_bug_in_work_ends_the_run_with_it_and_the_story_is_saved(nodes, tmp_path):
    def save(effect):
        raise KeyError("a bug")

    machine = Scripted(ticks=[time.monotonic()])
    machine.react = lambda event: [SaveModel(1, VALUES, b"")] if isinstance(event, Tick) else []
    runtime = nodes.start("a", machine, {SaveModel: save}, story_path=tmp_path / "story.jsonl")
    assert repr(nodes.outcome(runtime)) == "KeyError('a bug')"
    (line,) = (tmp_path / "story.jsonl").read_text().splitlines()
    assert json.loads(line)["effects"][0]["SaveModel"]["parameters"] == {"dtype": "float32", "size": VALUES.size}


def test_a_bug_in_the_machine_ends_the_run_with_it(nodes, tmp_path):
    machine = Scripted(ticks=[time.monotonic()])
    machine.react = lambda event: {}["nothing"]
    runtime = nodes.start("a", machine, story_path=tmp_path / "story.jsonl")
    assert isinstance(nodes.outcome(runtime), KeyError)
    assert (tmp_path / "story.jsonl").exists()


def test_a_message_that_the_machine_refuses_is_counted_and_the_node_goes_on(nodes):
    def refuse(event):
        if isinstance(event, Received):
            raise RemoteProtocolError("not from you")
        return []

    b = Scripted(refuse)
    node_b = nodes.start("b", b)
    a = Scripted(
        lambda event: [Send("b", StatusWanted(1)), Send("b", StatusWanted(2))] if event.__class__ is PeerFound else []
    )
    nodes.start("a", a, join=node_b)
    b.wait_for(Received, 2)
    node_b.stop()
    assert nodes.outcome(node_b) == Finish()
    assert node_b.links.counts.refused == 2


def test_what_a_finishing_machine_still_says_and_saves_gets_out(nodes):
    saved = []
    listener, leaver = Scripted(), Scripted()
    a = nodes.start("a", listener)

    def leave(event):
        if isinstance(event, PeerFound):
            last = [Send("a", StatusWanted(i)) for i in range(20)]
            return [*last, Send("a", ModelMessage(1, b""), VALUES), SaveModel(1, VALUES, b""), Finish("done")]
        return []

    leaver.react = leave
    b = nodes.start("b", leaver, {SaveModel: lambda effect: saved.append(effect.round_id)}, join=a)
    assert nodes.outcome(b) == Finish("done")
    assert saved == [1]
    received = listener.wait_for(Received, 21)
    assert sum(event.values is not None for event in received) == 1


def test_the_first_stop_asks_the_machine_and_the_second_ends_at_once(nodes):
    machine = Scripted()
    machine.react = lambda event: [Send("nobody", StatusWanted())]  # never finishes
    runtime = nodes.start("a", machine)
    runtime.stop()
    machine.wait_for(StopRequested)
    runtime.stop()
    assert "asked twice" in nodes.outcome(runtime).problem


def test_a_training_under_way_does_not_hold_up_the_end(nodes):
    begun, release = threading.Event(), threading.Event()

    def train(effect):
        begun.set()
        release.wait(PATIENCE_S)

    machine = Scripted(ticks=[time.monotonic()])
    machine.react = lambda event: [TrainLocally(1, VALUES)] if isinstance(event, Tick) else []
    runtime = nodes.start("a", machine, {TrainLocally: train}, drain_s=0.1)
    assert begun.wait(PATIENCE_S)
    started = time.monotonic()
    runtime.stop()
    assert nodes.outcome(runtime) == Finish()
    assert time.monotonic() - started < 2
    release.set()


def test_resources_are_sampled_with_the_bytes_sent(nodes):
    machine = Scripted()
    state = ResourceState(1 << 30, 5.0)
    nodes.start("a", machine, sample=lambda counts: ResourcesSampled(state, counts.sent_bytes), sample_interval_s=0.01)
    samples = machine.wait_for(ResourcesSampled, 3)
    assert samples[0] == ResourcesSampled(state, 0)


def test_a_flood_of_messages_does_not_starve_the_timers(nodes):
    flooded, flooder = Scripted(), Scripted()
    a = nodes.start("a", flooded)
    flooder.react = lambda event: [Send("a", StatusWanted(i)) for i in range(200)]
    flooder.ticks = [time.monotonic() + 0.2 + 0.001 * i for i in range(100)]
    flooded.ticks = [time.monotonic() + 0.2 + 0.01 * i for i in range(30)]
    nodes.start("b", flooder, join=a)
    flooded.wait_for(Tick, 30)
    assert len(flooded.of(Received)) > 100


def test_a_posted_peer_is_learned_and_told_once(nodes):
    machine, other = Scripted(), Scripted()
    b = nodes.start("b", other)
    a = nodes.start("a", machine)
    info = b.links.introducer.seen_from("127.0.0.1", b.links.me)
    a.post(PeerFound(PeerInfo("x", 1, Role.TRAINER, "0.0.0.0", 1)))
    a.post(PeerFound(info))
    a.post(PeerFound(info))
    other.wait_for(PeerFound)
    a.stop()
    nodes.outcome(a)
    assert machine.of(PeerFound) == [PeerFound(info)]
    assert a.links.counts.refused == 1


def test_an_observer_sees_every_step(nodes):
    steps = []
    machine = Scripted(ticks=[time.monotonic()])
    machine.react = lambda event: [Finish("all seen")] if isinstance(event, Tick) else []
    runtime = nodes.start("a", machine, observe=lambda now, event, effects: steps.append((event, effects)))
    assert nodes.outcome(runtime) == Finish("all seen")
    assert steps == [(Tick(), [Finish("all seen")])]
