"""The hops of one device: a receiver fetches a partial sum, merges it and decides; a sender gives its own away.

The receiver decides a hop once, for ever (docs/protocol-hops.md, fault rule 1). A sender keeps what it gave away until
the round is over.
"""

from __future__ import annotations

import logging

import numpy as np

from mdl.bounds import MAX_HOPS, printable
from mdl.defence.limits import OwnDeltaSeen
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.guard import DeltaGuard, Voice
from mdl.peers.roles.trainer.round_state import RoundState
from mdl.protocol.delta import THETA_ROUNDING, Contributor, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Effect, Send
from mdl.protocol.round_messages import NOTHING_CAME, SUSPECT, DeltaMessage, DeltaWanted, HopCancelled, HopOrdered
from mdl.protocol.vector_work import DeltasMerged, MergeDeltas
from mdl.protocol.vocabulary import HopDecision, HopOutcome

logger = logging.getLogger(__name__)


class HopsHere:
    """See the module. stall_s: a hop that has brought nothing for this time is given up."""

    def __init__(self, voice: Voice, stall_s: float, guard: DeltaGuard) -> None:
        self._voice = voice
        self._guard = guard
        self._stall_s = stall_s

    def fetch(self, part: RoundState, order: HopOrdered, now: float) -> list[Effect]:
        """Get ready for the sender's partial sum (as receiver), or abort at once, with the reason.

        If a result has taken the own delta's place, recall that first; the agent says the order again.
        """
        if order.hop_id in part.decisions or part.is_receiving(order.hop_id):
            return []
        if problem := part.cannot_receive(order):
            self.abort(part, order, now, problem)
            return []
        if part.lacks_own:
            return [*part.recall()]
        part.incoming, part.incoming_since, part.heard_at, part.is_merging = order, now, now, False
        # The agent has given the exchange up; the own delta is merged into another one from here on.
        part.broadcast.exchange = None
        self._voice.want(now)
        return []

    def ask(self, part: RoundState, order: HopOrdered, now: float) -> list[Effect]:
        """Ask for the partial sum again (as receiver), as long as it may still come."""
        if now - part.heard_at >= self._stall_s:
            self.abort(part, order, now, f"{NOTHING_CAME} for {self._stall_s:g} s")
            return []
        return [Send(order.sender.peer_id, DeltaWanted(part.round_id, part.attempt, order.hop_id))]

    def serve(self, part: RoundState | None, receiver: Contributor, wanted: DeltaWanted) -> list[Effect]:
        """Give the partial sum to this hop (as sender), and to no other until it is released. See also `fetch`."""
        if part is None or part.attempt != wanted.attempt or not part.is_member(receiver, wanted.round_id):
            return []
        if part.lacks_own and not part.broadcast.has_result:
            return [*part.recall()]
        if part.hold is None or not part.give(wanted.hop_id, receiver):
            return []
        self._voice.has_changed = True  # if the receiver is lost now, the agent must not take this for a free holder
        contributors = tuple(sorted(part.hold.contributors))
        message = DeltaMessage(part.round_id, wanted.hop_id, part.hold.theta, contributors)
        return [Send(receiver.peer_id, message, part.hold.values.view(np.float32))]

    def merge(
        self, part: RoundState | None, sender: Contributor, message: DeltaMessage, values: Vector, now: float
    ) -> list[Effect]:
        """Merge what came (as receiver). Raises RemoteProtocolError for what is refused."""
        if part is None or message.round_id != part.round_id or part.incoming is None or part.is_merging:
            return []
        order, mine = part.incoming, part.hold
        if mine is None or (order.hop_id, order.sender) != (message.hop_id, sender):
            return []  # the first: the round's result came first, and is being applied
        theirs = PartialSum(values.view(np.int32), message.theta, frozenset(message.contributors), part.room)
        try:
            _check_theta(order, message.theta)
            part.check_incoming(mine, theirs)
        except RemoteProtocolError as error:
            self.abort(part, order, now, f"refused: {error}")
            raise
        part.is_merging, part.theirs = True, theirs.contributors
        self._voice.stop_asking()
        is_own, limits = len(mine.contributors) == 1, order.limits
        check = self._guard.check(part.room, theirs.contributors, is_own, limits, order.is_look)
        return [MergeDeltas(part.round_id, order.hop_id, mine, theirs, check, order.is_look, order.checksum)]

    def take_merged(self, part: RoundState | None, done: DeltasMerged, now: float) -> None:
        """Hold the sum of both from here on (as receiver). Raises RemoteProtocolError for what is refused."""
        if part is None or part.round_id != done.round_id or not part.is_receiving(done.hop_id):
            return
        order = part.incoming
        assert order is not None
        self._guard.note(part.theirs, done)
        seen = self._guard.tell(part.theirs, done.marks)
        if order.is_look and not done.problem:
            self._decide(part, order, HopOutcome.LOOKED, now, "", seen=seen)
            return
        if done.merged is None:
            if done.is_altered:
                self._guard.accuse([order.sender], done.problem)
            is_suspect = done.verdict.is_refused or done.is_altered
            reason = f"{SUSPECT if is_suspect else 'refused: '}{done.problem}"
            self._decide(part, order, HopOutcome.ABORTED, now, reason, seen=seen)
            raise RemoteProtocolError(done.problem)
        part.hold = done.merged
        clipped = f"merged to {done.verdict.scale:.0%}: {done.verdict.reason}" if done.verdict.scale < 1.0 else ""
        self._decide(part, order, HopOutcome.MERGED, now, clipped, done.merged.values.nbytes, seen)

    def abort(self, part: RoundState, order: HopOrdered | HopCancelled, now: float, reason: str) -> None:
        """Abort the hop (as receiver): the sender may hold its partial sum again."""
        self._decide(part, order, HopOutcome.ABORTED, now, reason)

    def _decide(
        self,
        part: RoundState,
        order: HopOrdered | HopCancelled,
        outcome: HopOutcome,
        now: float,
        reason: str,
        size_bytes: int = 0,
        seen: OwnDeltaSeen | None = None,
    ) -> None:
        hop_id = order.hop_id
        if hop_id in part.decisions:
            return
        if len(part.decisions) >= MAX_HOPS:
            raise RemoteProtocolError(f"more than {MAX_HOPS} hops of one round for this device")
        seconds = 0.0
        if part.is_receiving(hop_id):
            seconds = now - part.incoming_since
            part.incoming, part.is_merging = None, False
            self._voice.stop_asking()
        decision = HopDecision(hop_id, order.sender, outcome, seconds, size_bytes, printable(reason), seen)
        part.decisions[hop_id] = decision
        self._voice.transfer, self._voice.has_changed = None, True
        logger.info("hop %d %s %s", hop_id, outcome.value, reason)


def _check_theta(order: HopOrdered, theta: float) -> None:
    """Raise RemoteProtocolError for a partial sum with another theta than its sender has told the agent."""
    if order.theta and abs(theta - order.theta) > THETA_ROUNDING * order.theta:
        raise RemoteProtocolError(
            f"a delta of {order.sender.peer_id} has theta {theta:g}, where it had told {order.theta:g}"
        )
