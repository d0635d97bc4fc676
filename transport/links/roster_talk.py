"""Rosters are compared before words count: who has heard of a revocation tells it to whoever it meets.

Each new link begins with what this node knows of the roster, or, where that is much, with its digest; who hears
another digest tells all it knows. What is new is passed on at once to everybody. A peer's words count from when all
it knows has come, so that nobody follows an order of a member who is known there to be out. Digests are compared
again every second.
Pure: `now` is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from mdl.budget import Budget
from mdl.errors import ForgedError, RemoteProtocolError
from mdl.transport.trust.checks import Checks
from mdl.transport.trust.roster import Roster
from mdl.transport.wire.codec import RosterTold
from mdl.trust.statements import MAX_ENROLLED, MAX_KEPT, STATEMENTS_A_MESSAGE, AnyStatement, CodeChanged

# A roster of so many is told at once: some 8 KB. Devices of a home never ask.
_AT_ONCE = 32
# How often digests are compared, and with how many peers at a time, in turn.
COMPARE_S = 1.0
_COMPARED = 8
# What was told may have been lost with a link, and is told again, ever more seldom: two rosters differ for as long as
# one of them refuses what the other holds.
_FIRST_S, _AGAIN_S = 2.0, 30.0
# Answers to one peer at once, and a second: who names ever new digests gets all there is so seldom.
_ANSWERS, _ANSWERS_A_S = 4, 0.2
_REMEMBERED = 1024


class RosterTalk:
    """roster: this node's; statements that are heard go into it. checks: how many of them."""

    def __init__(self, roster: Roster, now: float, checks: Checks | None = None) -> None:
        self._roster = roster
        self._checks = checks or Checks()
        self._settled: set[str] = set()
        self._heard: dict[str, bytes] = {}  # who has told last comes last
        self._told: dict[str, tuple[float, float, bytes, bytes, Budget]] = {}
        self._compare_at = now + COMPARE_S
        self._turn = 0

    def open(self, peer_id: str) -> list[RosterTold]:
        """The first words on a new link."""
        if len(self._roster.statements()) <= _AT_ONCE:
            return self._everything()
        return [RosterTold(self._roster.digest)]

    def hear(self, peer_id: str, told: RosterTold, now: float) -> tuple[list[AnyStatement], list[RosterTold]]:
        """What is new, for everybody else, and what to answer. Statements that cannot stand are dropped."""
        before = self._roster.digest
        new = self._take_in(peer_id, told.statements, now)
        self._heard.pop(peer_id, None)
        self._heard[peer_id] = told.digest
        if len(self._heard) > MAX_ENROLLED:  # each member, and as many that only look
            self.forget(next(iter(self._heard)))
        if told.is_all or told.digest == self._roster.digest:
            self._settled.add(peer_id)
        if told.digest == self._roster.digest != before:
            return new, [RosterTold(told.digest)]  # it cannot know that nothing is left to tell
        return new, self._answer(peer_id, told.digest, now)

    def tell(self, statements: Sequence[AnyStatement]) -> list[RosterTold]:
        """News, as it goes to everybody."""
        return [RosterTold(self._roster.digest, page) for page in _pages(statements)]

    def is_settled(self, peer_id: str) -> bool:
        """Whether all that this peer knows has come."""
        return peer_id in self._settled

    def agreeing(self) -> set[str]:
        """Peers that knew, when they told last, just what this node knows."""
        return {peer_id for peer_id, digest in self._heard.items() if digest == self._roster.digest}

    def forget(self, peer_id: str) -> None:
        """It begins anew."""
        self._settled.discard(peer_id)
        self._heard.pop(peer_id, None)

    def due(self, peer_ids: Iterable[str], now: float) -> list[tuple[str, RosterTold]]:
        """Whom to tell the digest now."""
        if now < self._compare_at:
            return []
        self._compare_at = now + COMPARE_S
        everyone = sorted(peer_ids)
        if not everyone:
            return []
        start = self._turn % len(everyone)
        self._turn += _COMPARED
        chosen = (everyone[start:] + everyone[:start])[:_COMPARED]
        return [(peer_id, RosterTold(self._roster.digest)) for peer_id in chosen]

    def deadline(self) -> float:
        return self._compare_at

    def _take_in(self, peer_id: str, statements: Iterable[AnyStatement], now: float) -> list[AnyStatement]:
        """Those that are new and stand, up to the first that is forged, or that there is no time to check."""
        new = []
        for statement in statements:
            if self._roster.knows(statement):
                continue
            if not self._checks.may(peer_id, now):
                break
            try:
                if self._roster.add(statement):
                    new.append(statement)
            except ForgedError:
                self._checks.note_forged(peer_id, now)
                break
            except RemoteProtocolError:
                continue  # of another code, or of an owner that is out
        return new

    def _answer(self, peer_id: str, digest: bytes, now: float) -> list[RosterTold]:
        if digest == self._roster.digest:
            return []
        at, wait_s, *told, budget = self._told.get(peer_id, (-inf, 0.0, b"", b"", Budget(_ANSWERS, _ANSWERS_A_S)))
        is_same = told == [digest, self._roster.digest]
        if (is_same and now - at < wait_s) or not budget.take(now):
            return []
        self._told.pop(peer_id, None)
        wait_s = min(2 * wait_s, _AGAIN_S) if is_same else _FIRST_S
        self._told[peer_id] = now, wait_s, digest, self._roster.digest, budget
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        return self._everything()

    def _everything(self) -> list[RosterTold]:
        digest = self._roster.digest
        pages = _pages(self._roster.statements()) or [()]
        return [RosterTold(digest, page, page is pages[-1]) for page in pages]


def _pages(statements: Sequence[AnyStatement]) -> list[tuple[AnyStatement, ...]]:
    """Part statements into pages, as many in each as one message has room for."""
    pages: list[tuple[AnyStatement, ...]] = []
    page: list[AnyStatement] = []
    keys = 0
    for statement in statements:
        kept = len(statement.kept) if isinstance(statement, CodeChanged) else 0
        if len(page) == STATEMENTS_A_MESSAGE or (page and keys + kept > MAX_KEPT):
            pages.append(tuple(page))
            page, keys = [], 0
        page.append(statement)
        keys += kept
    return [*pages, tuple(page)] if page else pages
