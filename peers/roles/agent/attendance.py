"""The rounds that each device took part in lately, and since when it trains. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from mdl.protocol.delta import Contributor
from mdl.scheduler.rounds.participation import LOOKED_BACK


class Attendance:
    """See the module. It begins anew with each agent."""

    def __init__(self) -> None:
        self._given: deque[frozenset[str]] = deque(maxlen=LOOKED_BACK)
        self._left_out: dict[str, int] = {}
        self._trains_since: dict[Contributor, float] = {}

    @property
    def rounds(self) -> int:
        """The number of rounds looked back on, at most `LOOKED_BACK`."""
        return len(self._given)

    def open(self, members: Collection[Contributor], now: float) -> None:
        """Note that a round has opened: its members train, those left out before it since then."""
        self._trains_since = {peer: self._trains_since.get(peer, now) for peer in members}

    def close(self, given: Collection[Contributor], behind: Collection[Contributor], here: Collection[str]) -> None:
        """Note a closed round. given: the devices with work in it. behind: those without its result as it closed.

        here: the peer ids of all that might have given some.
        """
        names = frozenset(peer.peer_id for peer in given if peer not in behind)
        self._given.append(names)
        before = self._left_out
        self._left_out = {peer_id: before.get(peer_id, 0) + 1 for peer_id in here if peer_id not in names}
        for peer in given:
            self._trains_since.pop(peer, None)

    def took_part(self, peer_id: str) -> int:
        """Return its rounds among the last ones."""
        return sum(peer_id in given for given in self._given)

    def left_out(self, peer_id: str) -> int:
        """Return the rounds in a row, up to now, that closed without it."""
        return self._left_out.get(peer_id, 0)

    def trains_since(self, peer: Contributor, opened_at: float) -> float:
        """Return the time since which it trains; the opening of the round if nothing else is known."""
        return self._trains_since.get(peer, opened_at)
