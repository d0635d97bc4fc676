"""What a cloud of recommenders has on its disk, and how it goes on from there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from mdl.errors import DamagedError, MdlError
from mdl.files.checkpoint import read_packed
from mdl.peers.dccl.edge import RecommendFiles
from mdl.peers.dccl.model.din import DinSettings, FitSettings
from mdl.peers.dccl.model.interactions import Feature, Interactions, number_profiles
from mdl.peers.dccl.model.lesson import LARGEST_LESSON_BYTES, RecommenderLesson, read_lesson
from mdl.peers.dccl.model.momodistill import MoMoDistillSettings, RecommenderSettings
from mdl.protocol.machine import TeachCycle
from tests.peers.dccl.model.logs import small_log

FEW = FitSettings(epochs=1, batch=64, history=5)
SETTINGS = RecommenderSettings(DinSettings(8, 16, 5, has_user=False), 4, FEW, MoMoDistillSettings(0.01, FEW, FEW))


def _open(folder: Path, fresh: bool = False, log: Interactions | None = None, store: str = "") -> RecommendFiles:
    return RecommendFiles(folder, log or small_log(), SETTINGS, 0, "6 users", fresh, store)


def _lesson(files: RecommendFiles) -> RecommenderLesson:
    taught = files.taught()
    assert taught is not None
    return read_lesson(bytes(taught.lessons["-1"]))


def test_a_round_whose_commit_was_not_answered_is_not_learned_again(tmp_path: Path) -> None:
    """A server's connection may break after the commit: the round is on the disk, and counts once."""
    files = _open(tmp_path)
    close = files._store.close_round

    def lose(*arguments: object) -> int:
        close(*arguments)  # type: ignore[arg-type]
        raise MdlError("the connection was lost")

    files._store.close_round = lose  # type: ignore[method-assign]
    with pytest.raises(MdlError, match="lost"):
        files.teach(TeachCycle(1))
    assert files.version == 0
    written = read_packed(tmp_path / "lessons" / "00001.safetensors", LARGEST_LESSON_BYTES)
    taught = files.teach(TeachCycle(1))
    assert (taught.version, files.version, files.counts()) == (1, 1, {1: 0})
    assert bytes(taught.lessons["-1"]) == written
    files.close()


def test_a_lesson_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    files = _open(tmp_path)
    files.teach(TeachCycle(1))
    files.close()
    (tmp_path / "lessons" / "00001.safetensors").unlink()
    with pytest.raises(DamagedError, match=r"00001\.safetensors: .*, and the database names it; .* give --fresh"):
        _open(tmp_path)
    fresh = _open(tmp_path, fresh=True)
    assert fresh.version == 0
    fresh.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_lesson_is_not_handed_out_and_the_one_before_has_a_new_number(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = _open(tmp_path)
    files.teach(TeachCycle(1))
    files.teach(TeachCycle(2))
    files.close()
    first, second = (tmp_path / "lessons" / f"0000{number}.safetensors" for number in (1, 2))
    content = second.read_bytes()
    if damage == "gone":
        second.unlink()
    else:
        second.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage == "flip" else content[:100])
    files = _open(tmp_path)
    taught = files.taught()
    assert taught is not None
    assert (taught.version, bytes(taught.lessons["-1"])) == (3, read_packed(first, LARGEST_LESSON_BYTES))
    assert "it is handed out as version 3" in caplog.text
    assert files.teach(TeachCycle(4)).version == 4
    files.close()
    caplog.clear()
    files = _open(tmp_path)
    assert files.version == 4
    assert "going on from the version before" not in caplog.text
    files.close()


def test_a_lesson_of_an_older_version_is_read(tmp_path: Path) -> None:
    files = _open(tmp_path)
    files.teach(TeachCycle(1))
    path = tmp_path / "lessons" / "00001.safetensors"
    packed = read_packed(path, LARGEST_LESSON_BYTES)
    files.close()
    path.write_bytes(packed)
    files = _open(tmp_path)
    taught = files.taught()
    assert taught is not None
    assert bytes(taught.lessons["-1"]) == packed
    files.close()


def test_a_damaged_database_is_one_line_that_names_the_ways_out(tmp_path: Path) -> None:
    files = _open(tmp_path)
    files.teach(TeachCycle(1))
    files.close()
    path = tmp_path / "vectors.sqlite"
    whole = path.read_bytes()
    told = 0
    for at in range(0, len(whole), 4096):
        for damage in (bytes(4096), b"\xff" * 4096):
            path.write_bytes(whole[:at] + damage + whole[at + 4096 :])
            for ending in ("-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
            with suppress(DamagedError):
                _open(tmp_path).close()
                continue
            told += 1
    assert told >= len(whole) // 4096
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(DamagedError, match=r"vectors\.sqlite \.recover \| sqlite3 .*new-vectors\.sqlite"):
        _open(tmp_path)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_profiles_are_kept_and_complete_a_log_that_has_none(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = "" if kind == "sqlite" else request.getfixturevalue("url")
    silent = number_profiles(small_log(), {})
    files = _open(tmp_path / "one", store=store)
    files.close()
    files = _open(tmp_path / "one", log=silent, store=store)
    files.teach(TeachCycle(1))
    assert _lesson(files).cloud.encoder.features == (Feature("walks", ("backwards", "forwards")),)
    files.close()


def test_a_later_rounds_profiles_are_in_the_numbers_of_its_lesson(tmp_path: Path) -> None:
    """A category that is new and one that is gone at the next start: the encoder that was learned goes on."""
    files = _open(tmp_path)
    files.teach(TeachCycle(1))
    files.close()
    told = {user: {"walks": "in circles" if user == "0" else "backwards"} for user in small_log().users}
    files = _open(tmp_path, log=number_profiles(small_log(), told))
    assert files._data.profiles[:, 0].tolist() == [0, 1, 1, 1, 1, 1]
    files.teach(TeachCycle(2))
    assert _lesson(files).cloud.encoder.features == (Feature("walks", ("backwards", "forwards")),)
    files.close()
