"""Peers of the mesh that discovery introduced to this node: the receivers of everything that all are to hear."""

from __future__ import annotations

from mdl.bounds import MAX_MEMBERS
from mdl.protocol.machine import Effect, Send
from mdl.protocol.messages import Said
from mdl.protocol.vocabulary import PeerInfo, Role


class Introduced:
    """See the module. known: at most MAX_MEMBERS by their ids.

    If there are more, one that has never spoken is forgotten, else the one that has not spoken for longest.
    """

    def __init__(self, own_id: str) -> None:
        self.known: dict[str, PeerInfo] = {}
        self._own_id = own_id
        self._spoken: dict[str, None] = {}  # those that have spoken, the latest last

    def add(self, info: PeerInfo) -> None:
        self.known[info.peer_id] = info
        if len(self.known) > MAX_MEMBERS:  # somebody mentions ever new ones
            others = (peer_id for peer_id in self.known if peer_id not in self._spoken and peer_id != info.peer_id)
            self.forget(next(others, None) or next(iter(self._spoken)))

    def forget(self, peer_id: str) -> None:
        """Forget a peer: it is in the mesh no more."""
        self.known.pop(peer_id, None)
        self._spoken.pop(peer_id, None)

    def note_spoken(self, peer_id: str) -> None:
        """Note that a message of its own has come."""
        if peer_id in self.known:
            self._spoken.pop(peer_id, None)
            self._spoken[peer_id] = None

    def tell(self, message: Said) -> list[Effect]:
        return [Send(peer_id, message) for peer_id in self.known if peer_id != self._own_id]

    def tell_agents(self, *messages: Said) -> list[Effect]:
        """Tell dedicated agents that stand by: they report to nobody, so no agent knows them as members."""
        return [
            Send(peer_id, message)
            for peer_id, info in self.known.items()
            if info.role is Role.AGENT and peer_id != self._own_id
            for message in messages
        ]
