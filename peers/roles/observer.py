"""A node that only looks: asks whoever leads for its status again and again. Trains nothing, holds nothing.

Any device may be the agent. As long as none has answered, or the one that did has fallen silent, all are asked.
"""

from __future__ import annotations

from mdl.bounds import MAX_MEMBERS
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, PeerFound, Received, Send, StopRequested
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role

# An agent that has not answered for so long may have been succeeded by another one.
_SILENT_S = 2.0


class Observer:
    """peers: everyone discovery has introduced. status: the last one heard. rounds are remembered by the caller."""

    def __init__(self, me: Contributor, interval_s: float = 0.5) -> None:
        self.me = me
        self.peers: dict[str, PeerInfo] = {}
        self.status: MeshStatus | None = None
        self.agent: str | None = None
        self._interval_s = interval_s
        self._seen_round = 0
        self._heard_at = 0.0
        self._ask_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerFound(info=info) if info.role is not Role.OBSERVER:
                self.peers[info.peer_id] = info
                if len(self.peers) > MAX_MEMBERS:
                    del self.peers[next(iter(self.peers))]
                self._ask_at = now
            case Received(sender=sender, message=MeshStatus() as status):
                if self.status and status.term < self.status.term and now - self._heard_at < _SILENT_S:
                    return []  # it led before, and does not know yet that another one does
                self.status, self.agent, self._heard_at = status, sender.peer_id, now
                self._seen_round = max([self._seen_round, *(summary.round for summary in status.finished)])
            case StopRequested():
                return [Finish()]
        if self._ask_at is None or now < self._ask_at:
            return []
        self._ask_at = now + self._interval_s
        known = self.agent is not None and now - self._heard_at < _SILENT_S
        asked = [self.agent] if known and self.agent else list(self.peers)
        return [Send(peer_id, StatusWanted(self._seen_round)) for peer_id in asked]

    def deadline(self) -> float | None:
        return self._ask_at
