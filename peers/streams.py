"""stdin, stdout and stderr of a command: whatever they are, what it says never ends it.

A closed one leads nowhere. What the encoding of the other side lacks is written with characters that it has: an arrow
as `->`, any other as its escape. Names of files that are no UTF-8 appear so, too.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_HANDLER = "mdl.shown"
# What mdl's own lines and drawings use beyond ASCII.
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
    """Handle an error of encoding: return what to write instead, in ASCII, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    shown = (_STAND_INS.get(each) or each.encode("ascii", "backslashreplace").decode() for each in part)
    return "".join(shown), error.end


def _open_closed(number: int) -> None:
    """Where a descriptor is closed, the next file that is opened would take its place, and what is said go into it."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one, as those below are open
