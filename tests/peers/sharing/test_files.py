"""What lies on the disks of devices that share: written down before it is offered, checked before it counts."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mdl.data import take_windows
from mdl.data.parcel import deal_windows, read_parcel, shared_file, shared_home, write_parcel
from mdl.data.readers.motion import MotionOptions, make_motion
from mdl.errors import DataError
from mdl.peers.sharing import GivenFiles, TakenFiles, delete_shared, measure_speed, read_shares, read_taken
from mdl.protocol.machine import CutWindows, DeleteShared, ForgetShare, ReadPart, StorePart
from mdl.protocol.sharing_messages import PART_BYTES, Offer, WindowsOffered
from mdl.protocol.vocabulary import Packed
from mdl.transport.trust.keys import fingerprint

DATA = make_motion(MotionOptions(people=8, test_people=2, windows=150), 0)
OWN = "able-acid-acorn-actor-adult"
WATCH, TABLET = b"w" * 32, b"t" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return shared_home("home")


def given(own: float = 100.0) -> GivenFiles:
    return GivenFiles("home", DATA, Offer(own), OWN, {WATCH: "watch"})


def test_shares_are_cut_by_the_offers_and_written_down_before_anything_is_offered(home: Path) -> None:
    files = given()
    made = files.cut(CutWindows(((TABLET, Offer(0.0)), (WATCH, Offer(300.0)))))
    ((device, parcel),) = made.parcels
    assert (device, parcel.train, files.kept) == (WATCH, 900, 300)
    (share,) = read_shares("home")
    assert (share.name, share.device, share.train, share.is_ended) == ("watch", WATCH.hex(), 900, False)
    (path,) = home.glob("for-*")
    assert path.name == f"for-{fingerprint(WATCH)}.npz"
    assert (parcel.size_bytes, parcel.digest) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).digest())
    assert len(read_parcel(shared_file("home", OWN)).train) == 300
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in home.iterdir())
    parts = [files.read(ReadPart("watch", parcel.sharing_id, number)) for number in (0, 1)]
    assert b"".join(part.content for part in parts) == path.read_bytes()[: 2 * PART_BYTES]
    files.forget(ForgetShare(parcel.sharing_id))
    assert read_shares("home") == []
    files.close()
    assert not list(home.glob("for-*"))


def test_too_few_test_windows_are_told_before_anything_is_written(home: Path) -> None:
    few, data = Offer(1.0), replace(DATA, test=take_windows(DATA.test, np.arange(2)))
    files = GivenFiles("home", data, few, OWN, {})
    with pytest.raises(DataError, match="2 test windows are too few for 4 devices"):
        files.cut(CutWindows(tuple((bytes([number]) * 32, few) for number in (1, 2, 3))))
    assert read_shares("home") == []


def parcel(home: Path) -> tuple[bytes, WindowsOffered]:
    path = home / "for-x.npz"
    train, test = deal_windows(DATA, [1100, 100], 0)[0]
    write_parcel(path, DATA, train, test)
    content = path.read_bytes()
    path.unlink()
    digest = hashlib.sha256(content).digest()
    return content, WindowsOffered(b"1" * 16, len(content), digest, len(train), len(test))


def store(files: TakenFiles, content: bytes, offered: WindowsOffered) -> list[bool]:
    cut = [Packed(content[at : at + PART_BYTES]) for at in range(0, len(content), PART_BYTES)]
    return [files.store(StorePart(offered, number, part)).is_whole for number, part in enumerate(cut)]


def test_parts_become_windows_when_all_are_there(home: Path) -> None:
    files, (content, offered) = TakenFiles("home", OWN, lambda: b"p" * 32), parcel(home)
    assert files.held() == b""
    assert store(files, content, offered) == [False, True]
    assert len(read_parcel(files.path).train) == 1100
    taken = read_taken(files.path)
    assert taken is not None
    assert (files.held(), taken.source) == (offered.sharing_id, (b"p" * 32).hex())
    assert sorted(path.suffix for path in home.iterdir()) == [".json", ".npz"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in home.iterdir())


@pytest.mark.parametrize("wrong", ["digest", "train", "content"])
def test_what_is_not_what_was_announced_is_deleted(home: Path, wrong: str) -> None:
    files, (content, offered) = TakenFiles("home", OWN, lambda: b"p" * 32), parcel(home)
    if wrong == "content":
        content = bytes(len(content))
        offered = msgspec.structs.replace(offered, digest=hashlib.sha256(content).digest())
    else:
        changed = {"digest": b"x" * 32, "train": 7}[wrong]
        offered = msgspec.structs.replace(offered, **{wrong: changed})
    with pytest.raises(DataError):
        store(files, content, offered)
    assert list(home.iterdir()) == []


def test_all_of_a_sharing_is_deleted_also_what_came_in_part(home: Path) -> None:
    files, (content, offered) = TakenFiles("home", OWN, lambda: b"p" * 32), parcel(home)
    store(files, content, offered)
    store(files, content[:PART_BYTES], offered)
    other = shared_file("home", "able-able-able-able-able")
    other.write_bytes(b"of another device")
    files.delete(DeleteShared("asked"))
    assert list(home.iterdir()) == [other]
    assert delete_shared("home") == 1


def test_speed_is_windows_by_the_clock() -> None:
    ticks = iter(range(100))
    assert measure_speed(lambda: 0.2 * next(ticks)) == pytest.approx(2 * 64 / 0.6)
