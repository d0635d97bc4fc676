"""The pairs of devices that lately could not reach each other, so that values go another way.

Two devices may both hear the agent and not one another: an access point that isolates its clients, a firewall, a wall
between them. Values need both directions (they are asked for, and acknowledged), so it is the pair that is avoided.
A cut heals: a pair is tried again after a while, after twice as long if that fails too. Pure; the agent's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from mdl.bounds import MAX_TEXT
from mdl.protocol.delta import Contributor
from mdl.protocol.status_messages import MAX_CUTS

logger = logging.getLogger(__name__)

# Time for which a pair is avoided after its first failure: some rounds. A try in vain costs `stall_s` (10 s).
AVOID_S = 60.0
# The longest, in multiples of that: a cut that has healed is noticed within a quarter of an hour.
AT_MOST = 16.0


@dataclass
class _Failure:
    """A pair in which values did not arrive: how many times in a row, and until when it is avoided."""

    sender: Contributor
    receiver: Contributor
    until: float
    times: int = 1

    def describe(self) -> str:
        return f"{self.sender.peer_id} cannot reach {self.receiver.peer_id}: values go another way"[:MAX_TEXT]


class Reach:
    """See the module. At most MAX_CUTS pairs are kept, those that failed last; a restarted device begins afresh.

    In segments owners exchange with everybody. If they come to a standstill, reports tell which owner lacks the pieces
    of which device: neither of such a pair owns a segment for a while. If no report tells any, rounds go by hops for as
    long as a pair would be avoided, or until these find out which it is. avoid_s: after a first failure.
    """

    def __init__(self, avoid_s: float = AVOID_S) -> None:
        self._avoid_s = avoid_s
        self._failures: dict[frozenset[Contributor], _Failure] = {}
        self._standstills = 0
        self._hops_until = 0.0

    def fail_segments(self, pairs: Collection[tuple[Contributor, Contributor]], now: float) -> None:
        """Note that segments have come to a standstill. pairs: (contributor, owner that lacks its pieces), as told."""
        if pairs:
            for sender, receiver in pairs:
                self.fail(sender, receiver, now)
            return
        avoid_s = self._avoid_s * min(2.0**self._standstills, AT_MOST)
        self._standstills, self._hops_until = self._standstills + 1, now + avoid_s
        logger.warning("segments have come to a standstill: rounds go by hops for %.0f s", avoid_s)

    def succeed_segments(self) -> None:
        """Note that all got all of a round's segments."""
        self._standstills = 0

    def may_try_segments(self, now: float) -> bool:
        return now >= self._hops_until

    def fail(self, sender: Contributor, receiver: Contributor, now: float) -> str:
        """Note that nothing has got from one to the other for long. Return the log's words, "" if that is known."""
        pair = frozenset((sender, receiver))
        before = self._failures.pop(pair, None)
        if before and now < before.until:  # it was tried for want of another way
            self._failures[pair] = before
            return ""
        times = before.times + 1 if before else 1
        while len(self._failures) >= MAX_CUTS:
            del self._failures[next(iter(self._failures))]
        avoid_s = self._avoid_s * min(2.0 ** (times - 1), AT_MOST)
        self._failures[pair] = failure = _Failure(sender, receiver, now + avoid_s, times)
        self._hops_until = now
        logger.warning("%s", failure.describe())
        return failure.describe()

    def succeed(self, sender: Contributor, receiver: Contributor) -> None:
        """Note that values have got from one to the other."""
        if self._failures:
            self._failures.pop(frozenset((sender, receiver)), None)

    def are_apart(self, one: Contributor, other: Contributor, now: float) -> bool:
        if not self._failures:
            return False
        failure = self._failures.get(frozenset((one, other)))
        return failure is not None and now < failure.until

    def apart(self, now: float) -> list[tuple[Contributor, Contributor]]:
        """Return the pairs that are avoided now, each as (sender, receiver that it cannot reach)."""
        return [(failure.sender, failure.receiver) for failure in self._failures.values() if now < failure.until]

    def describe(self, now: float) -> tuple[str, ...]:
        """Return the same in words, for people."""
        return tuple(failure.describe() for failure in self._failures.values() if now < failure.until)
