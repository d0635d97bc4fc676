"""What a story keeps of a step, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdl.errors import DataError
from mdl.peers.trials.story_file import load_story, tell_entries
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Received,
    Send,
    StopRequested,
    StoreUpdate,
    StudyLesson,
    Tick,
    UpdateReady,
)
from mdl.protocol.round_messages import ModelMessage, PieceMessage, SegmentMessage, SegmentTaken
from mdl.protocol.vocabulary import Packed
from mdl.transport.story import Story

ANN = Contributor("ann", 1)
MODEL = Packed(bytes(5000))
LESSON, UPDATE = LessonMessage("ann", 1), UpdateMessage("ann", "schema", 1, b"d")
VALUES = np.zeros(1250, np.float32)


@pytest.mark.parametrize(
    "item",
    [
        Received(ANN, LESSON, MODEL),
        Received(ANN, ModelMessage(1, b"d"), VALUES, b"d"),
        UpdateReady(1, MODEL),
        CycleTaught(1, {"-1": MODEL, "0": MODEL}, {}, {}),
        Send("cloud", UPDATE, MODEL),
        Send("bob", ModelMessage(1, b"d"), VALUES),
        StudyLesson(1, LESSON, MODEL),
        StoreUpdate(ANN, UPDATE, MODEL),
    ],
    ids=lambda item: type(item).__name__,
)
def test_no_bulk_data_is_kept_but_its_length(item: Any, tmp_path: Path) -> None:
    story = Story()
    story.add(1.0, item, [item])
    story.save(tmp_path / "story.jsonl")
    text = (tmp_path / "story.jsonl").read_text()
    assert len(text) < 1000
    assert ('"size":5000' in text) is (VALUES is not getattr(item, "values", None))


def test_a_story_is_a_line_of_json_a_step(tmp_path: Path) -> None:
    story = Story()
    story.add(0.5, StopRequested(), [Send("cloud", UPDATE, MODEL)])
    story.save(tmp_path / "story.jsonl")
    (line,) = (tmp_path / "story.jsonl").read_text().splitlines()
    (sent,) = json.loads(line)["effects"]
    assert sent["Send"]["values"] == {"dtype": "bytes", "size": 5000}


PIECE, RESULT = PieceMessage(3, 70_000, 1, 5, 2.0), SegmentMessage(3, 70_000, 1, 6)
TAKEN, OTHER_TAKEN = SegmentTaken(3, 70_000, 1, 5), SegmentTaken(3, 70_000, 1, 6, True)
# Times, events and effects as a round has them: segments pass, and now and then something else happens.
STEPS: list[tuple[float, Event, list[Effect]]] = [
    (0.5, StopRequested(), []),
    (1.0, Tick(), []),
    (1.1, Received(ANN, PIECE, VALUES), [Send("ann", TAKEN), Send("bob", RESULT, VALUES[:7])]),
    (1.2, Received(ANN, OTHER_TAKEN), []),
    (1.2, Tick(), []),
    (1.3, Received(ANN, RESULT, VALUES[:3]), [Send("ann", OTHER_TAKEN), StudyLesson(1, LESSON, MODEL)]),
    (1.4, Received(ANN, RESULT), []),
    (1.5, Tick(), [Send("ann", TAKEN)]),
    (1.6, Received(ANN, ModelMessage(1, b"d"), VALUES, b"d"), []),
    (1.7, Received(ANN, PIECE, VALUES), []),
    (1.8, Tick(), []),
    (1.9, Received(ANN, TAKEN), [Send("ann", PIECE, VALUES)]),
]


def _saved(story: Story, path: Path) -> list[str]:
    story.save(path / "story.jsonl")
    return (path / "story.jsonl").read_text().splitlines()


def test_steps_that_pass_segments_on_are_rows_and_read_as_if_they_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_rows = Story()
    for step in STEPS:
        in_rows.add(*step)
    assert len(_saved(in_rows, tmp_path)) == len(in_rows) + 1 == 5, "the last line has no step of its own"
    read = load_story(tmp_path / "story.jsonl").entries
    monkeypatch.setattr("mdl.transport.story.pack_row", lambda *step: None)
    one_by_one = Story()
    for step in STEPS:
        one_by_one.add(*step)
    one_by_one.save(tmp_path / "whole.jsonl")
    assert read == load_story(tmp_path / "whole.jsonl").entries
    assert [entry.ticks for entry in read] == [[], [1.0], [], [1.2], [], [], [], [], [1.8]]


def test_two_hundred_rounds_in_segments_leave_room_for_what_else_happened(tmp_path: Path) -> None:
    story = Story()
    for number in range(200):
        for segment in range(560):
            piece = PieceMessage(number, 70_000, 1, segment, 1.0)
            story.add(number + segment / 1000, Received(ANN, piece, VALUES), [Send("ann", TAKEN)])
        story.add(number + 0.9, StopRequested(), [])
    lines = _saved(story, tmp_path)
    kept = [json.loads(line) for line in lines]
    assert 60 < len(kept) < 80, "as many rounds as rows may be kept"
    assert sum(map(len, lines)) < 5_000_000
    assert story.left_out + sum(1 + len(line["before"]) for line in kept) == 200 * 561
    assert kept[-1]["at_s"] == 199.9


def test_more_segments_than_a_line_may_have_begin_another(tmp_path: Path) -> None:
    story = Story()
    for number in range(9_000):
        story.add(float(number), Received(ANN, TAKEN), [])
    assert len(_saved(story, tmp_path)) == 3
    assert [entry.at_s for entry in load_story(tmp_path / "story.jsonl").entries] == list(range(9_000))


@pytest.mark.parametrize(
    "row",
    [
        [1.0, "ann", 1, ["PieceMessage", 1, 2], None, []],
        [1.0, "ann", 1, ["PeerReport", 1], None, []],
        [1.0, "ann", 1, [], None, []],
        [1.0, "ann", 1, [["x"]], None, []],
        [1.0, "ann", 1, ["SegmentTaken", 1, 2, 3, 4, True], None, [["bob", ["x"], None]]],
        [1.0, "ann"],
        "x",
    ],
)
def test_a_damaged_row_is_told_with_its_line(row: Any, tmp_path: Path) -> None:
    (tmp_path / "story.jsonl").write_text(json.dumps({"before": [0.5, row]}) + "\n")
    with pytest.raises(DataError, match=r"story.jsonl, line 1"):
        load_story(tmp_path / "story.jsonl")


def test_passing_segments_are_told_in_one_line(tmp_path: Path) -> None:
    story = Story()
    for step in STEPS:
        story.add(*step)
    story.save(tmp_path / "story.jsonl")
    told = list(tell_entries(load_story(tmp_path / "story.jsonl")))
    together = "hears 1 PieceMessage + 1 SegmentTaken, says 1 SegmentMessage + 1 SegmentTaken, until 1.200"
    assert told[1].endswith(together)
    assert told[-1].endswith("hears 1 PieceMessage + 1 SegmentTaken, says 1 PieceMessage, until 1.900")
