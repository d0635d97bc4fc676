"""Limits on what others can make this node do by asking often: the work of their requests, and lines in its log.

A `TokenBucket` limits requests that cost this device more than they cost the sender. The first log lines of a
kind about a peer are written as they come, so that nobody can fill a disk. One line counts the rest at the end of the
period. A kind is the constant text of a line. Pure but for the logger: `now` is an argument, in seconds of any clock.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf


class TokenBucket:
    """A token bucket: a burst at once, and so many more each second."""

    def __init__(self, burst: int, a_second: float) -> None:
        self._burst, self._a_second = burst, a_second
        self._left, self._at = float(burst), inf

    def take(self, now: float) -> bool:
        """Take one unit and return True; return False if none is left."""
        self._left = min(self._burst, self._left + max(now - self._at, 0.0) * self._a_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


# Enough to see what goes wrong; later violations of the protocol rarely tell more than the first.
LINES = 3
PERIOD_S = 10.0
# Pairs of kind and peer counted apart at a time; all others share one key for each kind. With LINES and 200 bytes a
# line this is 2.6 KB/s at most, whatever comes.
MAX_KEYS = 32
# A process writes at most so many lines of one text in a period: a round of 100 devices has as many hops.
LINES_OF_A_TEXT = 200
# The program has some hundred constant texts; a library that makes up its own texts shares the last key.
_MAX_TEXTS = 512


@dataclass
class _Heard:
    """One key's period. like: the last line that was written. level: the level of that line."""

    since: float
    level: int
    written: int = 0
    unwritten: int = 0
    like: str = ""


class LogLimit:
    """At most `lines` lines for each (text, peer) in PERIOD_S. peer: the peer that caused it, if that is known."""

    def __init__(self, logger: logging.Logger, lines: int = LINES) -> None:
        self._logger = logger
        self._lines = lines
        self._heard: dict[tuple[str, Hashable], _Heard] = {}

    def warning(self, now: float, peer: Hashable, text: str, *fields: object) -> None:
        self.log(logging.WARNING, now, peer, text, *fields)

    def bug(self, now: float, peer: Hashable, text: str, *fields: object, error: BaseException | None = None) -> None:
        """Write or count an error, with the traceback of `error` or of the exception being handled."""
        self.log(logging.ERROR, now, peer, text, *fields, traced=error or True)

    def log(
        self, level: int, now: float, peer: Hashable, text: str, *fields: object, traced: BaseException | bool = False
    ) -> None:
        """Write a line, or count it. text, fields: as for `logging`; lines that are only counted are not formatted."""
        self.on_time(now)
        key = (text, peer)
        if key not in self._heard and len(self._heard) >= MAX_KEYS:
            key = (text, None)  # at most one key for each text
        heard = self._heard.setdefault(key, _Heard(now, level))
        if heard.written >= self._lines:
            heard.unwritten += 1
            return
        heard.written += 1
        heard.like = text % fields
        self._logger.log(level, text, *fields, exc_info=traced)

    def on_time(self, now: float) -> None:
        """Log the number of unwritten lines of each period that is over."""
        for key, heard in list(self._heard.items()):
            if now - heard.since < PERIOD_S:
                continue
            del self._heard[key]
            if heard.unwritten:
                text = "and %s more in the last %.0f s like: %s"
                self._logger.log(heard.level, text, f"{heard.unwritten:,}", now - heard.since, heard.like)


class FloodFilter(logging.Filter):
    """A filter for a handler or logger: at most LINES_OF_A_TEXT lines of one text in PERIOD_S, from all sources.

    The next line of this text tells how many were left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[str, _Heard] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is written."""
        key = str(record.msg) if record.msg in self._heard or len(self._heard) < _MAX_TEXTS else ""
        heard = self._heard.setdefault(key, _Heard(record.created, record.levelno))
        left_out = 0
        if not 0 <= record.created - heard.since < PERIOD_S:
            left_out = heard.unwritten
            self._heard[key] = heard = _Heard(record.created, record.levelno)
        if heard.written >= LINES_OF_A_TEXT:
            heard.unwritten += 1
            return False
        heard.written += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} more like it before)", None
        return True
