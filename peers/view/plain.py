"""Lines for people, in logs and in the output of commands. Names from others, files and classes are data, not orders.

Messages are checked when they are decoded (`mdl/bounds.py`). This module checks all other text that leaves this
process: control characters, line breaks within a name and changes of a line's direction appear as their escapes.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.transport.limits import FloodFilter
from mdl.writing import Calm

# The longest line of a log or a table: a path and a reason fit, a file of a million columns does not fill the screen.
LONGEST_LINE = 4_000
OUR_LOGGER = "mdl"
LEVELS = ("debug", "info", "warning", "error")
# A process started with this variable owns the file at its value; its stderr goes there (`mdl up`).
LOG_VARIABLE = "MDL_LOG_FILE"
# One filter for the whole process: a logger holds it once, however often it is added.
_FLOOD = FloodFilter()


class PlainFormatter(logging.Formatter):
    """Formats one line for each record, and the traceback below it, if any."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), LONGEST_LINE)


class _LogFormatter(PlainFormatter):
    """A line with its time. The logger's name stands in lines of libraries, and in all of them on level debug."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(origin)s%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        is_ours = record.name.partition(".")[0] == OUR_LOGGER
        shows_name = not is_ours or logging.getLogger(OUR_LOGGER).level <= logging.DEBUG
        record.origin = f"{record.name}: " if shows_name else ""
        return super().formatMessage(record)


class OwnStream(Calm, logging.StreamHandler[TextIO]):
    """stderr, which may be a file on a full disk, or a terminal that is gone."""


def log_plainly() -> logging.Handler:
    """Log to stderr, of libraries warnings only; return the handler. torch would tell of its caches."""
    path = os.environ.pop(LOG_VARIABLE, "")  # popped: this process owns the file, its children do not
    handler: logging.Handler = OwnStream(sys.stderr)
    if path:
        from mdl.peers.view.log_file import OwnLogFile

        handler = OwnLogFile(Path(path))
    handler.setFormatter(_LogFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    log_from("info")
    return handler


def log_from(level: str) -> None:
    """Write our own lines of this level and above. Raises ConfigError unless it is one of LEVELS."""
    if level not in LEVELS:
        raise ConfigError(f"--log-level {level!r}: expected one of {', '.join(LEVELS)}")
    logging.getLogger(OUR_LOGGER).setLevel(level.upper())


def limit_floods() -> None:
    """Limit our lines for a program with its own handlers: LINES_OF_A_TEXT of one text in PERIOD_S.

    A logger asks only its own filters, not those above it: each of our loggers gets it.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == OUR_LOGGER:
            logging.getLogger(name).addFilter(_FLOOD)


def plain_lines(text: str) -> str:
    """Return the same lines, each printable."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))
