"""Lessons and vectors as bytes: back as they were, and garbage refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from mdl.errors import RemoteProtocolError
from mdl.peers.dccl.model.din import DinSettings
from mdl.peers.dccl.model.lesson import (
    OtherBasisError,
    RecommenderLesson,
    name_basis,
    pack_lesson,
    pack_vector,
    read_lesson,
    read_vector,
)
from mdl.peers.dccl.model.momodistill import make_cloud_model
from mdl.protocol.cloud_messages import VectorMessage
from mdl.protocol.delta import Contributor
from mdl.transport.wire.codec import encode
from tests.peers.dccl.model.logs import small_log


@pytest.fixture
def lesson() -> RecommenderLesson:
    torch.manual_seed(0)
    log = small_log()
    return RecommenderLesson(make_cloud_model(log, DinSettings(8, 16, 5, has_user=False), size=4), log.titles)


def test_a_lesson_comes_back_as_it_was(lesson: RecommenderLesson) -> None:
    found = read_lesson(pack_lesson(lesson))
    assert found.titles == lesson.titles
    for mine, theirs in (
        (found.cloud.model, lesson.cloud.model),
        (found.cloud.basis, lesson.cloud.basis),
        (found.cloud.encoder, lesson.cloud.encoder),
    ):
        state = theirs.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in mine.state_dict().items())
    assert found.cloud.encoder.features == small_log().features


def test_reading_a_lesson_leaves_the_random_state(lesson: RecommenderLesson) -> None:
    packed, before = pack_lesson(lesson), torch.get_rng_state()
    read_lesson(packed)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_lesson_is_refused_in_one_line(lesson: RecommenderLesson) -> None:
    good = load(pack_lesson(lesson))
    about = good["about"].numpy().tobytes()
    too_wide = torch.tensor(list(about.replace(b'"hidden":16', b'"hidden":9999')), dtype=torch.uint8)
    many = b'"categories":[' + b'"x",' * 3999 + b'"y"]'
    too_many = torch.tensor(list(about.replace(b'"categories":["forwards","backwards"]', many)), dtype=torch.uint8)
    theta = good["basis.theta"]
    cases: list[tuple[bytes, str]] = [
        (b"", "no safetensors"),
        (save({"x": torch.zeros(1)}), "does not say what it is of"),
        (save({**good, "about": torch.tensor(list(b"{}"), dtype=torch.uint8)}), "lesson: "),
        (save({**good, "more": torch.zeros(1)}), "holds 'more'"),
        (save({name: value for name, value in good.items() if name != "basis.theta"}), "no basis.theta"),
        (save({**good, "basis.theta": theta[:-1].contiguous()}), "no basis.theta of shape"),
        (save({**good, "basis.theta": torch.full_like(theta, float("nan"))}), "holds NaN"),
        (save({**good, "about": too_wide}), "lesson: "),
        (save({**good, "about": too_many}), "names 4000 categories and does not hold them"),
    ]
    for packed, told in cases:
        with pytest.raises(RemoteProtocolError, match=told) as raised:
            read_lesson(packed)
        assert "\n" not in str(raised.value)


def test_a_vector_comes_back_and_a_bad_one_is_refused_by_name(lesson: RecommenderLesson) -> None:
    basis = lesson.cloud.basis
    name, vector = name_basis(basis), torch.randn(4)
    assert (read_vector(pack_vector(vector, name), name, 4) == vector.numpy()).all()
    bad = {
        "NaN or infinity": torch.tensor([1, 2, 3, float("nan")]),
        "at most 1000": torch.tensor([1.0, 2, 3, 1e6]),
        "a vector of 12 bytes; expected 4 float32": torch.randn(3),
    }
    for told, values in bad.items():
        with pytest.raises(RemoteProtocolError, match=told):
            read_vector(pack_vector(values, name), name, 4)
    with pytest.raises(OtherBasisError, match="of another basis"):
        read_vector(pack_vector(vector, b"x" * 16), name, 4)
    with pytest.raises(OtherBasisError):
        read_vector(b"", name, 4)


def test_a_message_with_the_longest_vector_is_below_1_kb() -> None:
    values = b"b" * 16 + np.zeros(160, "<f4").tobytes()
    message = VectorMessage("u" * 64, "recommend-1", 1 << 50, b"d" * 32, 1 << 30, values=values)
    assert len(encode(Contributor("p" * 40, 1 << 50), message)) < 1024
