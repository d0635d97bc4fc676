"""A device that nobody has met yet: it says that it is there, and ends as soon as another one is.

It stands in for the trainer while there is nobody to train with, so that the model, and the library that computes with
it, need not be loaded before (`peers/edge/small/waiting.py`).
"""

from __future__ import annotations

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, NameTaken, PeerFound, PeerRevoked, Received, Send, StopRequested
from mdl.protocol.status_messages import MeshStatus, StatusWanted
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
