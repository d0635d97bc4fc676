"""One device's place in the broadcast of a round: the order it follows, whom it asks, and the result it has staged.

Staged is not applied: the result counts once a majority has staged it under one order (RoundClosed). Until then a later
order may replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mdl.bounds import MAX_MEMBERS
from mdl.delta import Contributor, ModelDelta, digest_of
from mdl.errors import RemoteProtocolError
from mdl.machine import Send
from mdl.messages import BroadcastOrdered, GlobalMessage, Staged
from mdl.tree import tree_parent


@dataclass
class Spread:
    """See the module. parent: whom this device fetches the result from; None for the root. waiting: its children."""

    order: BroadcastOrdered | None = None
    parent: Contributor | None = None
    staged: ModelDelta | None = None
    digest: bytes = b""
    waiting: set[Contributor] = field(default_factory=set)
    _ballot: tuple[int, int] = (0, 0)

    def is_outdated(self, order: BroadcastOrdered) -> bool:
        return self.order is not None and _ballot_of(order) < _ballot_of(self.order)

    def follow(self, order: BroadcastOrdered, me: Contributor, hold: ModelDelta | None) -> bool:
        """Take the place that the order gives; whether the parent is to be asked now. hold: what this device has."""
        self.order = order
        if self.staged and self._is_result(self.staged, self.digest):
            self._ballot = _ballot_of(order)
            return False
        self.staged, self.digest = None, b""  # the result of an order that has been replaced
        if hold and self._is_result(hold, digest_of(hold.values) if order.digest else b""):
            self.stage(hold)
            return False
        parent = tree_parent(order.order.index(me))
        if parent is None:
            return False
        changed = self.parent != order.order[parent]
        self.parent = order.order[parent]
        return changed

    def check(self, message: GlobalMessage) -> bool:
        """Whether this is the result that is waited for. Raises RemoteProtocolError for one that lies about it."""
        if self.order is None or self.staged:
            return False
        if frozenset(message.contributors) != frozenset(self.order.contributors):
            return False  # the result of an order that has been replaced
        if message.theta != self.order.theta:
            raise RemoteProtocolError(f"a global delta of theta {message.theta}, not {self.order.theta}")
        return True

    def stage(self, result: ModelDelta) -> None:
        """Keep the global delta without applying it. Raises RemoteProtocolError if it is not the one ordered."""
        assert self.order is not None
        digest = digest_of(result.values)
        if self.order.digest and digest != self.order.digest:
            raise RemoteProtocolError("a global delta that does not match the digest of its round")
        self.staged, self.digest, self._ballot = result, digest, _ballot_of(self.order)

    def serve(self, round_id: int, child: Contributor) -> list[Send]:
        """Give the result to a child of the tree, now or when it has come."""
        if self.staged is None:
            if len(self.waiting) < MAX_MEMBERS:
                self.waiting.add(child)
            return []
        self.waiting.discard(child)
        message = GlobalMessage(round_id, self.staged.theta, tuple(sorted(self.staged.contributors)))
        return [Send(child.peer_id, message, self.staged.values)]

    def serve_waiting(self, round_id: int) -> list[Send]:
        if self.staged is None:
            return []
        return [send for child in sorted(self.waiting) for send in self.serve(round_id, child)]

    def report(self) -> Staged | None:
        if self.staged is None:
            return None
        return Staged(self.digest, self.staged.theta, tuple(sorted(self.staged.contributors)), *self._ballot)

    def _is_result(self, delta: ModelDelta, digest: bytes) -> bool:
        assert self.order is not None
        same = delta.contributors == frozenset(self.order.contributors)
        return same and (not self.order.digest or self.order.digest == digest)


def _ballot_of(order: BroadcastOrdered) -> tuple[int, int]:
    return order.term, order.version
