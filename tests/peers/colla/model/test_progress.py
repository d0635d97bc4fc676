"""What a device by itself pulls, and what it keeps between two studies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mdl.errors import DamagedError, RemoteProtocolError
from mdl.peers.colla.files import OWN, CloudProgress, read_progress, write_progress
from mdl.peers.colla.model.model_kinds import UPDATE_MODES, ModelKind, RecurrentKind, WindowKind
from mdl.peers.colla.model.update_codec import LARGEST_LESSON_BYTES, pack_parts, unpack_parts
from mdl.protocol.cloud_messages import LessonMessage

CELLS, SIDES = [f"cell {number}" for number in range(8)], ("left", "middle", "right")
PLACES = RecurrentKind(CELLS, "4-16", "8-16")
WINDOWS = WindowKind("lenet", "lenet", 1, 16, SIDES)


def _bytes(kind: ModelKind, *models: nn.Module) -> list[bytes]:
    return [kind.pack(model) for model in models]


def test_parts_come_back_and_nothing_else_is_a_lesson() -> None:
    assert unpack_parts(pack_parts([b"small", b"large model", b"name"]), 3) == [b"small", b"large model", b"name"]
    for wrong in (b"", b"garbage", PLACES.pack(PLACES.build_small(0)), pack_parts([b"one"])):
        with pytest.raises(RemoteProtocolError, match="lesson"):
            unpack_parts(wrong, 2)
    with pytest.raises(RemoteProtocolError, match="can be one"):
        unpack_parts(bytes(LARGEST_LESSON_BYTES + 1), 2)


def test_a_clouds_large_model_may_be_another_built_in_one_and_no_other_name_is_built() -> None:
    for kind, name in ((PLACES, "16-64"), (WINDOWS, "alexnet")):
        cloud = RecurrentKind(CELLS, "4-16", name) if kind is PLACES else WindowKind("lenet", name, 1, 16, SIDES)
        large = cloud.build_large(3)
        assert cloud.pack(kind.unpack_large(cloud.pack(large), name)) == cloud.pack(large)
        for unknown in ("9999-9999", "package.module:factory", ""):
            with pytest.raises(RemoteProtocolError, match="the cloud's large model is"):
                kind.unpack_large(cloud.pack(large), unknown)


@pytest.mark.parametrize("kind", [PLACES, WINDOWS], ids=["places", "windows"])
def test_a_device_goes_on_from_its_own_model_after_a_restart(kind: ModelKind, tmp_path: Path) -> None:
    assert read_progress(tmp_path, kind) is None
    mode = UPDATE_MODES["customisation" if kind is PLACES else "same-whole"]
    own = kind.customize(kind.build_small(1), [2, 0], mode, torch.Generator())
    kept = CloudProgress(own, kind.build_small(0), 3, 1)
    write_progress(tmp_path, kind, kept)
    found = read_progress(tmp_path, kind)
    assert found is not None
    assert _bytes(kind, found.own, found.origin) == _bytes(kind, kept.own, kept.origin)
    assert (found.version, found.group) == (3, 1)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / OWN).write_bytes(b"garbage")
    with pytest.raises(DamagedError, match=r"or remove .*own.safetensors to begin anew"):
        read_progress(tmp_path, PLACES)


def test_updates_are_changes_of_the_origin_until_the_cloud_could_have_forgotten_it() -> None:
    progress = CloudProgress(PLACES.build_small(0), PLACES.build_small(0), version=3, group=-1)
    assert [progress.fits(LessonMessage("ann", version), 5) for version in (2, 3, 6, 10, 11)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert not progress.fits(LessonMessage("ann", 5), 5), "the lesson that was studied last comes again"
