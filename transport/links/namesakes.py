"""Other processes with this node's peer id: somebody copied its data directory to a second device.

Each side greets the other once, with a number, and hears a mark of it back that only the very same device can make,
and each of its starts another one; nobody is taken for a namesake on a message's word, which may be an old one of this
device's own, said again by somebody else where it listened then. Which of the two goes on is the machine's affair. The
others of the mesh have dropped the earlier one's messages since they heard of the later one (fault rule 4): it says
Hello to all of them for a while, as a sign of life. An announcement of our own last start, which is no more, costs one
Hello that nobody answers. Pure: `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.discovery.directory import SIGN_PAUSE_S, SIGNS, SILENT_S, Address, address_of

# Namesakes that are remembered; a copy that is started again and again counts each time.
MAX_NAMESAKES = 16
# Where nobody answers for so long there is nobody.
GREETING_S = 10.0
# Signs of life come often until a later namesake that left was silent for long enough, with some to spare for one that
# takes its time to leave; then seldom, for whoever was suspended or cut off meanwhile.
SIGN_EVERY_S = SIGN_PAUSE_S + 0.2
OFTEN_S = 2 * SILENT_S + SIGNS * SIGN_EVERY_S
SELDOM_S = 15.0
LASTING_S = 300.0
# What a start of this device makes of a number: challenge, its incarnation -> at most 16 bytes.
Mark: TypeAlias = Callable[[bytes, int], bytes]


class Namesakes:
    """See the module. me: this node. draw: a number that nobody can guess, at most 16 bytes."""

    def __init__(self, me: Contributor, draw: Callable[[], bytes], mark: Mark) -> None:
        self._me = me
        self._mark = mark
        self._draw = draw
        self._challenges: dict[Address, bytes] = {}
        self._addresses: dict[int, Address] = {}
        self._proven: deque[int] = deque(maxlen=MAX_NAMESAKES)
        self._greeted: dict[Address, float] = {}
        self._signs_since: float | None = None
        self._sign_at = 0.0

    def meet(self, info: PeerInfo, now: float) -> bool:
        """Somebody of our peer id was introduced; whether to greet it: once for each incarnation and address."""
        address = address_of(info)
        if info.incarnation == self._me.incarnation or self._addresses.get(info.incarnation) == address:
            return False
        if info.incarnation not in self._addresses and len(self._addresses) >= MAX_NAMESAKES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[info.incarnation] = address
        self._begin_signs(info.incarnation, now)
        return self._greet(address, now)

    def hear(self, sender: Contributor, now: float) -> None:
        """Somebody speaks in this node's name: perhaps it lives."""
        self._begin_signs(sender.incarnation, now)

    def prove(self, sender: Contributor, answer: bytes) -> bool:
        """Whether `answer` is what this start of the device makes of a number that was sent; True once."""
        right = {self._mark(challenge, sender.incarnation) for challenge in self._challenges.values()}
        if answer not in right or sender.incarnation in self._proven:
            return False
        self._proven.append(sender.incarnation)
        return True

    def answer(self, challenge: bytes) -> bytes:
        """What this start makes of a number that another one has sent."""
        return self._mark(challenge, self._me.incarnation)

    def challenge(self, address: Address) -> bytes:
        """What a greeting asks to be said back; empty where none is under way."""
        return self._challenges.get(address, b"")

    def answers(self, address: Address, now: float) -> tuple[bool, bytes]:
        """Whether to answer a challenge from there, and what to ask in turn if nothing was asked lately."""
        if address in self._greeted:
            return True, b""
        return self._greet(address, now), self.challenge(address)

    def address(self, other: Contributor) -> str:
        """HOST:PORT, or "" if it is not known."""
        address = self._addresses.get(other.incarnation)
        return address.endpoint().removeprefix("tcp://") if address else ""

    def unanswered(self, now: float) -> list[Address]:
        """Where a greeting is over, each address once."""
        over = [address for address, greeted_at in self._greeted.items() if now - greeted_at >= GREETING_S]
        for address in over:
            del self._greeted[address], self._challenges[address]
        return over

    def greeted(self) -> list[Address]:
        """Where a greeting may still be on its way."""
        return list(self._greeted)

    def is_sign_due(self, now: float) -> bool:
        """Whether to tell everybody now that this node is still there; each call moves the next time on."""
        if self._signs_since is None or now < self._sign_at:
            return False
        lasted_s = now - self._signs_since
        self._sign_at = now + (SIGN_EVERY_S if lasted_s < OFTEN_S else SELDOM_S)
        if lasted_s >= LASTING_S:
            self._signs_since = None
        return True

    def deadline(self) -> float | None:
        times = [greeted_at + GREETING_S for greeted_at in self._greeted.values()]
        if self._signs_since is not None:
            times.append(self._sign_at)
        return min(times, default=None)

    def _greet(self, address: Address, now: float) -> bool:
        if address not in self._greeted and len(self._greeted) >= MAX_NAMESAKES:
            return False
        self._greeted[address] = now
        self._challenges.setdefault(address, self._draw())
        return True

    def _begin_signs(self, incarnation: int, now: float) -> None:
        """A later start is there, or was lately. An earlier one took nobody's ear from this node."""
        if incarnation > self._me.incarnation:
            if self._signs_since is None:
                self._sign_at = now
            self._signs_since = now
