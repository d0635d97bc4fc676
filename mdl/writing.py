"""How mdl writes files: for this user alone, and whole or not at all.

A large one is written piece by piece, each on the disk before the next: a disk serves what is to be synced in turn, and
a device's promises must not wait for a whole model (200 MB take ten seconds of a memory card).

A model, a cache, a story or a run directory tells of its owner's data, a code opens their mesh. So what is made here
has mode 600 (folders 700) from the moment it exists: there is no time in which somebody else could open it. What was
there before with a wider mode is narrowed when it is written or used. Folders that the user had stay as they are.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
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
# Of one piece of a file: seconds of the disk, for which all else that is to be synced waits, and bytes. Longer ones
# would hold that up; with shorter ones a disk that takes long for the least would do little else.
_PIECE_S = 0.1, 0.2
_PIECE_BYTES = 2 << 20, 16 << 20


class _Waited(threading.local):
    """Seconds that each thread has waited for the disk."""

    seconds = 0.0


_waited = _Waited()


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Count what is done here as time of the disk; not within itself."""
    began = time.monotonic()
    try:
        yield
    finally:
        _waited.seconds += time.monotonic() - began


def disk_s() -> float:
    """Return for how long this thread has waited for its disk so far, to tell a disk that hangs from other pauses."""
    return _waited.seconds


def make_private_folder(path: Path) -> None:
    """The folder and those above it that are missing, each for this user alone. Raises OSError."""
    if path.is_dir():
        return
    make_private_folder(path.parent)
    try:
        path.mkdir(mode=_FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open to write ("wb", "ab", "xb", "r+b") in a folder that is there; from now on for this user alone."""
    file: IO[bytes] = open(path, mode, opener=_open_for_this_user)  # noqa: SIM115
    return file


def append_line(path: Path, line: bytes) -> None:
    """Add a line, without its end, to the end of a file, all of it or nothing. Raises OSError.

    It takes the place of a last line that is not whole: a power cut has torn that.
    """
    with on_disk(), open_private(path, "a+b") as file:
        before = _end_of_lines(file)
        try:
            file.truncate(before)
            file.write(line + b"\n")
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                file.close()  # it tries once more what it holds
            os.truncate(path, before)
            raise


def remove_leftovers(folder: Path) -> None:
    """What killed processes have half written there, as large as a model each. For a folder that is this process's."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if _HALF_WRITTEN.fullmatch(path.name):
                path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """A small file that is never half a file; raises MdlError if the disk refuses."""
    write_whole(path, lambda file: file.write(content))


def write_whole(path: Path, write: Callable[[BinaryIO], object], previous: Path | None = None) -> None:
    """Let `write` fill a new file, and put it in the place of `path` once it is on the disk.

    previous: the name that an existing file at `path` has afterwards. Raises MdlError if the disk refuses; `path` is as
    it was then.
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
        # "x": whatever is there, a link of somebody else's among it, is not written through.
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
    """Give a file a second name, so that it is under one of them whatever happens; a disk without links moves it."""
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
    """A file whose content is on the disk but for the last piece."""

    _piece = _left = _PIECE_BYTES[0]
    _took_s = 0.0

    def write(self, data: Any) -> int:
        """Of the data no more than there is left of the piece: whoever buffers goes on."""
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
    """Before hours of work: that a file can be written there. Raises StorageError if it cannot."""
    probe = path.with_name(f".{path.name}.{os.getpid()}.probe")
    try:
        write_bytes(probe, bytes(_PROBE_BYTES))
        probe.unlink(missing_ok=True)
    except StorageError as error:
        raise StorageError(path, error.cause) from None


def spare_place(path: Path, process: int | None = None) -> Path:
    """Where `save_or_rescue` of a process, of this one by default, puts what its disk refuses."""
    return Path(tempfile.gettempdir()) / f"mdl-{process or os.getpid()}-{path.name}"


def save_or_rescue(path: Path, save: Callable[[Path], None]) -> None:
    """Save what took long to compute; where the disk refuses by now, in a temporary directory.

    Raises MdlError that names both places; if neither takes it, what the first one said.
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
    """Take a file or folder of this user's away from everybody else; whether it was open to them.

    On a disk that knows no modes, or of another owner's file, it stays as it is.
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
    """Where the last whole line ends: usually the end."""
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
    # A file that is there already keeps its mode when it is opened. A terminal or /dev/null is nobody's to narrow.
    if os.name != "nt" and stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return descriptor


def sync_content(descriptor: int) -> None:
    """What was written there is on the disk once this is done, and can be found; when it was written may not be.

    So nothing waits for what else of the disk's journal is to be written, unless the file has grown. Raises OSError.
    """
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(descriptor)


def sync_directory(directory: Path) -> None:
    """A new file's name is on the disk, too, once this is done."""
    if os.name == "nt":
        return
    descriptor = open_descriptor(str(directory), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
