"""Files that mdl keeps from one start to the next: each has its checksum, and the version before it beside it.

The checksum is BLAKE3 of the whole file, with the checksum's own 64 digits as zeros. Its place keeps the file readable
for other programs: in the metadata of safetensors (`mdl/files/checkpoint.py`), as the last member of a JSON object,
behind a # at the end of anything else. A file without one is of an older version, and is read as it stands.

The version before is the former file itself under another name: it takes no second copy in memory, and on a full disk
both stay as they are. docs/files.md lists the files that have one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from mdl.errors import DamagedError, DataError
from mdl.reading import read_bytes
from mdl.writing import write_whole

logger = logging.getLogger(__name__)

# The checksum's name in every form.
CHECKSUM = "mdl_checksum"
NO_DIGITS = b"0" * 64
# Far above any file that is written in one piece: the roster has 8 MiB, a catalogue 16.
_LARGEST_BYTES = 64 << 20
_Read = TypeVar("_Read")

_MEMBER = re.compile(rb',?\s*"mdl_checksum":\s*"([0-9a-f]{64})"\s*\}\s*\Z')
_LINE = re.compile(rb"# mdl_checksum: ([0-9a-f]{64})\n\Z")


def seal(content: bytes) -> bytes:
    """Return the content with its checksum in it. JSON objects stay JSON; others get a line more."""
    if content.startswith(b"{") and content.rstrip().endswith(b"}"):
        body = content.rstrip()[:-1].rstrip()
        comma = b"" if body.endswith(b"{") else b","
        head, tail = body + comma + b'"mdl_checksum":"', b'"}\n'
    else:
        head, tail = content + b"# mdl_checksum: ", b"\n"
    return head + blake3(head + NO_DIGITS + tail).hexdigest().encode() + tail


def unseal(content: bytes, where: object) -> bytes:
    """Return what was sealed. Content without a checksum is returned as it is. Raises DataError if it has changed."""
    if found := _MEMBER.search(content):
        rest = content[: found.start()] + b"}"
    elif found := _LINE.search(content):
        rest = content[: found.start()]
    else:
        return content
    start, stop = found.span(1)
    if blake3(content[:start] + NO_DIGITS + content[stop:]).hexdigest().encode() != found[1]:
        raise changed(where)
    return rest


def changed(where: object) -> DataError:
    """Return the error for a file with a wrong checksum."""
    return DataError(f"{where} has changed since it was written: its checksum is wrong")


def previous_of(path: Path) -> Path:
    """Return the path of the version before: cloud.previous.json beside cloud.json."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def with_previous(*names: str) -> tuple[str, ...]:
    """Return the names of kept files, and of the versions before them."""
    return tuple(each for name in names for each in (name, previous_of(Path(name)).name))


def write_kept(path: Path, content: bytes) -> None:
    """Write a small file with its checksum; the version before stays, unless it is damaged. Raises MdlError."""
    sealed = seal(content)
    write_whole(path, lambda file: file.write(sealed), previous_of(path) if _is_whole(path) else None)


def read_sealed(path: Path, largest: int, expected: str = "") -> bytes:
    """Return the content that `write_kept` wrote. Raises DataError as `read_bytes`, and if it has changed."""
    return unseal(read_bytes(path, largest, expected), path)


def read_kept(path: Path, read: Callable[[Path], _Read], lost: str, cure: str = "") -> _Read | None:
    """Return the result of `read` for a kept file, or for the version before it; None if neither is there.

    read: raises DataError for a damaged file.
    lost: the loss without the newest version, for the warning.
    cure: the user's way out if no version is whole.
    Raises DamagedError if no version is whole.
    """
    before = previous_of(path)
    if not path.exists() and not before.exists():
        return None
    try:
        if path.exists():
            return read(path)
        problem = f"{path} is missing"
    except DataError as error:
        problem = str(error)
    try:
        found = read(before)
    except DataError:
        raise damaged(path, problem, cure) from None
    tell_previous(problem, before, lost)
    return found


def damaged(path: Path, problem: str, cure: str = "") -> DamagedError:
    """Return the error for a damaged kept file without a whole version before it."""
    before = f" and {previous_of(path).name}" if previous_of(path).exists() else ""
    way = cure or f"remove {path}{before} to begin anew"
    return DamagedError(f"{problem}; there is no whole version before it: put a copy of it back, or {way}")


def tell_previous(problem: str, before: Path, lost: str) -> None:
    """Warn in one line that an older version is used."""
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(before.stat().st_mtime))
    logger.warning("%s; going on from the version before it (%s, written %s): %s", problem, before.name, written, lost)


def _is_whole(path: Path) -> bool:
    try:
        read_sealed(path, _LARGEST_BYTES)
    except DataError:
        return False
    return True
