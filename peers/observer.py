"""A node that only looks: asks the agent for its status again and again. Trains nothing, holds nothing."""

from __future__ import annotations

from mdl.delta import Contributor
from mdl.machine import Effect, Event, Finish, PeerFound, Received, Send, StopRequested
from mdl.messages import MeshStatus, PeerInfo, Role, StatusWanted


class Observer:
    """peers: everyone discovery has introduced. status: the last one heard. rounds are remembered by the caller."""

    def __init__(self, me: Contributor, interval_s: float = 0.5) -> None:
        self.me = me
        self.peers: dict[str, PeerInfo] = {}
        self.status: MeshStatus | None = None
        self.agent: str | None = None
        self._interval_s = interval_s
        self._seen_round = 0
        self._ask_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerFound(info=info):
                self.peers[info.peer_id] = info
                if info.role is Role.AGENT:
                    self.agent, self._ask_at = info.peer_id, now
            case Received(message=MeshStatus() as status):
                self.status = status
                self._seen_round = max([self._seen_round, *(summary.round for summary in status.finished)])
            case StopRequested():
                return [Finish()]
        if self.agent and self._ask_at is not None and now >= self._ask_at:
            self._ask_at = now + self._interval_s
            return [Send(self.agent, StatusWanted(self._seen_round))]
        return []

    def deadline(self) -> float | None:
        return self._ask_at
