"""Limits on what others can cost this node: by asking often, by filling its log, and by messages that meet a bug.

A `TokenBucket` limits requests that cost this device more than they cost the sender. The first log lines of a kind
about a peer are written as they come, so that nobody can fill a disk. One line counts the rest at the end of the
period. A kind is the constant text of a line.

A message that raises anything but RemoteProtocolError has met a bug: ours, or one that its sender provokes. The
sender's device is ignored for a minute, and for twice as long each further time. Further names do not help a device
that sends the same message to many: the device is put out by its key. Pure but for the logger: `now` is an argument,
in seconds of any clock.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf

from mdl.bounds import MAX_MEMBERS


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


# Long enough for rounds to go on between two bugs; short enough that an honest device with a rare message comes back.
FIRST_S, LONGEST_S = 60.0, 86_400.0
# Devices remembered with the number of bugs that they met: as many as a mesh has.
_REMEMBERED = MAX_MEMBERS
# After so many rebuilds in this time the cause is taken to be in the data that the node is rebuilt from: it stops and
# saves its story. A single device causes four at most, since each mute is twice as long as the last.
MOST_REBUILDS, REBUILDS_S = 8, 900.0

# Logged with a traceback, as often as `mdl.transport.limits` allows.
MET_BUG = "a message of %s met a bug here: that device is not heard for %.0f s, this one goes on"
MET_BUG_AT_DOOR = "an introduction met a bug here, and is dropped"


@dataclass
class _Out:
    """A device that is ignored. until: the end of that time. times: the number of bugs that its messages met."""

    peer_id: str
    until: float
    times: int


class Barrier:
    """The devices that this node ignores. met: messages that met a bug since the process started."""

    def __init__(self) -> None:
        self.met = 0
        self._out: OrderedDict[Hashable, _Out] = OrderedDict()
        self._rebuilt: deque[float] = deque(maxlen=MOST_REBUILDS)

    def put_out(self, device: Hashable, peer_id: str, now: float) -> float:
        """Note that a message of this device met a bug; return for how many seconds the device is ignored."""
        self.met += 1
        before = self._out.pop(device, None)
        times = before.times + 1 if before else 1
        for_s = min(FIRST_S * 2.0 ** (min(times, 32) - 1), LONGEST_S)
        self._out[device] = _Out(peer_id, now + for_s, times)
        if len(self._out) > _REMEMBERED:
            self._out.popitem(last=False)
        return for_s

    def note_unknown(self) -> int:
        """Note a message of an unknown sender that met a bug; return the number of such messages so far."""
        self.met += 1
        return self.met

    def is_out(self, device: Hashable, now: float) -> bool:
        """Return True while this device is ignored."""
        out = self._out.get(device)
        return out is not None and now < out.until

    def unheard(self, now: float) -> tuple[str, ...]:
        """Return the names of the peers that are ignored now."""
        return tuple(sorted({out.peer_id for out in self._out.values() if now < out.until}))

    def may_rebuild(self, now: float) -> bool:
        """Note a rebuild of the node; return False if so many came lately that the cause must be in the node itself."""
        is_worn_out = len(self._rebuilt) == MOST_REBUILDS and now - self._rebuilt[0] < REBUILDS_S
        self._rebuilt.append(now)
        return not is_worn_out
