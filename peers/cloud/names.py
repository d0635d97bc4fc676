"""The owners of a cloud's names, in two files.

    devices.txt             the first device of each name: one line each, the key in hexadecimal and the name.
                            Removing a line gives that name to the next device that asks for it.
    devices.previous.txt    the same: replaces a damaged line of devices.txt.

Lines are added one by one, so each ends with its own checksum; a line without one is of an older version. A + before it
says that the cloud has kept something of this name; such a name makes no place for newcomers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from mdl.errors import RemoteProtocolError, StorageError
from mdl.files.kept import damaged, previous_of, with_previous
from mdl.reading import read_bytes
from mdl.transport.links.hub import MOST_NAMES, Names
from mdl.writing import append_line, make_private_folder, write_bytes

logger = logging.getLogger(__name__)

DEVICES = "devices.txt"
NAME_FILES = with_previous(DEVICES)
_LARGEST_BYTES = MOST_NAMES * 300  # two lines of each: at its arrival, and at its first contribution
# A flipped bit in the text before the checksum is detected: a name holds neither a tab nor a #.
_LINE = re.compile(r"([0-9a-f]{64}) ([^\s#](?:[^\t#\n]{0,70}[^\s#])?)(?:\t(\+?)#([0-9a-f]{8}))?")
_Names = dict[str, tuple[bytes, bool]]


def open_names(directory: Path) -> Names:
    """Read the names kept there; new ones are added to the file. Raises DamagedError naming the line, StorageError."""
    path = directory / DEVICES
    try:
        make_private_folder(directory)
    except OSError as error:
        raise StorageError(directory, error) from None
    found = _load(path)
    return Names(
        {name: key for name, (key, _) in found.items()},
        lambda name, key: _add(path, name, key),
        [name for name, (_, has_worked) in found.items() if has_worked],
        lambda name, key: _add(path, name, key, has_worked=True),
        lambda names, worked: _write_all(path, ((name, key, name in worked) for name, key in names.items())),
    )


def _load(path: Path) -> _Names:
    """Return the names of the first file; of both, if it is damaged."""
    copy = previous_of(path)
    if not path.exists() and not copy.exists():
        return {}
    found, problem = _read(path) if path.exists() else ({}, f"{path} is missing")
    if problem or _is_torn(path):
        kept, copy_problem = _read(copy) if copy.exists() else ({}, problem)
        problem = problem or f"{path}: its end is missing"
        if copy_problem:
            cure = "remove that line: the next device of that name then owns it"
            raise damaged(path, f"{problem}; the file says which device owns each name", cure)
        if kept.keys() - found.keys():
            logger.warning("%s; going on with %s: no name is lost", problem, copy)
        found = kept | found
    _write_all(path, ((name, key, has_worked) for name, (key, has_worked) in found.items()))
    return found


def _write_all(path: Path, names: Iterable[tuple[str, bytes, bool]]) -> None:
    content = b"".join(_line(name, key, has_worked) for name, key, has_worked in names)
    for each in (path, previous_of(path)):
        if not each.exists() or each.read_bytes() != content:
            write_bytes(each, content)


def _read(path: Path) -> tuple[_Names, str]:
    """Return the names of all whole lines, and the problem of the first damaged one."""
    found: _Names = {}
    problem = ""
    lines = read_bytes(path, _LARGEST_BYTES).decode(errors="replace").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        parts = _LINE.fullmatch(line)
        has_worked = parts is not None and parts[3] == "+"
        if parts is not None and parts[4] in (None, _check(parts[2], bytes.fromhex(parts[1]), has_worked)):
            found[parts[2]] = bytes.fromhex(parts[1]), has_worked
        else:
            problem = problem or f"{path}: line {number} is damaged: expected 64 hexadecimal digits and a name"
    return found, problem


def _is_torn(path: Path) -> bool:
    """Return True for a file that is empty or ends within a line: a power cut tore the last one, or more is gone."""
    return not path.read_bytes().endswith(b"\n")


def _line(name: str, key: bytes, has_worked: bool) -> bytes:
    return f"{key.hex()} {name}\t{'+' if has_worked else ''}#{_check(name, key, has_worked)}\n".encode()


def _check(name: str, key: bytes, has_worked: bool) -> str:
    return blake3(key + name.encode() + (b"\t+" if has_worked else b"")).hexdigest(4)


def _add(path: Path, name: str, key: bytes, has_worked: bool = False) -> None:
    line = _line(name, key, has_worked)[:-1]
    if not _LINE.fullmatch(line.decode()):
        raise RemoteProtocolError(f"{name!r} cannot be kept: it is no name")
    for each in (path, previous_of(path)):
        try:
            append_line(each, line)
        except OSError as error:  # until the next start the name is this device's anyway
            logger.warning("%s: the owner of name %s is not kept: %s", each, name, error.strerror)
