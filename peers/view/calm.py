"""A handler of log lines that a full disk does not disturb."""

from __future__ import annotations

import logging
import sys


class Calm(logging.Handler):
    """Drops a line that the system refuses: a complaint about each would fill a full disk further."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
