"""The times at which a device speaks by itself: it repeats requests, and reports news."""

from __future__ import annotations

from dataclasses import dataclass

from mdl.protocol.vocabulary import Transfer


@dataclass
class Voice:
    """The clock of one device's words. report_s, retry_s: longest time between two reports, and between two requests.

    ask_at: time of the next request, None while it wants nothing. transfer: progress of the values that it waits for.
    link_mb_s: speed of this device's link as the last exchange has shown it, in MB/s; 0.0: not known.
    has_changed: there is something to report at once. report_at: time at which the last report is old.
    """

    report_s: float
    retry_s: float
    link_mb_s: float = 0.0
    ask_at: float | None = None
    transfer: Transfer | None = None
    has_changed: bool = True
    report_at: float = 0.0

    def want(self, now: float) -> None:
        """Ask for something else at once: the transfer of what was wanted before goes no further."""
        self.ask_at, self.transfer = now, None

    def stop_asking(self) -> None:
        self.ask_at = None

    def deadline(self) -> float:
        ask_at = self.ask_at
        return self.report_at if ask_at is None or ask_at > self.report_at else ask_at

    def has_news(self, now: float) -> bool:
        """Return True if a report is due: something has changed, or the last one is old."""
        return self.has_changed or now >= self.report_at

    def is_due(self, now: float) -> bool:
        """Return True if the last report is old."""
        return now >= self.report_at

    def say_again(self) -> None:
        """Report at once: the agent asks, or is a new one."""
        self.has_changed = True
