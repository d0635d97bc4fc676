"""Safe writing of files: for this user alone, and whole or not at all.

A large file is written in pieces, each synced before the next. A disk syncs in turn, and a device's promises must not
wait for a whole model (200 MB take ten seconds of a memory card).

A model, a cache, a story or a run directory tells of its owner's data; a code opens their mesh. So new files have mode
600 (folders 700) from the moment they exist: no other user can open them at any time. A file that was there before with
a wider mode is narrowed when it is written or used. Folders that the user had stay as they are.

`Calm` is a handler of log lines that a full disk does not disturb.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from mdl.descriptors import open_descriptor
from mdl.errors import MdlError, StorageError

_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_OTHERS = 0o077
_HALF_WRITTEN = re.compile(r"\..+\.\d+\.part")
# A policy has 100 KB, a description far less.
_PROBE_BYTES = 128 << 10
# Disk time (s) and size (bytes) of one piece of a file; everything else to be synced waits for one piece. Longer pieces
# would hold that up; shorter ones would keep a slow disk busy with little else.
_PIECE_S = 0.1, 0.2
_PIECE_BYTES = 2 << 20, 16 << 20


class _Waited(threading.local):
    """Seconds that each thread has waited for the disk."""

    seconds = 0.0


_waited = _Waited()


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Count the time spent within as time of the disk; do not nest it."""
    began = time.monotonic()
    try:
        yield
    finally:
        _waited.seconds += time.monotonic() - began


def disk_s() -> float:
    """Return this thread's seconds of waiting for its disk so far, to tell a disk that hangs from other pauses."""
    return _waited.seconds


def make_private_folder(path: Path) -> None:
    """Make the folder and its missing parents, each for this user alone. Raises OSError."""
    if path.is_dir():
        return
    make_private_folder(path.parent)
    try:
        path.mkdir(mode=_FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open to write ("wb", "ab", "xb", "r+b") in an existing folder; from now on for this user alone."""
    file: IO[bytes] = open(path, mode, opener=_open_for_this_user)  # noqa: SIM115
    return file


def append_line(path: Path, line: bytes) -> None:
    """Add a line, without its end, to the end of a file, all of it or nothing. Raises OSError.

    It replaces an incomplete last line, which a power cut has torn.
    """
    with on_disk(), open_private(path, "a+b") as file:
        before = _end_of_lines(file)
        try:
            file.truncate(before)
            file.write(line + b"\n")
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                file.close()  # close tries once more to write its buffer
            os.truncate(path, before)
            raise


def remove_leftovers(folder: Path) -> None:
    """Remove half-written files of killed processes, each as large as a model. The folder must be this process's."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if _HALF_WRITTEN.fullmatch(path.name):
                path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file that is never half a file; raises MdlError if the disk refuses."""
    write_whole(path, lambda file: file.write(content))


def write_whole(path: Path, write: Callable[[BinaryIO], object], previous: Path | None = None) -> None:
    """Let `write` fill a new file, and put it in the place of `path` once it is on the disk.

    previous: the new name of an existing file at `path`. Raises MdlError if the disk refuses; `path` is then as before.
    """
    try:
        with on_disk():
            _write_whole(path, write, previous)
    except OSError as error:
        raise StorageError(path, error) from error


def _write_whole(path: Path, write: Callable[[BinaryIO], object], previous: Path | None) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    make_private_folder(path.parent)
    temporary.unlink(missing_ok=True)
    try:
        # "x": an existing file, such as somebody else's link, is not written through.
        with io.BufferedWriter(_PacedFile(str(temporary), "xb", opener=_open_for_this_user)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _name_also(path, previous)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _name_also(path: Path, previous: Path) -> None:
    """Give a file a second name, so that it keeps one of them whatever happens; a disk without links moves it."""
    aside = previous.with_name(f".{previous.name}.{os.getpid()}.part")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:
        path.replace(previous)
        return
    aside.replace(previous)
    aside.unlink(missing_ok=True)  # both were names of one file already: nothing was moved


class _PacedFile(io.FileIO):
    """A file that syncs its content piece by piece: all but the last piece is on the disk."""

    _piece = _left = _PIECE_BYTES[0]
    _took_s = 0.0

    def write(self, data: Any) -> int:
        """Write no more of the data than is left of the piece; the buffered writer above calls again for the rest."""
        begun = time.monotonic()
        written = super().write(memoryview(data)[: self._left])
        self._left -= written
        if self._left == 0:
            sync_content(self.fileno())
        self._took_s += time.monotonic() - begun
        if self._left == 0:
            (least_s, most_s), (least, most) = _PIECE_S, _PIECE_BYTES
            if self._took_s < least_s:
                self._piece = min(2 * self._piece, most)
            elif self._took_s > most_s:
                self._piece = max(self._piece // 2, least)
            self._left, self._took_s = self._piece, 0.0
        return written


def check_writable(path: Path) -> None:
    """Check before hours of work that a file can be written there. Raises StorageError if it cannot."""
    probe = path.with_name(f".{path.name}.{os.getpid()}.probe")
    try:
        write_bytes(probe, bytes(_PROBE_BYTES))
        probe.unlink(missing_ok=True)
    except StorageError as error:
        raise StorageError(path, error.cause) from None


def spare_place(path: Path, process: int | None = None) -> Path:
    """Return the path that `save_or_rescue` uses if the disk refuses. process: its id; None: this process."""
    return Path(tempfile.gettempdir()) / f"mdl-{process or os.getpid()}-{path.name}"


def save_or_rescue(path: Path, save: Callable[[Path], None]) -> None:
    """Save a result that took long to compute; where the disk now refuses, save it in a temporary directory.

    Raises MdlError that names both places; if both refuse, the first error.
    """
    try:
        save(path)
    except MdlError as error:
        spare = spare_place(path)
        try:
            save(spare)
        except MdlError:
            raise error from None
        raise MdlError(f"{error}; it is in {spare} instead") from None


def narrow(path: Path) -> bool:
    """Deny all other users a file or folder of this user's; return True if it was open to them and is not now.

    On a disk without modes, and for another owner's file, it stays as it is.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "nt" or not mode & _OTHERS:
            return False
        path.chmod(mode & ~_OTHERS)
        return not path.stat().st_mode & _OTHERS
    except OSError:
        return False


def _end_of_lines(file: IO[bytes]) -> int:
    """Return the place where the last whole line ends: usually the end."""
    start = end = file.seek(0, os.SEEK_END)
    size = 1
    while start:
        start = file.seek(max(0, end - size))
        if (newline := file.read().rfind(b"\n")) >= 0:
            return start + newline + 1
        size *= 64
    return 0


def _open_for_this_user(path: str, flags: int) -> int:
    descriptor = open_descriptor(path, flags, _FILE_MODE)
    found = os.fstat(descriptor)
    # An existing file keeps its mode when it is opened. A terminal or /dev/null is not narrowed.
    if os.name != "nt" and stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return descriptor


def sync_content(descriptor: int) -> None:
    """Sync the content of a file, so that it is on the disk and can be found; its times may not be.

    Nothing waits for other writes of the disk's journal, unless the file has grown. Raises OSError.
    """
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(descriptor)


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that a new file's name is on the disk, too."""
    if os.name == "nt":
        return
    descriptor = open_descriptor(str(directory), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Calm(logging.Handler):
    """Drops a line that the system refuses: a complaint about each would fill a full disk further."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
