"""What mdl writes is for this user alone from the first moment, and whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mdl import writing
from mdl.config import load_config, save_config
from mdl.data import load_data
from mdl.errors import MdlError
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.protocol.machine import Tick
from mdl.scheduler.policies.qnet_numpy import draw_weights, save_weights
from mdl.transport.story import Story
from mdl.writing import append_line, make_private_folder, narrow, open_private, write_bytes, write_whole

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """The usual mask on many machines, under which a careless file is readable by everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if mode(path) & 0o077]


def test_what_is_kept_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    ModelCache(tmp_path / "state" / "home" / "p1").save(CachedModel(np.ones(3, np.float32), 1, "schema", "home"))
    save_config(load_config(None, {}), tmp_path / "config.toml")
    load_data("motion?people=2&test_people=1&windows=12", tmp_path / "cache" / "windows")
    story = Story()
    story.add(0.0, Tick(), [])
    story.save(tmp_path / "run" / "story-p1.jsonl")
    append_line(tmp_path / "metrics.jsonl", b"{}")
    save_weights(tmp_path / "policy.safetensors", draw_weights(np.random.default_rng(0)), {})
    assert len(list(tmp_path.rglob("*"))) > 15
    assert open_to_others(tmp_path) == []


def test_there_is_no_moment_in_which_a_file_is_open_to_others(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def write(file: object) -> None:
        seen.append(open_to_others(tmp_path))
        assert any(tmp_path.rglob(".model.*.part"))

    write_whole(tmp_path / "a" / "b" / "model", write)
    assert seen == [[]]


@pytest.mark.parametrize("how", ["wb", "ab"])
def test_an_open_file_is_narrowed_when_it_is_written(tmp_path: Path, how: str) -> None:
    path = tmp_path / "story"
    path.write_bytes(b"old ")
    path.chmod(0o644)
    with open_private(path, how) as file:
        assert mode(path) == 0o600
        file.write(b"new")
    assert path.read_bytes() == (b"old new" if how == "ab" else b"new")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disk", "least_share", "most_s"),
    [
        pytest.param([(20.0, 0.003)], 0.9, 0.25, id="a memory card"),
        pytest.param([(20.0, 0.05)], 0.6, 0.3, id="a slow one"),
        pytest.param([(500.0, 0.005)], 0.7, 0.25, id="a disk without moving parts"),
        pytest.param([(100.0, 0.015)], 0.7, 0.25, id="one with them"),
        pytest.param([(100.0, 0.002), (100.0, 0.05)], 0.5, 0.25, id="others come to use it"),
        pytest.param([(800.0, 0.001), (20.0, 0.003)], 0.9, 0.3, id="its cache is full"),
    ],
)
def test_a_large_file_goes_to_the_disk_in_pieces_so_that_what_else_is_synced_waits_for_one_of_them_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disk: list[tuple[float, float]],
    least_share: float,
    most_s: float,
) -> None:
    """disk: MB a second and seconds a sync, one after the other. least_share: of its time it is to spend on writing."""
    now, on_disk, waits, writing_s = [0.0], [0], [], [0.0]
    content = np.random.default_rng(0).bytes(160_000_000)

    def sync(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        mb_s, latency_s = disk[on_disk[0] * len(disk) // len(content)]
        took = (size - on_disk[0]) / (mb_s * 1e6)
        waits.append((disk.index((mb_s, latency_s)), latency_s + took))
        on_disk[0], now[0], writing_s[0] = size, now[0] + waits[-1][1], writing_s[0] + took

    monkeypatch.setattr(writing, "sync_content", sync)
    monkeypatch.setattr(writing.time, "monotonic", lambda: now[0])
    write_whole(tmp_path / "model", lambda file: [file.write(content[:100]), file.write(content[100:])])
    assert (tmp_path / "model").read_bytes() == content
    assert 0.5 < on_disk[0] / len(content) <= 1.0
    last = [wait for kind, wait in waits if kind == len(disk) - 1]
    assert max(last if len(disk) == 1 else last[3:]) < most_s  # it is half as long each time until then
    assert max(last) < 1.0
    assert writing_s[0] / now[0] > least_share


def test_a_small_file_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(writing, "sync_content", synced.append)
    write_bytes(tmp_path / "policy", bytes(1_000_000))
    assert synced == []


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / f".model.{os.getpid()}.part").symlink_to(victim)
    write_bytes(tmp_path / "model", b"new")
    assert (victim.read_bytes(), (tmp_path / "model").read_bytes()) == (b"mine", b"new")


def test_a_refused_write_leaves_what_was_there(tmp_path: Path) -> None:
    write_bytes(tmp_path / "model", b"old")

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(MdlError, match=r"cannot save .*model: No space left on device"):
        write_whole(tmp_path / "model", fail)
    assert (tmp_path / "model").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_the_users_keeps_its_mode_and_a_new_one_is_theirs_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    make_private_folder(tmp_path / "mine" / "runs" / "up")
    assert [mode(tmp_path / name) for name in ("mine", "mine/runs", "mine/runs/up")] == [0o755, 0o700, 0o700]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "below")


def test_narrow_says_whether_others_could_read(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.touch()
    path.chmod(0o644)
    assert narrow(path)
    assert mode(path) == 0o600
    assert not narrow(path)
    assert not narrow(tmp_path / "absent")
