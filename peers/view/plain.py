"""Lines for people: of a log, and of what a command prints. Names of others, of files and classes are data, not orders.

Messages are checked when they are decoded (`mdl/bounds.py`); this is for all the rest, where text leaves this process:
control characters, line breaks within a name and what turns the direction of a line appear as their escapes.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.peers.view.calm import Calm
from mdl.transport.loglimit import FloodFilter

# A line of a log or a table: a path and a reason fit, a file of a million columns does not fill the screen.
LONGEST_LINE = 4_000
OUR_LOGGER = "mdl"
LEVELS = ("debug", "info", "warning", "error")
# A process that was started with this variable owns the file at its value, which its stderr goes to (`mdl up`).
LOG_VARIABLE = "MDL_LOG_FILE"
# One for the whole process: added twice to a logger it is there once.
_FLOOD = FloodFilter()


class PlainFormatter(logging.Formatter):
    """One line for each record, and a traceback below it where there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), LONGEST_LINE)


class _LogFormatter(PlainFormatter):
    """A line with its time. The logger's name stands in those of libraries, and in all of them on level debug."""

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
    """Log lines go to stderr; returns what writes them. Of libraries warnings alone: torch tells of its caches."""
    path = os.environ.pop(LOG_VARIABLE, "")  # popped: it owns the file, and not what it starts
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
    """Our own lines of this level and above are written. Raises ConfigError unless it is one of LEVELS."""
    if level not in LEVELS:
        raise ConfigError(f"--log-level {level!r}: expected one of {', '.join(LEVELS)}")
    logging.getLogger(OUR_LOGGER).setLevel(level.upper())


def limit_floods() -> None:
    """For a program that has its own handlers: of one text of ours no more than LINES_OF_A_TEXT in PERIOD_S.

    A filter is asked by the logger that a line is written to, not by those above it: each of ours gets it.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == OUR_LOGGER:
            logging.getLogger(name).addFilter(_FLOOD)


def plain_lines(text: str) -> str:
    """The same lines, each printable."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))
