"""A recorded process is stepped through what it saw, and does the same again; what cannot be replayed says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from mdl.errors import ConfigError, DataError
from mdl.own import Own
from mdl.peers.roles.build import build_machine
from mdl.peers.roles.trainer.hops import HopsHere
from mdl.peers.trials.campaign import Campaign, silent_machines
from mdl.peers.trials.run_plan import run_plan, tell_plan
from mdl.peers.trials.story_file import load_story, read_event, replay_story, save_stories, tell_entries
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import CycleTaught
from mdl.protocol.vocabulary import Packed
from mdl.scheduler.given import describe_choice
from mdl.scheduler.policies.registry import make_policy
from mdl.sim.plans.draw_plan import draw_plan
from mdl.transport.story import Story


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    with silent_machines():
        return [
            path
            for seed in (3, 4, 7)
            for path in save_stories(tell_plan(Campaign().plan(seed))[1], tmp_path_factory.mktemp("run"))
        ]


def test_every_process_of_a_hard_run_does_the_same_again(stories: list[Path]) -> None:
    with silent_machines():
        replays = [replay_story(load_story(path)) for path in stories]
    assert [replay.describe() for replay in replays if replay.problem or replay.differs] == []
    assert sum(replay.effects for replay in replays) > 1000


# 2: a device hears of a result before it has it; 8 and 10: of a result that it lets go before anybody tells of it.
@pytest.mark.parametrize("seed", [2, 8, 10])
def test_every_process_of_a_hard_run_in_segments_does_the_same_again(seed: int, tmp_path: Path) -> None:
    plan = msgspec.structs.replace(draw_plan(seed, 5, 3, "hard"), exchange="shares")
    with silent_machines():
        paths = save_stories(run_plan(plan, record=True)[1], tmp_path)
        replays = [replay_story(load_story(path)) for path in paths]
    assert [replay.describe() for replay in replays if replay.problem or replay.differs] == []


def test_a_machine_that_does_otherwise_is_found_out(stories: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HopsHere, "serve", lambda self, part, receiver, wanted: [])
    with silent_machines():
        replays = [replay_story(load_story(path)) for path in stories]
    told = [replay.difference for replay in replays if replay.differs]
    assert told
    assert all(difference.startswith("step ") for difference in told)


@pytest.mark.slow
def test_a_story_is_told_in_lines(stories: list[Path]) -> None:
    lines = [line for path in stories for line in tell_entries(load_story(path))]
    assert any("hears RoundOpened (round 1" in line for line in lines)
    assert any("-> agent: PeerReport at 0" in line or "-> p" in line for line in lines)


def test_a_story_without_its_beginning_is_printed_only(stories: list[Path], tmp_path: Path) -> None:
    header, *lines = stories[1].read_text().splitlines()
    cut = tmp_path / "story.jsonl"
    cut.write_text(
        "\n".join([json.dumps(json.loads(header) | {"left_out": 5}), *lines[5:]]).replace('": ', '":') + "\n"
    )
    replayed = replay_story(load_story(cut))
    assert replayed.describe().startswith("printed only: its first 5 steps are not kept")
    cut.write_text("\n".join(lines) + "\n")
    assert "no header" in replay_story(load_story(cut)).problem


def test_a_story_names_its_policy_in_words_and_asks_for_it_again(
    stories: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is never opened nor imported, whatever it looks like."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "canary_of_a_story.py").write_text("open('imported', 'w').close()\ndef make(): ...\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    leads = next(path for path in stories if '"RecordRound"' in path.read_text())
    header, *lines = leads.read_text().splitlines()
    for told in ("canary_of_a_story:make", "the function canary_of_a_story:make", "./canary_of_a_story.py", "gone"):
        start = json.loads(header)["header"] | {"policy": told}
        story = tmp_path / "story.jsonl"
        story.write_text("\n".join([json.dumps({"header": start, "left_out": 0}), *lines]) + "\n")
        with silent_machines():
            replayed = replay_story(load_story(story))
        assert replayed.problem == f"it followed {told}, which a story does not keep: give it with --policy"
        assert not (tmp_path / "imported").exists()
    with pytest.raises(ConfigError, match="--policy fifo: that is fifo; the story followed gone"):
        replay_story(load_story(story), "fifo")
    own = Own("canary_of_a_story:make", lambda: make_policy("greedy"))
    start = json.loads(header)["header"] | {"policy": describe_choice(own)}
    story.write_text("\n".join([json.dumps({"header": start, "left_out": 0}), *lines]) + "\n")
    with silent_machines():
        replayed = replay_story(load_story(story), own)
    assert replayed.problem == ""
    assert replayed.steps


def test_packed_bytes_of_a_cloud_are_read_as_bytes_of_that_length() -> None:
    taught = {"version": 1, "lessons": {"-1": {"dtype": "bytes", "size": 3}}, "groups": {}, "learned": {}}
    event = read_event({"CycleTaught": taught})
    assert isinstance(event, CycleTaught)
    assert event.lessons == {"-1": Packed(3)}


def test_a_file_that_is_no_story_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "story.jsonl"
    path.write_text('{"at_s": 1.0, "event": {"Tick": {}}}\nnonsense\n')
    with pytest.raises(DataError, match=r"story\.jsonl, line 2: "):
        load_story(path)
    with pytest.raises(DataError, match="expected a story"):
        load_story(tmp_path / "missing.jsonl")


def test_a_bounded_story_says_how_much_is_left_out(tmp_path: Path) -> None:
    from mdl.protocol.machine import StopRequested

    story = Story(length=2, header=Contributor("a", 1))
    for at_s in range(5):
        story.add(float(at_s), StopRequested(), [])
    story.save(tmp_path / "story.jsonl")
    first, *rest = (tmp_path / "story.jsonl").read_text().splitlines()
    assert json.loads(first) == {"header": {"peer_id": "a", "incarnation": 1}, "left_out": 3}
    assert len(rest) == 2


# Every field that a header may have, as it was written before machines were built from one value.
FORMER_HEADER = """{"header": {"me": {"peer_id": "p1", "incarnation": 2}, "policy": "greedy",
"agent": {"rounds": 0, "min_peers": 4, "lost_after_s": 2.0, "retry_s": 0.25, "stall_s": 3.0, "partition_s": 4.0,
"waits_for_majority": true, "farewell_s": 20.0, "stop_s": 1.5,
"busy": {"in_use": true, "cpu_percent": 90.0, "battery_percent": 5.0, "free_memory_mb": 64.0},
"limit": {"deadline_s": 0.0, "quorum": 0.75, "spared": []}},
"succession": {"heartbeat_s": 1.0, "lost_after_s": 2.0, "settle_s": 0.8, "step_s": 0.25, "start_s": 2.8},
"trainer": {"size": 256, "digest": "AAECAwQFBgcICQoLDA0ODw==", "schema_hash": "schema", "model": "model",
"round_id": 3, "settings": {"eta": 1.0, "keep_deltas": true, "report_s": 1.0, "retry_s": 0.25, "stall_s": 2.0}},
"started_s": 4.5}, "left_out": 0}"""


def test_the_header_of_an_older_story_still_builds_its_machine(tmp_path: Path) -> None:
    path = tmp_path / "story-p1.jsonl"
    header = FORMER_HEADER.replace("\n", " ")
    path.write_text(header + '\n{"at_s": 4.5, "event": {"ResourcesSampled": {"resources": {}}}, "effects": []}\n')
    recorded = load_story(path)
    assert recorded.problem == ""
    assert recorded.start is not None
    assert recorded.start.me == Contributor("p1", 2)
    assert build_machine(recorded.start).rounds_closed() == 0
