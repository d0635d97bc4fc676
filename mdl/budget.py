"""How often something may be asked of this device that costs it more than to ask. Pure: `now` is an argument."""

from __future__ import annotations

from math import inf


class Budget:
    """So many at once, and so many more each second."""

    def __init__(self, burst: int, a_second: float) -> None:
        self._burst, self._a_second = burst, a_second
        self._left, self._at = float(burst), inf

    def take(self, now: float) -> bool:
        """Whether there is one left; it is used up then."""
        self._left = min(self._burst, self._left + max(now - self._at, 0.0) * self._a_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
