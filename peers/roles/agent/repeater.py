"""Messages that are repeated until a report shows that they were heard, at most once every `retry_s`."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import cast

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Send
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import AgentMessage


class Repeater:
    """The time at which each message was last said to each peer. `clear` forgets all, at the start of every round."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._said: dict[AgentMessage, dict[str, float]] = {}

    def say(self, peer: Contributor, message: AgentMessage, now: float) -> list[Effect]:
        """Return the message to send, or nothing if it was said to this peer a moment ago."""
        return self.say_to_all((peer,), message, now)

    def say_to_all(self, peers: Iterable[Contributor], message: AgentMessage, now: float) -> list[Effect]:
        """Return the message for each of these peers to which it was not said a moment ago.

        It is looked up once: that takes as long as the message is, so it may take as long as the mesh has devices.
        """
        said = self._said.setdefault(message, {})
        due = [peer.peer_id for peer in peers if now - said.get(peer.peer_id, -inf) >= self._retry_s]
        said.update(dict.fromkeys(due, now))
        return [Send(peer_id, cast(Said, message)) for peer_id in due]

    def clear(self) -> None:
        self._said.clear()
