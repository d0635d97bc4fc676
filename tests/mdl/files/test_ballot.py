"""The ballot of a device on its disk: written in place, the newest whole one counts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from mdl.bounds import MAX_INCARNATION
from mdl.errors import MdlError
from mdl.files import ballot
from mdl.files.ballot import BallotFile
from mdl.protocol.vocabulary import MAX_REACHED, MAX_STARTS, Ballot, LineagePoint, doubted


def _ballot(term: int) -> Ballot:
    return Ballot(term, (LineagePoint("ann.1.7", term),))


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


def test_a_damaged_ballot_is_told_and_an_older_one_does_not_take_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever slot is hit: nobody can tell which one was the last."""
    path = tmp_path / "ballot"
    file = BallotFile(path)
    for term in (1, 2, 3):
        file.save(_full(term))
    whole, size = path.read_bytes(), ballot._SLOT_BYTES
    for at in (0, 17, 25, 60, size, size + 17, size + 25, size + 60):
        broken = bytearray(whole)
        broken[at] ^= 1
        path.write_bytes(broken)
        caplog.clear()
        found = BallotFile(path).begin()
        assert found in (doubted(_full(2)), doubted(_full(3)))
        assert "a part of its file is damaged" in caplog.text
    path.write_bytes(whole[:size])
    assert BallotFile(path).begin() == doubted(_full(2))
    for content in (b"", bytes(2 * size), b"x" * 100):
        path.write_bytes(content)
        caplog.clear()
        assert BallotFile(path).begin() is None
        assert "its file is damaged, and the last ballot of this device is lost" in caplog.text


def test_the_file_takes_its_room_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    """A disk that becomes full later has room for each further ballot."""
    path = tmp_path / "ballot"
    file = BallotFile(path)
    file.save(_ballot(1))
    size = path.stat().st_size
    reached = tuple(LineagePoint(f"{'p' * 64}.{number}.{2**40}", 2**31) for number in range(MAX_REACHED))
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


def _at_boot(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(ballot, "name_boot", lambda: name)


def _full(term: int) -> Ballot:
    return Ballot(term, (LineagePoint("ann.1.7", term),), "ann", (1, 2), "ann.1.7")


def test_a_ballot_is_relied_on_at_each_start_of_one_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves its writes to the kernel."""
    _at_boot(monkeypatch, "monday")
    assert BallotFile(tmp_path / "ballot").begin() is None
    for term in (1, 2):
        file = BallotFile(tmp_path / "ballot")
        file.begin()
        file.save(_full(term))
        assert BallotFile(tmp_path / "ballot").begin() == _full(term)


def test_after_a_power_cut_a_ballot_tells_what_was_promised_and_names_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk may have lost a later one. What it has says less, and stays so at the next start of this boot."""
    path = tmp_path / "ballot"
    _at_boot(monkeypatch, "monday")
    BallotFile(path).save(_full(5))
    for _ in range(2):
        _at_boot(monkeypatch, "tuesday")
        assert BallotFile(path).begin() == Ballot(5, (LineagePoint("ann.1.7", 5),))
    assert [record.getMessage() for record in caplog.records] == [
        "the last ballot of this device may be lost, since its machine has lost power or crashed: it takes part, "
        "and votes again once a round has its new work"
    ]


def test_a_device_that_was_ended_is_relied_on_after_a_reboot_until_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ballot"
    _at_boot(monkeypatch, "monday")
    file = BallotFile(path)
    file.end()  # nothing was promised
    assert not path.exists()
    file.save(_full(5))
    file.end()
    _at_boot(monkeypatch, "tuesday")
    assert BallotFile(path).begin() == _full(5)
    _at_boot(monkeypatch, "wednesday")  # on Tuesday it was not ended
    assert BallotFile(path).begin() == doubted(_full(5))


def test_a_file_that_was_put_back_is_not_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy, from a backup: no user sets the time at which a file was changed."""
    path = tmp_path / "ballot"
    _at_boot(monkeypatch, "monday")
    written = time.time() - 3600.0
    monkeypatch.setattr(ballot.time, "time", lambda: written)
    file = BallotFile(path)
    file.save(_full(5))
    file.end()
    os.utime(path, (written, written))
    assert BallotFile(path).begin() == doubted(_full(5))


def test_where_the_system_does_not_tell_its_boots_a_ballot_is_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = (("", "monday"), ("monday", ""), ("1700000000", "1700000002"), ("1700000000", "1700000099"))
    for number, (before, now) in enumerate(boots):
        path = tmp_path / f"ballot-{number}"
        _at_boot(monkeypatch, before)
        BallotFile(path).save(_full(5))
        _at_boot(monkeypatch, now)
        assert BallotFile(path).begin() == (_full(5) if number < 3 else doubted(_full(5)))


def test_a_ballot_of_an_older_version_is_read(tmp_path: Path) -> None:
    path, slots = tmp_path / "ballot", []
    for number in (2, 3):
        content = msgspec.json.encode({"number": number, "ballot": _full(number + 2)})
        slot = ballot._checksum(content) + len(content).to_bytes(4, "little") + content
        slots.append(slot.ljust(ballot._SLOT_BYTES, b"\0"))
    path.write_bytes(b"".join(slots))
    assert BallotFile(path).begin() == _full(5)


def test_a_boot_has_one_name() -> None:
    assert ballot.name_boot() == ballot.name_boot() != ""


def test_a_boot_without_a_name_is_told_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballot, "_BOOT_ID", tmp_path / "boot_id")
    monkeypatch.setattr(ballot, "_ask_sysctl", lambda: "")
    assert abs(float(ballot.name_boot()) - psutil.boot_time()) <= 1.0
    monkeypatch.setattr(ballot.psutil, "boot_time", lambda: (_ for _ in ()).throw(PermissionError))
    assert ballot.name_boot() == ""
