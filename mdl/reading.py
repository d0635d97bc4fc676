"""Safe reading of files that anybody may have made: regular files alone, never more than expected, never a traceback.

A file that was given to mdl may be a pipe without a writer, a device without an end, gigabytes of one line, or JSON a
hundred thousand brackets deep. All of mdl opens such files here; `DataError` names the file and what was expected.

`Tally` counts the rows that a reader of data read or left out, by reason: one line at its end, with samples.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from mdl.bounds import printable
from mdl.descriptors import open_descriptor
from mdl.errors import DataError

_Kind = TypeVar("_Kind")
# Length of a reason that quotes the file: more is no help, and may be megabytes.
_LONGEST_REASON = 300
_PIECE_BYTES = 1 << 16
# Our configurations have 2 KB, and no line of 100 characters. tomllib takes half a minute for a key of 20,000 dots.
LARGEST_TOML_BYTES, LONGEST_TOML_LINE = 64 << 10, 4096
# A file of sysfs tells the size of a page of memory, which has at most 64 KiB.
_LARGEST_SYSTEM_BYTES = 64 << 10
_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_regular(path: Path, expected: str = "") -> BinaryIO:
    """Open a file's bytes. expected: named in the error. Raises DataError for a pipe, device or folder."""
    try:
        # Check before opening: opening a pipe waits for its writer, and opening a device may have effects.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "special file")
            raise DataError(f"{path}: it is a {kind}, not a file{_tell(expected)}")
        return open(path, "rb", opener=open_descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{path}: {reason}{_tell(expected)}") from None


def read_bytes(path: Path, largest: int, expected: str = "") -> bytes:
    """Read a whole file of at most `largest` bytes. Raises DataError naming it, its size and `expected`."""
    with open_regular(path, expected) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            # A small file needs no buffer of the largest size; one that grows, or tells no size, comes piece by piece.
            content = file.read(size + 1) if size <= largest else b""
            while len(content) <= largest and size <= largest and (piece := file.read(_PIECE_BYTES)):
                content += piece
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}{_tell(expected)}") from None
    if size > largest or len(content) > largest:
        raise DataError(f"{path}: {size} bytes; at most {largest} are read{_tell(expected)}")
    return content


def read_text(path: Path, largest: int, expected: str = "") -> str:
    """Read a file like `read_bytes`, as UTF-8 text. Raises DataError likewise, also for other bytes."""
    try:
        return read_bytes(path, largest, expected).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is no UTF-8 text{_tell(expected)}") from None


def read_system_line(path: Path) -> str:
    """Read the line in a file of /sys or /proc; "" if there is none, or the driver does not tell."""
    try:
        return read_bytes(path, _LARGEST_SYSTEM_BYTES).decode("utf-8", "replace").strip()
    except DataError:
        return ""


def read_lines(path: Path, largest: int, expected: str = "") -> Iterator[tuple[int, bytes]]:
    """Yield number (from 1) and bytes of each line that is not empty."""
    for number, line in enumerate(read_bytes(path, largest, expected).split(b"\n"), 1):
        if line.strip():
            yield number, line


def decode_json(content: bytes | str, kind: type[_Kind], where: str, expected: str = "") -> _Kind:
    """Decode JSON as `kind`. Raises DataError naming `where` and why: also for depth, and numbers of 5,000 digits."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise DataError(f"{where}: nested too deep{_tell(expected)}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise DataError(f"{where}: {shorten(error)}{_tell(expected)}") from None


def decode_toml(text: str, where: str) -> dict[str, Any]:
    """Decode TOML of mdl. Raises DataError likewise, also for a line that is too long."""
    if any(len(line) > LONGEST_TOML_LINE for line in text.splitlines()):
        raise DataError(f"{where}: a line of more than {LONGEST_TOML_LINE} characters")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DataError(f"{where}: nested too deep") from None
    except ValueError as error:  # a TOML error, or a number of more digits than Python reads
        raise DataError(f"{where}: {shorten(error)}") from None


def shorten(reason: Any) -> str:
    """Return an error's text in one printable line of bounded length: it may quote the very bytes that were wrong."""
    return printable(" ".join(str(reason)[: 4 * _LONGEST_REASON].split()), _LONGEST_REASON)


def _tell(expected: str) -> str:
    return f"; expected {expected}" if expected else ""


# Samples kept for each reason.
_SAMPLES = 3


class Tally:
    """Counts rows, or the things that `what` names in the plural."""

    def __init__(self, what: str = "rows") -> None:
        self._what = what
        self._seen = 0
        self._left: Counter[str] = Counter()
        self._samples: dict[str, list[str]] = {}

    def see(self, count: int = 1) -> None:
        """Count all things there, used or left out."""
        self._seen += count

    def leave(self, why: str, count: int = 1, sample: str = "") -> None:
        """Count things that are left out. sample: the place of one, and its content."""
        self._left[why] += count
        kept = self._samples.setdefault(why, [])
        if sample and len(kept) < _SAMPLES:
            kept.append(shorten(sample))

    def wants(self, why: str) -> bool:
        """Return True if there is room for another sample of a reason."""
        return len(self._samples.get(why, ())) < _SAMPLES

    def line(self) -> str:
        """Return "read 20 rows, left out 3: 2 without a label, 1 cut off"."""
        left = {why: count for why, count in self._left.items() if count}
        gone = sum(left.values())
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(left.items(), key=lambda each: -each[1]))
        told = f"{gone:,}: {reasons}" if gone else "none"
        return f"read {max(0, self._seen - gone):,} {self._what}, left out {told}"

    def samples(self) -> tuple[str, ...]:
        """Return a line for each kept sample: the reason, then its place."""
        return tuple(f"{why}: {sample}" for why, kept in self._samples.items() for sample in kept)
