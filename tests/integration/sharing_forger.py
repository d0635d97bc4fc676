"""A member of a mesh that is nobody's device: it says all that givers and takers say, to everybody, again and again."""

import sys
from pathlib import Path

from mdl.config import MeshSection
from mdl.peers.sharing import Meeting, opened
from mdl.protocol.machine import Finish, PeerFound, Received, Send, StopRequested, Tick
from mdl.protocol.sharing_messages import Offer, PartMessage, PartWanted, WindowsOffered, WindowsRecalled, WindowsSought
from mdl.protocol.vocabulary import Packed

EVERY_S = 0.3


class Forger:
    """number: of the sharing, once the file beside it says so."""

    def __init__(self, me, now):
        self.me, self._next, self._peers, self._times = me, now, set(), 0

    def handle(self, event, now):
        match event:
            case PeerFound(info=info):
                self._peers.add(info.peer_id)
                tell(f"found {info.peer_id}")
            case Received(message=PartMessage() | WindowsOffered()):
                tell("heard windows")
            case StopRequested():
                return [Finish()]
            case Tick():
                return self._forge(now)
        return []

    def deadline(self):
        return self._next

    def _forge(self, now):
        self._next = now + EVERY_S
        if not (path := Path("sharing_id")).exists() or not (text := path.read_text()):
            return []
        number, self._times = bytes.fromhex(text), self._times + 1
        tell(f"has forged {self._times}")
        said = (
            WindowsSought(Offer(1e9), number, False),
            WindowsSought(Offer(1e9)),
            PartWanted(number, 0),
            WindowsRecalled(number),
            WindowsOffered(b"f" * 16, 100, b"d" * 32, 5, 5),
        )
        sent = [Send(peer_id, message) for peer_id in sorted(self._peers) for message in said]
        parts = [Send(peer_id, PartMessage(number, 0), Packed(bytes(100))) for peer_id in sorted(self._peers)]
        return [*sent, *parts]


def tell(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with opened(Meeting(sys.argv[1], MeshSection(loopback=True), "stranger"), Forger, {}) as (_, _, run):
        run()
