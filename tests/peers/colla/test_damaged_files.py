"""Files of a cloud that are damaged on the disk: it goes on from the version before, and serves nothing wrong."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mdl.errors import DamagedError
from mdl.peers.colla.files import CloudFiles
from mdl.peers.colla.model.classroom import BASE, Cycle, TeacherPair
from mdl.peers.colla.model.model_kinds import RecurrentKind
from mdl.protocol.cloud_messages import UpdateMessage
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import CycleTaught, StoreUpdate, TeachCycle
from mdl.protocol.vocabulary import Packed

KIND = RecurrentKind(("home", "work"), "1-1", "1-2")


class _Classroom:
    """What it teaches follows from the version alone."""

    without_groups = ""

    def bootstrap(self, _: object) -> TeacherPair:
        return TeacherPair(KIND.build_large(1), KIND.build_small(1))

    def teach(self, version: int, *_: object) -> Cycle:
        taught = TeacherPair(KIND.build_large(version), KIND.build_small(version))
        return Cycle({BASE: taught, 0: taught}, {"ann": 0}, {}, {"ann": 0.5}, ())


def _open(folder: Path) -> CloudFiles:
    classroom: Any = _Classroom()
    return CloudFiles(folder, KIND, classroom, 0)


def _taught(folder: Path) -> CycleTaught:
    found = _open(folder).state().taught
    assert found is not None
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cloud at version 3."""
    folder = tmp_path_factory.mktemp("made") / "cloud"
    files = _open(folder)
    files.state()
    for version in (1, 2, 3):
        files.teach(TeachCycle(version))
    return folder


@pytest.fixture
def cloud(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "cloud")
    return tmp_path / "cloud"


def _damages(content: bytes, many: int) -> Iterator[bytes]:
    """Flipped bits, a torn end, zeros."""
    for at in np.linspace(0, len(content) - 1, many).astype(int):
        broken = bytearray(content)
        broken[at] ^= 0x10
        yield bytes(broken)
    yield from (b"", content[:10], content[:-1], bytes(len(content)), content[: len(content) // 2] + bytes(9))


def _flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _lessons(version: int) -> list[bytes]:
    return [KIND.pack(build(version)) for build in (KIND.build_small, KIND.build_large)]


def _serves(taught: CycleTaught) -> int:
    """The version whose lessons these are, to the last bit."""
    for version in (1, 2, 3):
        small, large = _lessons(version)
        if all(lesson == small for lesson in taught.lessons.values()):
            assert all(large in bytes(pair) and small in bytes(pair) for pair in taught.pairs.values())
            return version
    raise AssertionError("a lesson that was never taught")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cloud.json", *(f"lessons/00003/{part}" for part in ("large-base.safetensors", "small-0.safetensors"))]
)
def test_a_damaged_file_of_the_newest_version_costs_at_most_that_version(
    name: str, cloud: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = (cloud / name).read_bytes()
    went_back = 0
    for number, damage in enumerate([None, *_damages(content, 40)]):
        here = tmp_path / f"try{number}"
        shutil.copytree(cloud, here)
        if damage is None:
            (here / name).unlink()
        else:
            (here / name).write_bytes(damage)
        caplog.clear()
        taught = _taught(here)
        served = _serves(taught)
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        if name == "cloud.json":
            assert (served, taught.version, taught.groups) == (3, 3, {"ann": 0})
        elif served == 2:
            # Devices have seen another lesson 3: this one is 4.
            assert taught.version == 4
            assert "is taught as version 4" in warned[0]
            went_back += 1
        assert len(warned) == (served == 2) or (name == "cloud.json" and len(warned) <= 1)
        assert _taught(here).version == taught.version, "it is told once"
        assert _open(here).teach(TeachCycle(taught.version + 1)).version == taught.version + 1
    assert went_back >= 40 or name == "cloud.json"


def test_without_a_whole_version_the_way_out_is_named(cloud: Path) -> None:
    for path in cloud.glob("lessons/*/large-base.safetensors"):
        _flip(path)
    with pytest.raises(DamagedError, match=r"large-base.safetensors has changed .* give --fresh, which sets"):
        _taught(cloud)
    for path in (cloud / "cloud.json", *cloud.glob("lessons/*/cloud.json")):
        path.write_bytes(b"{")
    with pytest.raises(DamagedError, match=r"cloud.json: .*put a copy of it back, or give --fresh"):
        _open(cloud)


def test_a_cycle_goes_on_from_the_version_before_if_the_disk_fails_meanwhile(
    cloud: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = _open(cloud)
    files.state()
    (cloud / "lessons" / "00003" / "large-base.safetensors").write_bytes(b"")
    assert files.teach(TeachCycle(4)).version == 4
    assert "going on from the version before it" in caplog.text


def test_an_update_of_a_damaged_version_is_asked_for_again(cloud: Path) -> None:
    files = _open(cloud)
    pulled, made = KIND.build_small(2), KIND.build_small(9)
    packed = Packed(KIND.encode_update(made, pulled))
    update = UpdateMessage("ann", KIND.schema_hash, 1, digest_of(packed), 2, BASE)
    effect = StoreUpdate(Contributor("ann", 1), update, packed)
    assert files.store(effect).problem == ""
    path = cloud / "lessons" / "00002" / "small-base.safetensors"
    _flip(path)
    stored = files.store(effect)
    assert (stored.pull_again, stored.problem) == (True, "version 2 is damaged here")


def test_a_damaged_pupil_does_not_teach(cloud: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = _open(cloud)
    packed = Packed(KIND.encode_update(KIND.build_small(9), KIND.build_small(3)))
    update = UpdateMessage("ann", KIND.schema_hash, 1, digest_of(packed), 3, BASE)
    assert not files.store(StoreUpdate(Contributor("ann", 1), update, packed)).problem
    path = cloud / "pupils" / "ann.safetensors"
    _flip(path)
    assert _open(cloud).state().stored == {}
    assert "ann.safetensors has changed since it was written" in caplog.text


def test_a_cloud_of_an_older_version_goes_on_and_is_sealed_from_then_on(cloud: Path) -> None:
    old = _open(cloud).catalogue
    for path in cloud.glob("lessons/*/cloud.json"):
        path.unlink()
    (cloud / "cloud.json").write_bytes(msgspec.json.encode(old))
    assert _taught(cloud).version == 3
    (cloud / "cloud.json").write_bytes(b"\0")
    assert _taught(cloud).version == 3
