"""When a device speaks by itself: it asks again for what it wants, and reports what is new."""

from __future__ import annotations

from dataclasses import dataclass

from mdl.protocol.vocabulary import Transfer


@dataclass
class Voice:
    """report_s, retry_s: how often a report is sent at least, and something asked for.

    ask_at: when it asks next, None while it wants nothing. transfer: how far the values have come that it waits for.
    has_changed: there is something to report at once. report_at: when the last report is old.
    """

    report_s: float
    retry_s: float
    ask_at: float | None = None
    transfer: Transfer | None = None
    has_changed: bool = True
    report_at: float = 0.0

    def want(self, now: float) -> None:
        """Something else than before: what has come of that goes no further."""
        self.ask_at, self.transfer = now, None

    def stop_asking(self) -> None:
        self.ask_at = None

    def deadline(self) -> float:
        ask_at = self.ask_at
        return self.report_at if ask_at is None or ask_at > self.report_at else ask_at

    def has_news(self, now: float) -> bool:
        """Whether a report is to be sent: something has changed, or the last one is old."""
        return self.has_changed or now >= self.report_at

    def is_due(self, now: float) -> bool:
        """Whether the last report is old."""
        return now >= self.report_at

    def say_again(self) -> None:
        """The agent asks, or is a new one: report at once."""
        self.has_changed = True
