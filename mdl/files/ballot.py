"""A device's promises on its disk: read again at its next start, so that it never promises otherwise.

After a power cut or from a backup the file may not be the last one that the device wrote; its next start then relies on
less of it (`mdl.protocol.vocabulary`). Two slots of fixed size are written in turn, in place. A torn write leaves the
other one, and on a disk that has become full the file has its room already. The file is small, since it is synced
before any message tells of it. A damaged slot may have held the last ballot, and the older one does not take its place:
the device then relies on less, too. Each ballot names the start of the machine that wrote it (`name_boot`): the writes
of one start are still there, unless the disk has failed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from mdl.descriptors import open_descriptor
from mdl.errors import MdlError
from mdl.protocol.vocabulary import Ballot, KeptBallot, doubted
from mdl.writing import on_disk, open_private, sync_content, sync_directory

logger = logging.getLogger(__name__)

# The file's name in a device's folder.
BALLOT = "ballot"
# One slot: a ballot of as many lineages as a device knows, each with a fork's name of usual length.
_SLOT_BYTES = 64 * 1024
_SLOTS = 2
_CHECKSUM_BYTES = 16
# Linux makes a new random one at each start of the kernel; a container has its host's.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LONGEST = 100
_ANSWERS_S = 2.0


class BallotFile:
    """The ballot of one device in one mesh. Every method raises MdlError if the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._damage = ""  # the damage of the file, for people
        self._boot = name_boot()

    def begin(self) -> Ballot | None:
        """Return the part of the last ballot that a new process may rely on; None if nothing is known.

        From now on the file says that a process of this boot has begun: this reading is for one process alone.
        """
        kept = self._read()
        if kept is None:
            if self._damage:
                logger.warning(
                    "%s: %s, and the last ballot of this device is lost: it takes part, and votes again once a round "
                    "has its new work",
                    self.path,
                    self._damage,
                )
            return None
        ballot, why = kept.ballot, self._damage or kept.why_doubted(self._boot, self._changed_s())
        if why:
            logger.warning(
                "the last ballot of this device may be lost, since %s: it takes part, and votes again once a round "
                "has its new work",
                why,
            )
            ballot = doubted(ballot)
        self.save(ballot)
        return ballot

    def load(self) -> Ballot | None:
        """Return the ballot that was written last; None if nothing is known."""
        kept = self._read()
        return None if kept is None else kept.ballot

    def save(self, ballot: Ballot, is_last: bool = False) -> None:
        """Write and sync, in place of the older of the two slots. is_last: this process promises nothing more."""
        self._number += 1
        content = msgspec.json.encode(KeptBallot(self._number, ballot, self._boot, is_last, time.time()))
        slot = _checksum(content) + len(content).to_bytes(4, "little") + content
        if len(slot) > _SLOT_BYTES:
            raise MdlError(f"cannot save {self.path}: a ballot of {len(content)} bytes, at most {_SLOT_BYTES}")
        try:
            with on_disk():
                self._write(slot, self._number % _SLOTS * _SLOT_BYTES)
        except OSError as error:
            raise MdlError(f"cannot save {self.path}: {error.strerror or error}") from error

    def end(self) -> None:
        """Mark the ballot that was written last as this process's last word; only log a warning if the disk refuses."""
        try:
            if (ballot := self.load()) is not None:
                self.save(ballot, is_last=True)
        except MdlError as error:
            logger.warning("after a power cut this device will have no vote for a round: %s", error)

    def _read(self) -> KeptBallot | None:
        try:
            with open(self.path, "rb", opener=open_descriptor) as file:
                content = file.read(_SLOTS * _SLOT_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MdlError(f"cannot read {self.path}: {error.strerror or error}") from error
        slots = [content[start : start + _SLOT_BYTES] for start in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES)]
        entries = {at: entry for at, slot in enumerate(slots) if (entry := _read_slot(slot)) is not None}
        newest = max(entries.values(), key=lambda entry: entry.number, default=None)
        if newest is None:
            self._damage = "its file is damaged"
            return None
        self._number = newest.number
        # The other slot holds the ballot before, or nothing yet. Anything else may have been a later ballot.
        other = slots[(newest.number + 1) % _SLOTS]
        is_first = newest.number == 1 and not other.strip(b"\0")
        self._damage = "" if len(entries) == _SLOTS or is_first else "a part of its file is damaged"
        return newest

    def _changed_s(self) -> float:
        """Return the time of the file's last change; 0.0 where the system does not tell, or lets users set it."""
        return 0.0 if os.name == "nt" else self.path.stat().st_ctime

    def _write(self, slot: bytes, offset: int) -> None:
        is_new = not self.path.exists()
        with open_private(self.path, "xb" if is_new else "r+b") as file:
            if is_new:
                file.write(bytes(_SLOTS * _SLOT_BYTES))  # take the room while there is some
            file.seek(offset)
            file.write(slot)
            file.flush()
            sync_content(file.fileno())
        if is_new:
            sync_directory(self.path.parent)


def _read_slot(slot: bytes) -> KeptBallot | None:
    head = _CHECKSUM_BYTES + 4
    size = int.from_bytes(slot[_CHECKSUM_BYTES:head], "little")
    content = slot[head : head + size]
    if not content or slot[:_CHECKSUM_BYTES] != _checksum(content):
        return None
    try:
        return msgspec.json.decode(content, type=KeptBallot)
    except msgspec.DecodeError:
        return None


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).digest()


def name_boot() -> str:
    """Return the name of this start of the machine, its time in seconds where it has no name, or "" if unknown."""
    try:
        return _BOOT_ID.read_text("ascii").strip()[:_LONGEST]
    except (OSError, ValueError):
        pass
    if sys.platform == "darwin" and (name := _ask_sysctl()):
        return name
    try:
        return f"{psutil.boot_time():.0f}"
    except (OSError, RuntimeError, psutil.Error):
        return ""


def _ask_sysctl() -> str:
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()[:_LONGEST]
