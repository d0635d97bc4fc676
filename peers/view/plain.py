"""Lines for people: of a log, and of what a command prints. Names of others, of files and classes are data, not orders.

Messages are checked when they are decoded (`mdl/bounds.py`); this is for all the rest, where text leaves this process:
control characters, line breaks within a name and what turns the direction of a line appear as their escapes.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.transport.loglimit import FloodFilter
from mdl.writing import open_private

# A line of a log or a table: a path and a reason fit, a file of a million columns does not fill the screen.
LONGEST_LINE = 4_000
OUR_LOGGER = "mdl"
LEVELS = ("debug", "info", "warning", "error")
# A process that was started with this variable owns the file at its value, which its stderr goes to (`mdl up`).
LOG_VARIABLE = "MDL_LOG_FILE"
# Of such a process: 3 MB, which is some 8,000 rounds of a device and 4,000 of an agent of three.
LARGEST_LOG_BYTES = 1_000_000
_LOGS_KEPT = 3
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


class _Calm(logging.Handler):
    """What the system refuses costs the line: a complaint about each would fill a full disk further."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class OwnStream(_Calm, logging.StreamHandler[TextIO]):
    """stderr, which may be a file on a full disk, or a terminal that is gone."""


class OwnLogFile(_Calm, RotatingFileHandler):
    """The file of a process whose stderr goes to a file: path, path.1 and path.2, of LARGEST_LOG_BYTES each.

    stderr follows, so that a traceback, and what a library prints, come behind the last line in the same file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LARGEST_LOG_BYTES, backupCount=_LOGS_KEPT - 1, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        file = open_private(Path(self.baseFilename), "ab")
        os.dup2(file.fileno(), sys.stderr.fileno())
        return io.TextIOWrapper(file, self.encoding, errors="backslashreplace")


def log_plainly() -> logging.Handler:
    """Log lines go to stderr; returns what writes them. Of libraries warnings alone: torch tells of its caches."""
    path = os.environ.pop(LOG_VARIABLE, "")  # popped: it owns the file, and not what it starts
    handler: logging.Handler = OwnLogFile(Path(path)) if path else OwnStream(sys.stderr)
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
