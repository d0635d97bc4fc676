"""The report of a failed command: one line on stderr, with `--json` one object on stdout, and an exit code.

The one place for all commands. Every end of a command comes here as an exception, or as the exit code it asked for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import typer

from mdl.bounds import printable
from mdl.descriptors import RAISE_IT
from mdl.errors import MdlError, StorageError, UnfinishedError
from mdl.peers import interrupts
from mdl.peers.interrupts import INTERRUPTED

# The longest line that says what is wrong: paths and choices fit.
_LONGEST = 4_000
# Shortens a word that typer repeats: a user need not read more of an invalid value.
_LONGEST_WORD = re.compile(r"(\S{80})\S+?(['\":.,;]*)(?=\s|$)")


@dataclass(frozen=True)
class Failure:
    """error: the line for the user.

    hint: what to do next, "" if nothing helps. result: the results that exist anyway.
    """

    error: str
    hint: str
    exit_code: int
    result: dict[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return self.result | {"error": self.error, "hint": self.hint, "exit_code": self.exit_code}


def run_guarded(command: Callable[[], int | None], as_json: bool) -> int:
    """Run a command to its end; return the exit code. as_json: a failure is the last line of stdout too."""
    try:
        interrupts.allow()
        failure = _run(command)
        interrupts.hurry()
    except KeyboardInterrupt:  # while another failure was put into words
        failure = _describe_code(INTERRUPTED)
    if failure:
        with contextlib.suppress(OSError):  # a log on a full disk
            print(f"mdl: {failure.error}", file=sys.stderr, flush=True)
        _print_last(json.dumps(failure.as_dict()) if as_json else "")
    code = failure.exit_code if failure else 0
    interrupts.end(code)
    return code


def _run(command: Callable[[], int | None]) -> Failure | None:
    try:
        code = command() or 0
        sys.stdout.flush()
        return _describe_code(code) if code else None
    except BaseException as error:  # noqa: BLE001 - nothing is further out
        return describe_failure(error)


def describe_failure(error: BaseException) -> Failure:
    """Describe the end of a command in the user's words; print a traceback if only a bug can be its cause."""
    match error:
        case UnfinishedError():
            return Failure(_one_line(str(error)), error.hint, error.exit_code, error.result)
        case MdlError():
            return Failure(_one_line(str(error)), error.hint, error.exit_code)
        case KeyboardInterrupt() | typer.Abort():
            return _describe_code(INTERRUPTED)
        case OSError():
            return _describe_refusal(error)
        case MemoryError():
            return Failure("out of memory", "a smaller model, batch or data set needs less", 4)
        case SystemExit():  # typer raises it for a closed pipe; commands raise errors
            return _describe_refusal(BrokenPipeError())
    if hasattr(error, "format_message"):
        return _describe_usage(error)
    traceback.print_exception(error)
    told = _one_line(f"{type(error).__name__}: {error}")
    return Failure(told, "a bug in mdl: please report it with the traceback on stderr", 4)


def _describe_code(code: int) -> Failure:
    """Describe a command that has said all, or was interrupted."""
    return Failure("interrupted" if code == INTERRUPTED else f"failed with code {code}", "", code)


def _describe_usage(error: Any) -> Failure:
    """Describe typer's own errors: an unknown command or option, an invalid value, no command."""
    path, told = error.ctx.command_path if error.ctx else "mdl", error.format_message()
    if told.startswith("Usage:"):  # no command was given: print the help
        print(told, file=sys.stderr)
        told = f"{path}: no command is given"
    return Failure(_one_line(_LONGEST_WORD.sub(r"\1...\2", told)), f"{path} --help lists what is valid", 2)


def _describe_refusal(error: OSError) -> Failure:
    """Describe an unexpected refusal of the system: a full disk, a place without permission."""
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, BrokenPipeError):
        return Failure("nobody reads the output any more", "", 4)
    if error.errno == errno.EMFILE:
        return Failure(_one_line(f"{where}{reason}"), RAISE_IT, 4)
    told = StorageError(where, error)
    return Failure(_one_line(f"{where}{reason}"), told.hint, told.exit_code)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()), _LONGEST)


def _print_last(text: str) -> None:
    """Print on stdout, unless that is what failed; leave nothing there for the interpreter's end to fail on."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
