"""Counts the rows that a reader of data read or left out, by reason: one line at its end, with samples."""

from __future__ import annotations

from collections import Counter

from mdl.reading import shorten

# Samples kept for each reason.
_SAMPLES = 3


class Tally:
    """Counts rows, or the things that `what` names in the plural."""

    def __init__(self, what: str = "rows") -> None:
        self._what = what
        self._seen = 0
        self._left: Counter[str] = Counter()
        self._samples: dict[str, list[str]] = {}

    def see(self, count: int = 1) -> None:
        """Count all things there, used or left out."""
        self._seen += count

    def leave(self, why: str, count: int = 1, sample: str = "") -> None:
        """Count things that are left out. sample: the place of one, and its content."""
        self._left[why] += count
        kept = self._samples.setdefault(why, [])
        if sample and len(kept) < _SAMPLES:
            kept.append(shorten(sample))

    def wants(self, why: str) -> bool:
        """Return True if there is room for another sample of a reason."""
        return len(self._samples.get(why, ())) < _SAMPLES

    def line(self) -> str:
        """Return "read 20 rows, left out 3: 2 without a label, 1 cut off"."""
        left = {why: count for why, count in self._left.items() if count}
        gone = sum(left.values())
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(left.items(), key=lambda each: -each[1]))
        told = f"{gone:,}: {reasons}" if gone else "none"
        return f"read {max(0, self._seen - gone):,} {self._what}, left out {told}"

    def samples(self) -> tuple[str, ...]:
        """Return a line for each kept sample: the reason, then its place."""
        return tuple(f"{why}: {sample}" for why, kept in self._samples.items() for sample in kept)
