"""Other processes with this node's peer id: its data directory was copied to a second device.

Each side greets the other once, with a challenge. The other returns a mark that only the very same device can make, and
each start of it makes another one. A message alone proves no namesake: somebody may replay an old one of this device
from where it listened then. The machine decides which of the two goes on. The other members have dropped the earlier
start's messages since they heard of the later one (docs/protocol-hops.md, fault rule 4). So it says Hello to all of
them for a while, as a sign of life. An announcement of this node's own last start, which has ended, costs one
unanswered Hello. Pure: `now` is an argument.
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
# An address that does not answer for this long has no peer.
GREETING_S = 10.0
# Signs of life come often until a later namesake that left has been silent for long enough, with some to spare for a
# slow exit. Then they come seldom, for peers that were suspended or cut off meanwhile.
SIGN_EVERY_S = SIGN_PAUSE_S + 0.2
OFTEN_S = 2 * SILENT_S + SIGNS * SIGN_EVERY_S
SELDOM_S = 15.0
LASTING_S = 300.0
# Makes a start's mark: challenge, incarnation of the start -> at most 16 bytes.
Mark: TypeAlias = Callable[[bytes, int], bytes]


class Namesakes:
    """See the module. me: this node. draw: returns a number that nobody can guess, at most 16 bytes."""

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
        """Note a peer with this node's id; return True if it is to be greeted: once per incarnation and address."""
        address = address_of(info)
        if info.incarnation == self._me.incarnation or self._addresses.get(info.incarnation) == address:
            return False
        if info.incarnation not in self._addresses and len(self._addresses) >= MAX_NAMESAKES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[info.incarnation] = address
        self._begin_signs(info.incarnation, now)
        return self._greet(address, now)

    def hear(self, sender: Contributor, now: float) -> None:
        """Note a message in this node's name: its sender may be alive."""
        self._begin_signs(sender.incarnation, now)

    def prove(self, sender: Contributor, answer: bytes) -> bool:
        """Return True, once, if `answer` is this start's mark of a challenge that was sent."""
        right = {self._mark(challenge, sender.incarnation) for challenge in self._challenges.values()}
        if answer not in right or sender.incarnation in self._proven:
            return False
        self._proven.append(sender.incarnation)
        return True

    def answer(self, challenge: bytes) -> bytes:
        """Return this start's mark of a challenge that another one has sent."""
        return self._mark(challenge, self._me.incarnation)

    def challenge(self, address: Address) -> bytes:
        """Return the challenge of the greeting under way; empty if there is none."""
        return self._challenges.get(address, b"")

    def answers(self, address: Address, now: float) -> tuple[bool, bytes]:
        """Return True if a challenge from there is to be answered, and a challenge to send if none was sent lately."""
        if address in self._greeted:
            return True, b""
        return self._greet(address, now), self.challenge(address)

    def address(self, other: Contributor) -> str:
        """Return HOST:PORT, or "" if it is unknown."""
        address = self._addresses.get(other.incarnation)
        return address.endpoint().removeprefix("tcp://") if address else ""

    def unanswered(self, now: float) -> list[Address]:
        """Return the addresses at which a greeting is over, each once."""
        over = [address for address, greeted_at in self._greeted.items() if now - greeted_at >= GREETING_S]
        for address in over:
            del self._greeted[address], self._challenges[address]
        return over

    def greeted(self) -> list[Address]:
        """Return the addresses to which a greeting may still be on its way."""
        return list(self._greeted)

    def is_sign_due(self, now: float) -> bool:
        """Return True if this node is to send a sign of life to all peers now; each call moves the next time on."""
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
        """Begin signs of life for a later start, present or recent. No peer drops our messages for an earlier one."""
        if incarnation > self._me.incarnation:
            if self._signs_since is None:
                self._sign_at = now
            self._signs_since = now
