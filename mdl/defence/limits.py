"""Limits that a mesh learns: from what its devices' own deltas were like to whoever judged them last. Pure.

One device judges few others, and by these cannot tell lies from other data; all of them together can. A limit stands so
far from the median over devices as they differ: less than half of them cannot move it far, however often they are
judged, and where devices have different data it is far away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

import msgspec

from mdl.bounds import MAX_LOSS, Loss, within

# Rounds that count: each device comes alone in every second one or so. Of fewer than FEW devices nothing is known.
RECENT, FEW = 2, 3
# So many standard deviations from the median; a cosine above the second is never held against a device.
_DEVIATIONS, AGAINST = 4.0, -0.2
# 1.4826 median absolute deviations are a standard deviation of normal values.
_NORMAL = 1.4826


class Seen(msgspec.Struct, frozen=True):
    """What a receiver tells of a device's own delta that came alone, merged or not.

    rise: by how many nats it would raise the loss of the receiver's windows; None: not tested, or no number.
    angle: its cosine to the last global delta; None: not known.
    """

    rise: Loss | None = None
    angle: Loss | None = None


class Limits(msgspec.Struct, frozen=True):
    """By what a round's deltas are judged.

    rise: nats by which one may raise a receiver's loss.
    angle: the least cosine to the last global delta.
    """

    rise: Loss = MAX_LOSS
    angle: Loss = AGAINST


@dataclass
class Known:
    """Of a mesh, as its agent hears of it. seen: peer id -> in which round, and what."""

    seen: dict[str, tuple[int, Seen]] = field(default_factory=dict)

    def note(self, round_id: int, seen: Mapping[str, Seen]) -> set[str]:
        """Of a round; returns who stands out, now that all of them are known."""
        self.seen |= {peer_id: (round_id, each) for peer_id, each in seen.items()}
        limits = self.limits(round_id + 1)
        return {
            peer_id
            for peer_id, each in seen.items()
            if (each.rise is not None and each.rise > limits.rise)
            or (each.angle is not None and each.angle < limits.angle)
        }

    def limits(self, round_id: int) -> Limits:
        """Of this round, from the RECENT ones before it."""
        self.seen = {who: each for who, each in self.seen.items() if each[0] >= round_id - RECENT}
        rises = [each.rise for _, each in self.seen.values() if each.rise is not None]
        angles = [each.angle for _, each in self.seen.values() if each.angle is not None]
        rise = median(rises) + _DEVIATIONS * spread(rises) if len(rises) >= FEW else MAX_LOSS
        angle = median(angles) - _DEVIATIONS * spread(angles) if len(angles) >= FEW else AGAINST
        return Limits(within(rise, -MAX_LOSS, MAX_LOSS), within(angle, -MAX_LOSS, AGAINST))


def spread(values: Iterable[float]) -> float:
    """A standard deviation that less than half of the values cannot move: by median absolute deviation."""
    known = list(values)
    middle = median(known)
    return _NORMAL * median(abs(value - middle) for value in known)
