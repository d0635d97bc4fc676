"""Errors, told apart by the party that has to act on them; and hints for mistakes in a user's input.

A hint is the closest valid name for a misspelt one, or the valid words of a field.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Mapping
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

from mdl.bounds import printable

# Length of a text that quotes a peer: enough to see what is wrong.
_LONGEST = 500
# The place is missing, or this user may not write there.
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG)
# The disk is full, or a quota or file size is reached.
_NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


class MdlError(Exception):
    """Base of every error that mdl raises on purpose; its text is one line for the user.

    hint: the user's next step, where the text does not give it; `--json` prints it beside the text.
    """

    exit_code = 4
    hint = "the lines before this one on stderr tell the cause"


class UnfinishedError(MdlError):
    """A command did not finish, or found a problem that it looked for (exit code 4 or 130); it keeps its result so far.

    result: the command's output with `--json`; that object then has `error`, `hint` and `exit_code` too.
    """

    def __init__(self, problem: str, exit_code: int, result: Mapping[str, object], hint: str = "") -> None:
        super().__init__(problem)
        self.exit_code = exit_code
        self.result = dict(result)
        self.hint = hint


class LocalProtocolError(MdlError):
    """We broke the rules: a bug. The process stops; `mdl.transport.limits` handles one met in a peer's message."""


class RemoteProtocolError(MdlError):
    """A peer broke the rules: count it, drop the message, carry on. Its text, which may quote the peer, is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, _LONGEST))


class ForgedError(RemoteProtocolError):
    """A wrong signature: no honest peer passes such a thing on, since every peer checks it first."""


class StorageError(MdlError):
    """A file cannot be written: the disk is full, or this user cannot write to that place.

    exit_code 2: the place can never be written, so nothing was begun; 4: writing failed on the way.
    """

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        super().__init__(f"cannot save {os.fspath(path)}: {error.strerror or error}")
        self.cause = error
        self.exit_code = 2 if error.errno in _NO_PLACE else 4
        self.hint = "make room there, or choose another place" if error.errno in _NO_ROOM else ""


class ConfigError(MdlError):
    """The user's configuration is wrong: names the key, the value and what would be valid."""

    exit_code = 2
    hint = "correct the value; mdl COMMAND --help lists the options"


class NameRefusedError(ConfigError):
    """Another device has this device's name in the mesh: it may come back under another one. name: the refused one."""

    hint = "mdl peer --name ANOTHER"

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


class DataError(MdlError):
    """The user's data is wrong: names the file and line, the value and what would be valid."""

    exit_code = 2
    hint = "mdl data inspect SPEC reads the data alone and shows what is in it"


class DamagedError(DataError):
    """A file that mdl keeps is damaged, and so is the version before it: names the file and the ways out."""

    hint = "a copy of the file from a backup can be put back; a disk that damages files should be replaced"


class MeshNotFoundError(MdlError):
    """No mesh, no agent or no peers where the user expected some."""

    exit_code = 3
    hint = "start it there (mdl peer --mesh NAME), or give a member's address: --join HOST:PORT"


class TrainingCancelledError(MdlError):
    """The user stopped this process in the middle of its training; nothing of that training is used."""


# The least similarity of two names (0 to 1): "cnn" still means "cnn-lstm"; a lower one would be a guess.
_ALIKE = 0.5


def did_you_mean(given: str, valid: Iterable[str], form: str = "; did you mean {!r}?") -> str:
    """Return the closest of the valid names, put into `form`; empty if none is close."""
    close = difflib.get_close_matches(given, list(valid), 1, _ALIKE)
    return form.format(close[0]) if close else ""


def words_of(kind: object) -> list[str]:
    """Return the words that a field of this type can be; [] if it has no such words."""
    literals = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
    return [word for literal in literals for word in get_args(literal) if isinstance(word, str)]


def explain(error: msgspec.ValidationError, kind: type) -> str:
    """Return the wrong place in a struct of this kind and the reason; for a field of few words also the valid ones."""
    reason, _, place = str(error).partition(" - at `$.")
    place = place.rstrip("`")
    found: object = kind
    for name in place.split("."):
        found = get_type_hints(found).get(name) if isinstance(found, type) else None
    words = words_of(found)
    valid = f" (valid: {', '.join(words)})" if words else ""
    return f"{place or 'configuration'}: {reason}{valid}"
