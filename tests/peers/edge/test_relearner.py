"""When the scheduler goes on learning beside the mesh (3.3.3), and that nothing waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from mdl.config import BusySection, Config, RoundSection
from mdl.devices.scenario import load_scenarios
from mdl.peers.edge import relearner
from mdl.peers.edge.relearner import LEAST_SEEN, MOST_SEEN, SHARE, Relearner, is_at_ease
from mdl.protocol.machine import PolicyLearned
from mdl.protocol.status_messages import DeviceRecord, HopSummary, RoundSummary
from mdl.protocol.vocabulary import ResourceState
from mdl.scheduler.policies import trained_under
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair
from mdl.scheduler.policies.learned import DRAFT, POLICY
from mdl.scheduler.policies.qnet_numpy import draw_weights, save_weights

EASE = ResourceState(1 << 30, 5.0)


def closed_round(number: int, seconds: float = 1.0) -> RoundSummary:
    """b sends 1 MB to a in so many seconds."""
    hop = HopSummary(1, "b", "a", "merged", 0.1, 0.1 + seconds, "", 1_000_000, seconds)
    devices = (DeviceRecord("a", 0.0), DeviceRecord("b", 0.1))
    return RoundSummary(number, 2.0, ("a", "b"), (("b", "a"),), {}, 1, None, schedule=(hop,), devices=devices)


class Slots:
    """Stands in for the process of a slot: remembers that it was started, and says what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **said: object) -> None:
        self.started, self.begun, self.may_go_on = 0, threading.Semaphore(0), threading.Event()
        self.may_go_on.set()
        script = tmp_path / "slot.py"
        script.write_text(f"print({json.dumps(json.dumps(said))})")
        really = relearner.subprocess.Popen

        def start(command: list[str], **options: object) -> object:
            assert command[1:4] == ["-P", "-m", "mdl.peers.edge.relearner"]
            self.started += 1
            self.begun.release()
            assert self.may_go_on.wait(20.0)
            return really([sys.executable, str(script)], **options)  # type: ignore[call-overload]

        monkeypatch.setattr(relearner.subprocess, "Popen", start)
        self._script, self._door = script, tmp_path / "door"

    def hold(self) -> None:
        """Slots that begin from now on last until `let_end`."""
        os.mkfifo(self._door)
        self._script.write_text(f"open({str(self._door)!r}).read()\n{self._script.read_text()}")

    def let_end(self) -> None:
        self._door.open("w").close()  # as soon as the slot has opened its end


def settle(learner: Relearner) -> None:
    """Until the slot has ended and was heard."""
    for thread in relearner.threading.enumerate():
        if thread.name == "mdl-relearner":
            thread.join(20.0)


@pytest.fixture
def posted() -> list[object]:
    return []


def make(tmp_path: Path, posted: list[object], resources: ResourceState = EASE, is_on: bool = True) -> Relearner:
    """Its slots take no time, so that it never rests."""
    return Relearner(tmp_path / "scheduler", BusySection(), lambda: resources, posted.append, is_on, lambda: 0.0)


def test_3_3_3_it_learns_once_enough_rounds_were_seen_and_a_better_policy_is_taken(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(monkeypatch, tmp_path, slot=12, slots=12, adopted=True, before_s=2.0, after_s=1.0)
    learner = make(tmp_path, posted)
    for number in range(1, LEAST_SEEN):
        learner.hear(closed_round(number))
    assert slots.started == 0
    learner.hear(closed_round(LEAST_SEEN))
    assert slots.started == 1
    settle(learner)
    assert posted == [PolicyLearned()]
    learner.hear(closed_round(LEAST_SEEN + 1))
    assert slots.started == 1  # the mesh is as it was: nothing to learn


def test_3_3_3_a_mesh_that_has_changed_is_learned_anew(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(monkeypatch, tmp_path, slot=12, slots=12, adopted=False, before_s=2.0, after_s=2.0)
    learner = make(tmp_path, posted)
    for number in range(LEAST_SEEN):
        learner.hear(closed_round(number))
    settle(learner)
    assert (slots.started, posted) == (1, [])
    for number in range(10):
        learner.hear(closed_round(number, seconds=8.0))
        settle(learner)
    assert slots.started > 1


def learn_once(tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch) -> tuple[Relearner, Slots]:
    """A mesh that was learned from, with b charged to 90 % then; the next slot adopts a better policy."""
    slots = Slots(monkeypatch, tmp_path, slot=24, slots=24, adopted=True, before_s=2.0, after_s=1.0)
    learner = make(tmp_path, posted)
    report(learner, ResourceState(1 << 30, 5.0, 90.0, True))
    for number in range(LEAST_SEEN):
        learner.hear(closed_round(number))
    settle(learner)
    assert (slots.started, posted) == (1, [PolicyLearned()])
    assert slots.begun.acquire(timeout=20.0)
    posted.clear()
    return learner, slots


def report(learner: Relearner, resources: ResourceState, times: int = 100) -> None:
    """b reports for a minute."""
    for _ in range(times):
        learner.notice("b", resources)


ON_BATTERY = ResourceState(1 << 30, 5.0, 20.0, False)


def test_fig_5b_case_1_a_change_that_a_closed_round_shows_is_learned_before_the_next_one(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    learner, slots = learn_once(tmp_path, posted, monkeypatch)
    learner.hear(closed_round(90))
    settle(learner)
    assert slots.started == 1  # all is as it was
    lost = msgspec.structs.replace(closed_round(91), contributors=("a", "c"), hops=(("c", "a"),))
    hop = msgspec.structs.replace(lost.schedule[0], sender="c")
    devices = (DeviceRecord("a", 0.0), DeviceRecord("c", 0.1))
    learner.hear(msgspec.structs.replace(lost, schedule=(hop,), devices=devices))
    settle(learner)
    assert (slots.started, posted) == (2, [PolicyLearned()])
    assert "the schedule is learned for a slot: b is gone; c is new" in caplog.text


def test_fig_5b_case_2_a_change_that_is_reported_while_devices_train_is_learned_at_once_and_once_a_round(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    learner, slots = learn_once(tmp_path, posted, monkeypatch)
    report(learner, ResourceState(1 << 30, 5.0, 89.0, True))
    assert slots.started == 1
    report(learner, ON_BATTERY)
    settle(learner)
    settle(learner)
    assert (slots.started, posted) == (2, [PolicyLearned()])
    assert "the schedule is learned for a slot: b: battery" in caplog.text
    report(learner, ResourceState(1 << 20, 99.0, 1.0, False))
    settle(learner)
    assert slots.started == 2


def test_fig_5b_case_3_what_is_due_during_a_slot_is_ordered_by_what_was_learned_before(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, slots = learn_once(tmp_path, posted, monkeypatch)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = tmp_path / "slot.py"
    script.write_text(f"open({str(gate)!r}).read()\n{script.read_text()}")
    report(learner, ON_BATTERY)
    assert slots.begun.acquire(timeout=20.0)  # the slot stands at the gate from its start on
    learner.hear(closed_round(92))
    report(learner, ResourceState(1 << 20, 5.0, 20.0, False))
    assert (slots.started, posted) == (2, [])  # no second one beside it; rounds go on with the policy that is there
    view = ChainView(0.0, 1.0, (DeviceView("a", DeviceState.FREE, 5.0), DeviceView("b", DeviceState.FREE, 5.0)))
    assert isinstance(relearner.make_own_policy(Config(), tmp_path).decide(view), Pair)
    gate.write_text("")
    settle(learner)
    settle(learner)
    assert posted == [PolicyLearned()]


def test_a_report_and_a_round_that_want_a_slot_at_once_start_one(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, slots = learn_once(tmp_path, posted, monkeypatch)
    slots.hold()
    slots.may_go_on.clear()
    report(learner, ON_BATTERY)
    assert slots.begun.acquire(timeout=20.0)  # of the process there is no more than the call that starts it
    round_closed = threading.Thread(target=learner.hear, args=(closed_round(92),))
    round_closed.start()
    round_closed.join(0.2)
    slots.may_go_on.set()
    round_closed.join(20.0)
    slots.let_end()
    settle(learner)
    settle(learner)
    assert slots.started == 2


@pytest.mark.parametrize(
    "resources",
    [ResourceState(1 << 30, 5.0, in_use=True), ResourceState(1 << 30, 5.0, 80.0, False), ResourceState(1 << 20, 5.0)],
)
def test_3_3_3_a_device_that_is_not_at_ease_does_not_learn(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch, resources: ResourceState
) -> None:
    slots = Slots(monkeypatch, tmp_path, slot=1, slots=12)
    learner = make(tmp_path, posted, resources)
    for number in range(LEAST_SEEN + 2):
        learner.hear(closed_round(number))
    assert slots.started == 0
    assert not is_at_ease(resources, BusySection())
    assert is_at_ease(ResourceState(1 << 30, 5.0, 80.0, True), BusySection())


def test_slots_take_a_small_share_of_one_core(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, now_s = Slots(monkeypatch, tmp_path, slot=1, slots=12), [100.0]
    learner = make(tmp_path, posted)
    learner._clock = lambda: now_s[0]
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = tmp_path / "slot.py"
    script.write_text(f"open({str(gate)!r}).read()\n{script.read_text()}")
    for number in range(LEAST_SEEN):
        learner.hear(closed_round(number))
    now_s[0] += 2.0  # what the slot takes
    gate.write_text("")
    settle(learner)
    rest_s = 2.0 * (1.0 / SHARE - 1.0)
    (tmp_path / "scheduler" / DRAFT).write_bytes(b"the next slot goes on with it")
    script.write_text("raise SystemExit('no')")
    for elapsed_s, started in ((0.0, 1), (rest_s - 0.1, 1), (rest_s, 2)):
        now_s[0] = 102.0 + elapsed_s
        learner.hear(closed_round(50))
        assert slots.started == started, elapsed_s
    settle(learner)


@pytest.mark.parametrize(
    "resources", [ResourceState(1 << 30, 5.0, in_use=True), ResourceState(1 << 30, 5.0, 80.0, False)]
)
def test_a_slot_is_given_up_when_the_device_is_no_longer_at_ease_and_the_next_begins_when_it_is_again(
    tmp_path: Path,
    posted: list[object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    resources: ResourceState,
) -> None:
    caplog.set_level("INFO")
    slots, state = Slots(monkeypatch, tmp_path, slot=12, slots=12, adopted=True, before_s=2.0, after_s=1.0), [EASE]
    learner = make(tmp_path, posted)
    learner._sample = lambda: state[0]
    script = tmp_path / "slot.py"
    ends = script.read_text()
    script.write_text("import signal\nsignal.pause()")  # it would never end by itself
    for number in range(LEAST_SEEN):
        learner.hear(closed_round(number))
    learner.notice("a", EASE)
    assert learner._is_learning()
    state[0] = resources
    learner.notice("b", EASE)  # anybody's report is as good as a timer
    settle(learner)
    assert not learner._is_learning()
    assert "the slot is given up" in caplog.text
    assert "failed" not in caplog.text
    learner.hear(closed_round(60))
    assert (slots.started, posted) == (1, [])
    script.write_text(ends)
    state[0] = EASE
    learner.hear(closed_round(61))
    settle(learner)
    assert (slots.started, posted) == (2, [PolicyLearned()])


def test_a_slot_loads_no_torch_and_runs_at_the_lowest_priority(tmp_path: Path) -> None:
    program = """
import sys, os
from pathlib import Path
from mdl.peers.edge import relearner
from mdl.scheduler.policies.learned import SEEN
from mdl.devices.scenario import save_scenarios
from mdl.sim.timing.scenario import draw_scenario
save_scenarios([draw_scenario("paper", 3, number) for number in range(6)], Path(sys.argv[1]) / SEEN)
relearner.main()
print(os.getpriority(os.PRIO_PROCESS, 0), *(name for name in ("torch", "stable_baselines3") if name in sys.modules))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as slot:
        assert slot.stdout is not None
        said = slot.stdout.read()  # its standard input stays open: it is the slot's lifeline
    assert said.splitlines()[-1] == "19"


def test_who_does_not_want_it_remembers_nothing(tmp_path: Path, posted: list[object]) -> None:
    make(tmp_path, posted, is_on=False).hear(closed_round(1))
    assert not (tmp_path / "scheduler").exists()


def test_only_the_last_rounds_are_kept(tmp_path: Path, posted: list[object]) -> None:
    learner = make(tmp_path, posted, ResourceState(1 << 30, 5.0, in_use=True))
    for number in range(MOST_SEEN + 5):
        learner.hear(closed_round(number))
    seen = load_scenarios(tmp_path / "scheduler" / "seen.jsonl")
    assert (len(seen), seen[-1].scenario_id) == (MOST_SEEN, f"round-{MOST_SEEN + 4}")


def test_a_slot_that_fails_changes_nothing(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    Slots(monkeypatch, tmp_path)
    (tmp_path / "slot.py").write_text("raise SystemExit('no')")
    learner = make(tmp_path, posted)
    for number in range(LEAST_SEEN):
        learner.hear(closed_round(number))
    settle(learner)
    assert posted == []


def test_a_slot_ends_with_its_node_when_that_is_killed(tmp_path: Path) -> None:
    """A node that leads again and again, and is killed each time, left them all behind, each at its work."""
    program = """
import sys
from pathlib import Path
from mdl.peers.edge.relearner import *
from mdl.scheduler.policies.learned import DRAFT
from mdl.devices.scenario import save_scenarios
from mdl.sim.timing.scenario import draw_scenario
learner = Relearner(Path(sys.argv[1]), BusySection(), lambda: None, lambda _: None)
seen = [draw_scenario("paper", 3, number) for number in range(LEAST_SEEN)]
save_scenarios(seen, Path(sys.argv[1]) / "seen.jsonl")
learner._start_slot([])
print(learner._slot.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        slot = psutil.Process(int(node.stdout.readline()))
        node.kill()
    try:
        slot.wait(timeout=120.0)
    finally:
        if slot.is_running():
            slot.kill()
    assert not (tmp_path / DRAFT).exists(), "it has learned to its end"


def test_what_the_system_refuses_costs_the_learning_and_not_the_node(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    learner = make(tmp_path, posted)
    for number in range(LEAST_SEEN - 1):
        learner.hear(closed_round(number))
    monkeypatch.setattr(relearner.subprocess, "Popen", refuse)
    learner.hear(closed_round(LEAST_SEEN))
    assert "is not learned from: [Errno 24] Too many open files" in caplog.text
    assert posted == []


def test_a_policy_that_was_re_learned_under_other_constants_is_set_aside_and_learned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / relearner.FOLDER
    folder.mkdir()
    with monkeypatch.context() as before:
        before.setattr(trained_under, "FORMULAS", 0)
        save_weights(folder / POLICY, draw_weights(np.random.default_rng(0)), {})
    (folder / "learned.json").write_text("[1, 2]")
    assert relearner.make_own_policy(Config(round=RoundSection(policy="dqn")), tmp_path).name == "dqn"
    assert "the shipped schedule is used" in caplog.text
    assert "formulas 0 there, 1 here" in caplog.text
    assert f"it is set aside as {POLICY}.set-aside" in caplog.text
    assert sorted(path.name for path in folder.iterdir()) == [f"{POLICY}.set-aside"]
    caplog.clear()
    assert relearner.make_own_policy(Config(round=RoundSection(policy="dqn")), tmp_path).name == "dqn"
    assert caplog.text == ""


def test_what_a_slot_had_to_set_aside_is_told(
    tmp_path: Path, posted: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Slots(monkeypatch, tmp_path, slot=1, slots=12, set_aside=["draft: trained under other constants"])
    learner = make(tmp_path, posted)
    for number in range(LEAST_SEEN):
        learner.hear(closed_round(number))
    settle(learner)
    assert "draft: trained under other constants" in caplog.text


def test_without_a_policy_file_that_can_be_read_the_greedy_schedule_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that takes office reads it, and must not end for want of a descriptor."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(relearner, "Learned", refuse)
    assert relearner.make_own_policy(Config(), tmp_path).name == "greedy"
    assert "the greedy schedule is used" in caplog.text
