"""Lines for people: of a log, and of what a command prints. Names of others, of files and classes are data, not orders.

Messages are checked when they are decoded (`mdl/bounds.py`); this is for all the rest, where text leaves this process:
control characters, line breaks within a name and what turns the direction of a line appear as their escapes.
"""

from __future__ import annotations

import logging
import sys

from mdl.bounds import printable

# A line of a log or a table: a path and a reason fit, a file of a million columns does not fill the screen.
LONGEST_LINE = 4_000
OUR_LOGGERS = ("mdl", "transport", "sim", "scheduler", "peers")


class PlainFormatter(logging.Formatter):
    """One line for each record, and a traceback below it where there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), LONGEST_LINE)


def log_plainly() -> logging.Handler:
    """Log lines go to stderr; returns what writes them. Of libraries warnings alone: torch tells of its caches."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter("%(asctime)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for ours in OUR_LOGGERS:
        logging.getLogger(ours).setLevel(logging.INFO)
    return handler


def plain_lines(text: str) -> str:
    """The same lines, each printable."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))
