"""The ballot of a device on its disk: written in place, the newest whole one counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mdl.bounds import MAX_INCARNATION
from mdl.errors import MdlError
from mdl.files import ballot
from mdl.files.ballot import BallotFile
from mdl.protocol.vocabulary import MAX_REACHED, MAX_STARTS, Ballot, Reached


def _ballot(term: int) -> Ballot:
    return Ballot(term, (Reached("ann.1.7", term),))


def test_the_last_ballot_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "ballot"
    assert BallotFile(path).load() is None
    file = BallotFile(path)
    for term in range(1, 6):
        file.save(_ballot(term))
        assert BallotFile(path).load() == _ballot(term)
    again = BallotFile(path)
    again.load()
    again.save(_ballot(9))
    assert BallotFile(path).load() == _ballot(9)


def test_a_ballot_is_on_the_disk_once_it_is_saved_and_so_is_its_files_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "ballot", []
    monkeypatch.setattr(ballot, "sync_content", lambda descriptor: synced.append(BallotFile(path).load()))
    monkeypatch.setattr(ballot, "sync_directory", synced.append)
    file = BallotFile(path)
    for term in (1, 2):
        file.save(_ballot(term))
    assert synced == [_ballot(1), tmp_path, _ballot(2)]


@pytest.mark.parametrize("kept", [0, 1, 20, 30])
def test_a_torn_write_leaves_the_one_before(tmp_path: Path, kept: int) -> None:
    """However much of the newest slot has reached the disk."""
    path = tmp_path / "ballot"
    file = BallotFile(path)
    file.save(_ballot(1))
    before = path.read_bytes()
    file.save(_ballot(2))
    after = bytearray(path.read_bytes())
    start = next(place for place in range(len(before)) if before[place] != after[place])
    after[start + kept : start + 4096] = before[start + kept : start + 4096]
    path.write_bytes(after)
    assert BallotFile(path).load() == _ballot(1)


def test_garbage_is_no_ballot(tmp_path: Path) -> None:
    path = tmp_path / "ballot"
    for content in (b"", b"x" * 100, bytes(200_000)):
        path.write_bytes(content)
        assert BallotFile(path).load() is None


def test_the_file_takes_its_room_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    """A disk that becomes full later has room for each further ballot."""
    path = tmp_path / "ballot"
    file = BallotFile(path)
    file.save(_ballot(1))
    size = path.stat().st_size
    reached = tuple(Reached(f"{'p' * 64}.{number}.{2**40}", 2**31) for number in range(MAX_REACHED))
    most = Ballot(2**40, reached, starts=(MAX_INCARNATION,) * MAX_STARTS)
    file.save(most)
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (size, 0o600)
    assert BallotFile(path).load() == most


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MdlError, match=r"cannot save .*ballot: "):
        BallotFile(tmp_path / "file" / "ballot").save(_ballot(1))
    os.mkdir(tmp_path / "ballot")
    with pytest.raises(MdlError, match=r"cannot read .*ballot: "):
        BallotFile(tmp_path / "ballot").load()
