"""stdin, stdout and stderr of a command: no state of them, and no text, ends the command.

A closed stream leads nowhere. Characters that the encoding of the other side lacks are replaced: an arrow by `->`, any
other by its escape. Names of files that are no UTF-8 appear so, too.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_HANDLER = "mdl.shown"
# Characters beyond ASCII in mdl's own lines and drawings.
_STAND_INS = dict(zip("▁▂▃▄▅▆▇█‘’“”–—×·≤≥", "_.-=+*%#''\"\"--x-<>", strict=True)) | {
    "→": "->",
    "←": "<-",
    "…": "...",
}


def open_streams() -> None:
    """Make the three streams of this process usable, before the first word."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_closed(number)
        if getattr(sys, name) is None:
            # Like the interpreter's own, it is never closed.
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    codecs.register_error(_HANDLER, show_otherwise)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def show_otherwise(error: UnicodeError) -> tuple[str, int]:
    """Handle an error of encoding: return an ASCII replacement, and the position to go on at."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    shown = (_STAND_INS.get(each) or each.encode("ascii", "backslashreplace").decode() for each in part)
    return "".join(shown), error.end


def _open_closed(number: int) -> None:
    """Open /dev/null in place of a closed descriptor: else the next opened file would receive the output."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one, as those below are open
