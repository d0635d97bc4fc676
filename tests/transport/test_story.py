"""What a story keeps of a step, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdl.protocol.bulk import Packed
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import CycleTaught, Received, Send, StopRequested, StoreUpdate, StudyLesson, UpdateReady
from mdl.protocol.round_messages import ModelMessage
from transport.story import Story

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
