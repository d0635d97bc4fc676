"""The silence after which a peer counts as lost: learned from the pauses that were seen.

A fixed limit is too short on a bad network and too long on a good one. Pure; seconds of the driver's clock.
"""

from __future__ import annotations

# The longest pause fades slowly, so that a network that has become better is trusted again after some minutes.
_FADE = 0.98
# Silence of this many times the longest usual pause is no accident.
_PAUSES = 3.0


class Arrivals:
    """The times at which one peer was heard. silent_at: then it counts as lost, unless it is heard before."""

    def __init__(self, now: float, shortest_s: float, longest_s: float) -> None:
        self.heard_at = now
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._pause_s = 0.0
        self.silent_at = now + self.patience_s

    @property
    def patience_s(self) -> float:
        """The silence that is borne: shortest_s on a good network, up to longest_s on a bad one."""
        usual_s = _PAUSES * self._pause_s
        if usual_s < self._shortest_s:
            return self._shortest_s
        return usual_s if usual_s < self._longest_s else self._longest_s

    def hear(self, now: float) -> None:
        pause_s = now - self.heard_at
        self.heard_at = now
        if pause_s < self._longest_s:  # longer: it was away, which says nothing about the network
            faded_s = _FADE * self._pause_s
            self._pause_s = pause_s if pause_s > faded_s else faded_s
        self.silent_at = now + self.patience_s

    def forgive(self, seconds: float) -> None:
        """Discount a suspension of this process: nobody else was silent."""
        self.heard_at += seconds
        self.silent_at += seconds

    def is_silent(self, now: float) -> bool:
        return now >= self.silent_at
