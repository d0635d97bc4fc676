"""Messages that are repeated until a report shows that they were heard, at most once every `retry_s`."""

from __future__ import annotations

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
        self._said: dict[tuple[str, AgentMessage], float] = {}

    def say(self, peer: Contributor, message: AgentMessage, now: float) -> list[Effect]:
        """Return the message to send, or nothing if it was said to this peer a moment ago."""
        key = (peer.peer_id, message)
        if now - self._said.get(key, -inf) < self._retry_s:
            return []
        self._said[key] = now
        return [Send(peer.peer_id, cast(Said, message))]

    def clear(self) -> None:
        self._said.clear()
