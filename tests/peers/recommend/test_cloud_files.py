"""What a cloud of recommenders has on its disk, and how it goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.errors import ConfigError, MdlError
from mdl.protocol.cloud_work import TeachCycle
from mdl.recommend.algorithm import CloudSettings
from mdl.recommend.din import DinSettings
from mdl.recommend.interactions import Feature, Interactions
from mdl.recommend.lesson import Lesson, read_lesson
from mdl.recommend.momodistill import DistillSettings
from mdl.recommend.profiles import number_profiles
from mdl.recommend.training import FitSettings
from peers.recommend.cloud_files import RecommendFiles
from tests.mdl.recommend.logs import small_log

FEW = FitSettings(epochs=1, batch=64, history=5)
SETTINGS = CloudSettings(DinSettings(8, 16, 5, has_user=False), 4, FEW, DistillSettings(0.01, FEW, FEW))


def _open(folder: Path, fresh: bool = False, log: Interactions | None = None, store: str = "") -> RecommendFiles:
    return RecommendFiles(folder, log or small_log(), SETTINGS, 0, "6 users", fresh, store)


def _lesson(files: RecommendFiles) -> Lesson:
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
    written = (tmp_path / "lessons" / "00001.safetensors").read_bytes()
    taught = files.teach(TeachCycle(1))
    assert (taught.version, files.version, files.counts()) == (1, 1, {1: 0})
    assert bytes(taught.lessons["-1"]) == written
    files.close()


def test_a_lesson_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    files = _open(tmp_path)
    files.teach(TeachCycle(1))
    files.close()
    (tmp_path / "lessons" / "00001.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"00001\.safetensors is not there, and the database names it; --fresh"):
        _open(tmp_path)
    fresh = _open(tmp_path, fresh=True)
    assert fresh.version == 0
    fresh.close()


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
