"""Nodes outside the mesh: a device that nobody has met yet, and a node that only looks.

`FirstMeeting` says that the device is there, and ends as soon as another one is. It stands in for the trainer while
there is nobody to train with, so that the model, and the library that computes with it, need not be loaded before
(`peers/edge/node.py`).

`Observer` asks the leader for its status again and again. It trains nothing and holds nothing. Any device may be the
agent: all are asked until one has answered, and again if that one has fallen silent. Observers that serve a page tell
each other its address.
"""

from __future__ import annotations

from mdl.bounds import MAX_MEMBERS, parse_host
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, NameTaken, PeerFound, PeerRevoked, Received, Send, StopRequested
from mdl.protocol.status_messages import MeshStatus, PageServed, StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role

# The phase that observers are told.
PHASE = "waits for somebody to train with; the model is loaded then"


class FirstMeeting:
    """met: the device that ended it; None if it was stopped, or if another one has this device's name.

    lonely_at: a Tick then lets the driver say that nobody was found yet.
    """

    def __init__(self, me: Contributor, policy: str, lonely_at: float) -> None:
        self.me = me
        self.met: PeerInfo | None = None
        self._policy = policy
        self._lonely_at: float | None = lonely_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._lonely_at is not None and now >= self._lonely_at:
            self._lonely_at = None
        match event:
            case PeerFound(info=info) if info.role is not Role.OBSERVER:
                self.met = info
                return [Finish()]
            case NameTaken():
                return [Finish()]  # the trainer finds out which of them leaves
            case PeerRevoked(peer_id=out) if out == self.me.peer_id:
                return [Finish()]  # and that it may not train here
            case StopRequested():
                return [Finish(exit_code=130)]
            case Received(sender=sender, message=StatusWanted()):
                return [Send(sender.peer_id, MeshStatus(0, 0, 0, PHASE, self._policy, agent=self.me.peer_id))]
        return []

    def deadline(self) -> float | None:
        return self._lonely_at


# An agent that has not answered for so long may have been succeeded by another one.
_SILENT_S = 2.0
# Interval at which observers tell each other of their pages, and age at which a silent one is forgotten: three lost.
_TELL_PAGE_S = 5.0
_PAGE_GONE_S = 16.0
# Other observers that are known: more pages than anybody opens.
_MOST_OBSERVERS = 64


class Observer:
    """peers: all that discovery has introduced. status: the last one heard. The caller remembers rounds.

    interval_s: between two questions; may change at any time. page_port: of the page that this observer serves, which
    others can reach; 0: none. heard_at: time at which the status came.
    """

    def __init__(self, me: Contributor, interval_s: float = 0.5, page_port: int = 0) -> None:
        self.me = me
        self.peers: dict[str, PeerInfo] = {}
        self.status: MeshStatus | None = None
        self.agent: str | None = None
        self.interval_s = interval_s
        self.page_port = page_port
        self.heard_at = 0.0
        self._seen_round = 0
        self._ask_at: float | None = None
        self._observers: dict[str, PeerInfo] = {}
        self._pages: dict[str, tuple[str, float]] = {}
        self._tell_at = 0.0

    def pages(self, now: float) -> tuple[str, ...]:
        """Return the addresses of the pages that others serve, as http://HOST:PORT."""
        return tuple(sorted(address for address, heard_at in self._pages.values() if now - heard_at < _PAGE_GONE_S))

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerFound(info=info) if info.role is Role.OBSERVER:
                self._observers[info.peer_id] = info
                if len(self._observers) > _MOST_OBSERVERS:
                    gone = next(iter(self._observers))
                    del self._observers[gone]
                    self._pages.pop(gone, None)
                return [Send(info.peer_id, PageServed(self.page_port))] if self.page_port else []
            case PeerFound(info=info):
                self.peers[info.peer_id] = info
                if len(self.peers) > MAX_MEMBERS:
                    del self.peers[next(iter(self.peers))]
                self._ask_at = now
            case Received(sender=sender, message=PageServed(port=port)) if sender.peer_id in self._observers:
                if _has_page(host := self._observers[sender.peer_id].host):
                    self._pages[sender.peer_id] = f"http://{host}:{port}", now
            case Received(sender=sender, message=MeshStatus() as status):
                if self.status and status.term < self.status.term and now - self.heard_at < _SILENT_S:
                    return []  # it led before, and does not know yet that another one does
                self.status, self.agent, self.heard_at = status, sender.peer_id, now
                self._seen_round = max([self._seen_round, *(summary.round for summary in status.finished)])
            case PeerRevoked(peer_id=peer_id, reason=reason) if peer_id == self.me.peer_id:
                return [Finish(reason, 2)]
            case PeerRevoked(peer_id=peer_id):
                self.peers.pop(peer_id, None)
                self._observers.pop(peer_id, None)
            case StopRequested():
                return [Finish()]
        return [*self._ask(now), *self._tell_page(now)]

    def deadline(self) -> float | None:
        due = [self._ask_at] if self._ask_at is not None else []
        return min([*due, self._tell_at] if self.page_port and self._observers else due, default=None)

    def _ask(self, now: float) -> list[Effect]:
        if self._ask_at is None or now < self._ask_at:
            return []
        self._ask_at = now + self.interval_s
        known = self.agent is not None and now - self.heard_at < _SILENT_S
        asked = [self.agent] if known and self.agent else list(self.peers)
        return [Send(peer_id, StatusWanted(self._seen_round)) for peer_id in asked]

    def _tell_page(self, now: float) -> list[Effect]:
        if not self.page_port or now < self._tell_at:
            return []
        self._tell_at = now + _TELL_PAGE_S
        return [Send(peer_id, PageServed(self.page_port)) for peer_id in self._observers]


def _has_page(host: str) -> bool:
    """Return True for an IPv4 address: a page's address goes into a policy of the page, which takes no other."""
    return bool(host) and parse_host(host).version == 4
