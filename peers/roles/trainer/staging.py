"""A device in the broadcast of a round: it follows the order, stages the result, and hands it on to its children."""

from __future__ import annotations

from mdl.protocol.delta import Contributor, ModelDelta, Vector, check_values
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import BroadcastOrdered, GlobalMessage
from peers.roles.trainer.hops import Hops
from peers.roles.trainer.model_state import Standing
from peers.roles.trainer.round_state import Part
from peers.roles.trainer.voice import Voice


class Staging:
    """See the module. staged_term: the last under which this device has staged a result."""

    def __init__(self, me: Contributor, standing: Standing, voice: Voice, hops: Hops) -> None:
        self.staged_term = 0
        self._me = me
        self._standing = standing
        self._voice = voice
        self._hops = hops

    def take_place(self, part: Part, order: BroadcastOrdered, now: float) -> list[Effect]:
        """Fetch the result from the parent that the order names, or give it to the children."""
        spread, voice = part.spread, self._voice
        if spread.is_outdated(order):
            return []
        if hop := part.incoming:
            if spread.order == order:
                return []  # a late copy: the root of this order was lost, and aggregating goes on
            self._hops.abort(part, hop, now, "the round has its result already")
        staged_before, is_new = spread.report(), spread.order != order
        ask = spread.follow(order, self._me, part.holds.get(0), now)
        self._note_staged(part)
        if spread.staged is None and spread.parent and (ask or voice.ask_at is None):
            voice.ask_at = now
        if ask:
            voice.transfer = None  # what came from the parent before goes no further
        voice.has_changed = voice.has_changed or spread.report() != staged_before
        return [*(spread.confirm() if is_new else ()), *spread.feed(now)]

    def take_result(
        self, part: Part | None, message: GlobalMessage, values: Vector, digest: bytes, now: float
    ) -> list[Effect]:
        """From the parent. Raises RemoteProtocolError if it is not what the order says."""
        if part is None or message.round_id != part.round_id or not part.spread.check(message):
            return []
        check_values(values, self._standing.parameters.size)
        part.spread.stage(ModelDelta(values, message.theta, frozenset(message.contributors)), digest, now)
        self._note_staged(part)
        self._voice.ask_at = self._voice.transfer = None
        self._voice.has_changed = True
        return [*part.spread.confirm(), *part.spread.feed(now)]

    def _note_staged(self, part: Part) -> None:
        """The result may be closed from here on, whatever this device hears of it."""
        if part.spread.staged and part.spread.order:
            self.staged_term = part.spread.order.term
            self._standing.note_further(part.round_id)
