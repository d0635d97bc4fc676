"""What a device has promised, on its disk: read again at its next start, so that it never promises otherwise.

Two slots of fixed size are written in turn, in place: a torn write leaves the other one, and on a disk that has become
full since the file has its room already. Small, since it is synced before any message tells of it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from mdl.errors import MdlError
from mdl.protocol.vocabulary import Ballot
from mdl.writing import open_private, sync_content, sync_directory

# The file's name in a device's folder.
BALLOT = "ballot"
# One slot: a ballot of as many lineages as a device knows, each with a fork's name of usual length.
_SLOT_BYTES = 64 * 1024
_SLOTS = 2
_CHECKSUM_BYTES = 16


class _Entry(msgspec.Struct, frozen=True):
    """One write. number: grows by one with each, so that the newest is known."""

    number: int
    ballot: Ballot


class BallotFile:
    """The ballot of one device in one mesh. Every method raises MdlError if the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0

    def load(self) -> Ballot | None:
        """What was written last; None if nothing is known."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MdlError(f"cannot read {self.path}: {error.strerror or error}") from error
        slots = (content[start : start + _SLOT_BYTES] for start in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
        entries = [entry for slot in slots if (entry := _read_slot(slot)) is not None]
        newest = max(entries, key=lambda entry: entry.number, default=None)
        if newest is None:
            return None
        self._number = newest.number
        return newest.ballot

    def save(self, ballot: Ballot) -> None:
        """Write and sync, in place of the older of the two slots."""
        self._number += 1
        content = msgspec.json.encode(_Entry(self._number, ballot))
        slot = _checksum(content) + len(content).to_bytes(4, "little") + content
        if len(slot) > _SLOT_BYTES:
            raise MdlError(f"cannot save {self.path}: a ballot of {len(content)} bytes, at most {_SLOT_BYTES}")
        try:
            self._write(slot, self._number % _SLOTS * _SLOT_BYTES)
        except OSError as error:
            raise MdlError(f"cannot save {self.path}: {error.strerror or error}") from error

    def _write(self, slot: bytes, offset: int) -> None:
        is_new = not self.path.exists()
        with open_private(self.path, "xb" if is_new else "r+b") as file:
            if is_new:
                file.write(bytes(_SLOTS * _SLOT_BYTES))  # its room is taken while there is some
            file.seek(offset)
            file.write(slot)
            file.flush()
            sync_content(file.fileno())
        if is_new:
            sync_directory(self.path.parent)


def _read_slot(slot: bytes) -> _Entry | None:
    head = _CHECKSUM_BYTES + 4
    size = int.from_bytes(slot[_CHECKSUM_BYTES:head], "little")
    content = slot[head : head + size]
    if not content or slot[:_CHECKSUM_BYTES] != _checksum(content):
        return None
    try:
        return msgspec.json.decode(content, type=_Entry)
    except msgspec.DecodeError:
        return None


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).digest()
