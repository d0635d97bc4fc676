"""A device in the broadcast of a round: it follows the order, stages the result, and hands it on to its children."""

from __future__ import annotations

import numpy as np

from mdl.bounds import MAX_RATE_MB_S
from mdl.defence.limits import ALTERED_RESULT
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.exchange import SegmentExchange, Uplink
from mdl.peers.roles.trainer.guard import DeltaGuard, Voice
from mdl.peers.roles.trainer.hops import HopsHere
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.roles.trainer.round_state import RoundState
from mdl.protocol.delta import Contributor, PartialSum, check_size, digest_of_result
from mdl.protocol.grid import Sums, Vector
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    GlobalMessage,
    PieceMessage,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.vector_work import DeltaHashed, HashDelta
from mdl.protocol.vocabulary import Staged, Transfer

# A long piece of work is done in quick steps, with messages heard in between.
_BETWEEN_STEPS_S = 0.001

Said = SegmentsReady | PieceMessage | SegmentMessage | SegmentTaken


class Staging:
    """See the module. staged_term: the last term under which this device has staged a result."""

    def __init__(
        self,
        me: Contributor,
        model_state: ModelState,
        voice: Voice,
        hops: HopsHere,
        most_under_way: int,
        guard: DeltaGuard,
    ) -> None:
        self.staged_term = 0
        self._me = me
        self._model_state = model_state
        self._voice = voice
        self._hops = hops
        self._most_under_way = most_under_way
        self._guard = guard
        self.uplink = Uplink()

    def take_place(self, part: RoundState, order: BroadcastOrdered, now: float) -> list[Effect]:
        """Fetch the result from the parent that the order names, or give it to the children."""
        broadcast, voice = part.broadcast, self._voice
        if broadcast.is_outdated(order) or broadcast.is_forgetful(order):
            return []
        if hop := part.incoming:
            if broadcast.order == order:
                return []  # a late copy: the root of this order was lost, and aggregating goes on
            self._hops.abort(part, hop, now, "the round has its result already")
        staged_before, is_new = broadcast.report(), broadcast.order != order
        exchange, hold = broadcast.exchange, None if part.lacks_own else part.hold
        ask = broadcast.follow(order, self._me, hold, now)
        effects: list[Effect] = []
        if exchange and exchange.is_in_place and broadcast.exchange is not exchange:
            part.is_spent, effects = True, [*part.recall()]
        if staged_before and broadcast.staged is None and self._replaces(order, staged_before):
            self._model_state.note_replaced()
        self._note_staged(part)
        if broadcast.staged is None and broadcast.parent and (ask or voice.ask_at is None):
            voice.ask_at = now
        if ask:
            voice.transfer = None  # the transfer from the parent before goes no further
        voice.has_changed = voice.has_changed or broadcast.report() != staged_before
        if is_new and order.owns and broadcast.staged is None:
            return effects + self._begin_exchange(part, order, now)
        return [
            *effects,
            *broadcast.name(broadcast.made),
            *(broadcast.confirm() if is_new else ()),
            *broadcast.feed(now),
        ]

    def take_own(self, part: RoundState, now: float) -> list[Effect]:
        """Take back the own delta after a result had taken its place: an exchange that waits goes on, or begins."""
        broadcast, own = part.broadcast, part.hold
        assert own is not None
        if exchange := broadcast.exchange:
            return [*exchange.take_own(own), *self._name_if_whole(part, exchange)]
        order = broadcast.order
        if order is None or not order.owns or broadcast.has_result:
            return []
        return self._begin_exchange(part, order, now)

    def take_name(self, part: RoundState | None, named: DeltaHashed, now: float) -> list[Effect]:
        """Stage the mean that this digest names. Raises RemoteProtocolError if it is not the one ordered."""
        if part is None or part.round_id != named.round_id:
            return []
        if part.broadcast.take_name(named, now):
            self._voice.want(now)
        if part.broadcast.staged is None:
            return []
        self._note_staged(part)
        self._voice.transfer, self._voice.has_changed = None, True
        return [*part.broadcast.confirm(), *part.broadcast.feed(now)]

    def take_result(
        self,
        part: RoundState | None,
        sender: Contributor,
        message: GlobalMessage,
        values: Vector,
        digest: bytes,
        checksum: int,
        now: float,
    ) -> list[Effect]:
        """Take the result, or a gap of it. Raises RemoteProtocolError if it is not what the order says.

        digest, checksum: of the values.
        """
        if part is None or message.round_id != part.round_id or not part.broadcast.check(sender, message):
            return []
        sums = values.view(np.int32)
        if message.stop:
            return [*self._fill_gap(part, message, sums, now)]
        check_size(sums, self._model_state.parameters.size)
        assert part.broadcast.order is not None
        if part.broadcast.order.checksum not in (None, checksum):
            altered = f"{ALTERED_RESULT}{part.round_id}"
            if part.broadcast.is_of_order(message):
                self._guard.accuse([sender], altered)
            raise RemoteProtocolError(altered)
        room = part.broadcast.order.room
        result = PartialSum(sums, message.theta, frozenset(message.contributors), room, message.partial)
        try:
            part.broadcast.stage(result, digest_of_result(digest, result), now)
        except RemoteProtocolError:
            if part.broadcast.is_of_order(message):
                self._guard.accuse([sender], f"{ALTERED_RESULT}{part.round_id}")
            raise
        self._note_staged(part)
        self._voice.ask_at = self._voice.transfer = None
        self._voice.has_changed = True
        return [*part.broadcast.confirm(), *part.broadcast.feed(now)]

    def _fill_gap(self, part: RoundState, message: GlobalMessage, values: Sums, now: float) -> list[HashDelta]:
        """Fill a gap that an exchange has left. After the last one the digest tells if it is the result."""
        gapped, order = part.broadcast.gapped, part.broadcast.order
        if gapped is None or order is None or not gapped.fill(message, values):
            return []
        self._voice.want(now)
        if gapped.gaps:
            return []
        contributors = frozenset(message.contributors)
        return part.broadcast.name(PartialSum(gapped.values, message.theta, contributors, order.room, message.partial))

    def hear_segment(
        self,
        part: RoundState | None,
        sender: Contributor,
        message: Said,
        values: Vector | None,
        checksum: int,
        now: float,
    ) -> list[Effect]:
        """Hear a word of this device's exchange. Raises RemoteProtocolError if it is not what it should be.

        checksum: of the values.
        """
        exchange = part.broadcast.exchange if part else None
        if part is None or exchange is None or message.round_id != part.round_id:
            return []
        if (message.term, message.version) != (exchange.order.term, exchange.order.version):
            return []
        if type(message) is SegmentsReady:
            return [*exchange.hear_ready(sender, message, now), *self._name_if_whole(part, exchange)]
        if type(message) is SegmentTaken:
            sends = exchange.hear_taken(sender, message, now)
            if exchange.uplink.mb_s and not self._voice.link_mb_s:
                self._note_link(exchange)
                self._voice.has_changed = True  # the segments were planned without it: the agent may plan them anew
            return [*sends]
        assert values is not None
        if type(message) is PieceMessage:
            sends = exchange.take_piece(sender, message, values, now, checksum)
        else:
            assert type(message) is SegmentMessage
            sends = exchange.take_result(sender, message, values, now, checksum)
        self._voice.transfer = Transfer(sender.peer_id, exchange.result.received_bytes, exchange.result.values.nbytes)
        return [*sends, *self._name_if_whole(part, exchange)]

    def say_again(self, part: RoundState, exchange: SegmentExchange, now: float) -> list[Effect]:
        """Say again what may have been lost of an exchange; no more once everybody has all from this device."""
        if exchange.result.follow():
            self._voice.ask_at = now + _BETWEEN_STEPS_S
            return []
        if exchange.is_over():
            self._voice.stop_asking()
        return [*exchange.on_time(now), *self._name_if_whole(part, exchange)]

    def _begin_exchange(self, part: RoundState, order: BroadcastOrdered, now: float) -> list[Effect]:
        exchange, size = part.broadcast.exchange, self._model_state.parameters.size
        if part.is_spent:
            return []  # it begins when the own delta is here again
        self._voice.ask_at = now + self._voice.retry_s
        if exchange:
            sends = exchange.go_on(order)
            if exchange.result.behind:
                self._voice.ask_at = now + _BETWEEN_STEPS_S
            recalls = part.recall() if exchange.lacks_own else []
            return [*recalls, *sends, *self._name_if_whole(part, exchange)]
        own, most, guard = part.own_hold(self._me), self._most_under_way, self._guard
        # The own delta is not lent while pieces of an exchange that was left may still be read from it, on their way.
        retry_s, lends = self._voice.retry_s, part.may_lend and not guard.judges and part.broadcast.is_handed_on()
        grid = self._model_state.grid(order.room) if guard.judges else None
        exchange = SegmentExchange(
            order, self._me, own, size, retry_s, most, self.uplink, guard, lends, grid, part.checksums
        )
        part.broadcast.exchange = exchange
        return [*exchange.begin(), *self._name_if_whole(part, exchange)]

    def _name_if_whole(self, part: RoundState, exchange: SegmentExchange) -> list[HashDelta]:
        if (
            not (exchange.is_whole and exchange.is_checked)
            or part.broadcast.has_result
            or exchange.order != part.broadcast.order
        ):
            return []  # the last case: an order that goes on with it has been refused
        order, partial = exchange.order, exchange.partial
        contributors = frozenset(order.contributors)
        return part.broadcast.name(PartialSum(exchange.result.values, order.theta, contributors, order.room, partial))

    def _replaces(self, order: BroadcastOrdered, staged: Staged) -> bool:
        """Return True if an order is of another result: it names one, or a later agent, which asked a quorum, gives it.

        Else it may be of the same one, which its agent cannot name before it has heard of it.
        """
        return bool(order.digest) or order.term > staged.term

    def _note_staged(self, part: RoundState) -> None:
        """Note the staged result: it may be closed from here on, whatever this device hears of it."""
        if exchange := part.broadcast.exchange:
            self._note_link(exchange)
        if (staged := part.broadcast.report()) and part.broadcast.order:
            self.staged_term = part.broadcast.order.term
            self._model_state.note_staged(staged)

    def _note_link(self, exchange: SegmentExchange) -> None:
        """Note the speed of this device's link for its reports, if this exchange has shown it."""
        if exchange.uplink.mb_s:
            self._voice.link_mb_s = min(exchange.uplink.mb_s, MAX_RATE_MB_S)
