"""Which device had which name first at a cloud: one line each, the key in hexadecimal and the name.

devices.txt    in the cloud's directory; who removes a line gives that name to whoever comes next
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mdl.errors import DataError, StorageError
from mdl.reading import read_bytes
from mdl.writing import append_line, make_private_folder, write_bytes
from transport.trust.names import MOST_NAMES, Names

logger = logging.getLogger(__name__)

DEVICES = "devices.txt"
_LARGEST_BYTES = MOST_NAMES * 140
_LINE = re.compile(r"([0-9a-f]{64}) (\S(?:.{0,70}\S)?)")


def open_names(directory: Path) -> Names:
    """What is kept there; new names are added to it. Raises DataError naming the line, StorageError."""
    path = directory / DEVICES
    try:
        make_private_folder(directory)
    except OSError as error:
        raise StorageError(directory, error) from None
    return Names(_read(path) if path.exists() else {}, lambda name, key: _add(path, name, key))


def _read(path: Path) -> dict[str, bytes]:
    content = read_bytes(path, _LARGEST_BYTES)
    whole, newline, rest = content.rpartition(b"\n")
    if rest:  # the machine went down in the middle of a line
        write_bytes(path, whole + newline)
    found: dict[str, bytes] = {}
    for number, line in enumerate(whole.decode(errors="replace").splitlines(), 1):
        if (parts := _LINE.fullmatch(line)) is None:
            raise DataError(
                f"{path}: line {number}: expected 64 hexadecimal digits and a name; it says whose names are"
            )
        found[parts[2]] = bytes.fromhex(parts[1])
    return found


def _add(path: Path, name: str, key: bytes) -> None:
    try:
        append_line(path, f"{key.hex()} {name}".encode())
    except OSError as error:  # until the next start the name is this device's all the same
        logger.warning("%s: not kept there whose name %s is: %s", path, name, error.strerror)
