"""Locks on files: one process has one, until it closes the file or ends."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import filelock
import pytest

from mdl.locks import take_lock, wait_for_lock


def test_a_lock_is_taken_once_until_its_file_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "a").open("ab") as first, (tmp_path / "a").open("ab") as second:
        take_lock(first)
        with pytest.raises(BlockingIOError, match="has locked it"):
            take_lock(second)
        first.close()
        take_lock(second)


def test_a_lock_is_waited_for_within_a_limit(tmp_path: Path) -> None:
    with (tmp_path / "a").open("ab") as first, (tmp_path / "a").open("ab") as second:
        take_lock(first)
        with pytest.raises(TimeoutError, match="another process of mdl has had its lock for 0 s"):
            wait_for_lock(second, 0.0)
        waiting = threading.Thread(target=wait_for_lock, args=(second,))
        waiting.start()
        first.close()
        waiting.join()
        with (tmp_path / "a").open("ab") as third, pytest.raises(BlockingIOError):
            take_lock(third)


def test_a_disk_without_locks_is_told_to_those_who_ask_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    with (tmp_path / "a").open("ab") as file:
        wait_for_lock(file)
        with pytest.raises(OSError, match="No locks"):
            take_lock(file)
