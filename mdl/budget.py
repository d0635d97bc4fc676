"""Limits the rate of requests that cost this device more than they cost the sender. Pure: `now` is an argument."""

from __future__ import annotations

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
