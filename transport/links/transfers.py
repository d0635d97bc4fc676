"""Bulk data of one node, both directions: it takes what a link delivers, and returns what has to be sent.

`mdl.transport.links.mesh_links` and `mdl.transport.links.hub` route frames differently; the frames mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zmq

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.checksum import checksum_of
from mdl.protocol.machine import Received
from mdl.protocol.messages import ASKS, CARRIERS, PACKED, SEGMENTS, Said
from mdl.protocol.round_messages import PieceMessage, SegmentMessage
from mdl.protocol.vocabulary import Bulk, Packed
from mdl.transport.limits import LogLimit
from mdl.transport.wire.bulk import Outgoing, OutgoingTransfers, Step, pack_segment, read_segment
from mdl.transport.wire.codec import (
    ChunkSent,
    ChunksWanted,
    CodeTold,
    Envelope,
    FlowAnswered,
    FlowOffered,
    RosterTold,
    TransferDropped,
    TransferEnded,
    TransferOffered,
)
from mdl.transport.wire.incoming import HashThread, IncomingTransfers

# The stream of a segment's values: beside the chunks, so that no report waits behind them.
_SEGMENT_STREAM = 0
# Packed results are kept up to so many bytes: their devices ask for them at about the same time.
_MOST_KEPT_BYTES = 1 << 21


class Transfers:
    """The bulk transfers of one node.

    max_bytes: the most that is ever accepted at once. lines: the log of refusals. is_ahead: see `bulk`.
    """

    def __init__(self, max_bytes: int, lines: LogLimit, is_ahead: bool = True) -> None:
        self._lines = lines
        self._outgoing = OutgoingTransfers(is_ahead)
        self._hashes = HashThread()
        self._incoming = IncomingTransfers(max_bytes, self._hashes.new)
        self._packed: dict[SegmentMessage, memoryview] = {}

    def __len__(self) -> int:
        """Return the number of transfers that this node offered and that have not all arrived."""
        return len(self._outgoing)

    def send(self, receiver: str, message: Said, values: Bulk | None, now: float) -> list[Step]:
        """Return a message as it leaves. Raises LocalProtocolError unless it has just the values that it carries."""
        if isinstance(message, CARRIERS):
            if values is None:
                raise LocalProtocolError(f"{type(message).__name__} without its values")
            if isinstance(values, Packed) is not isinstance(message, PACKED):
                raise LocalProtocolError(f"{type(message).__name__} with {type(values).__name__}")
            return self._outgoing.offer(receiver, message, values, now)
        if isinstance(message, SEGMENTS):
            return [Outgoing(receiver, message, self._segment(message, values), _SEGMENT_STREAM)]
        if isinstance(message, ASKS):
            self._incoming.ask(receiver, now)
        if values is not None:
            raise LocalProtocolError(f"{type(message).__name__} carries no values")
        return [Outgoing(receiver, message)]

    def _segment(self, message: PieceMessage | SegmentMessage, values: Bulk | None) -> memoryview:
        """Return a segment's values as they travel; a packed result is kept for all that get it."""
        if not (message.is_packed and isinstance(message, SegmentMessage)):
            return pack_segment(values, message.is_packed)
        if message not in self._packed:
            if sum(map(len, self._packed.values())) > _MOST_KEPT_BYTES:
                self._packed.clear()
            self._packed[message] = pack_segment(values, is_packed=True)
        return self._packed[message]

    def take(self, envelope: Envelope, frames: Sequence[zmq.Frame], now: float) -> list[Step]:
        """Handle a checked envelope and its frames, the header first. Raises RemoteProtocolError."""
        sender = envelope.sender
        match envelope.body:
            case TransferOffered() as offered:
                return self._incoming.on_offered(sender, offered, now)
            case ChunkSent() as chunk:
                return self._incoming.on_chunk(sender, chunk, frames[1].buffer, now)
            case ChunksWanted() as wanted:
                return self._outgoing.on_wanted(sender, wanted, now)
            case TransferDropped() as dropped:
                self._incoming.on_dropped(sender, dropped)
            case TransferEnded() as ended:
                if reason := self._outgoing.on_ended(sender, ended):
                    self._lines.warning(now, sender.peer_id, "%s refused a transfer: %s", sender.peer_id, reason)
            case body if isinstance(body, SEGMENTS):
                values = read_segment(frames[1].buffer, body.is_packed)
                return [Received(sender, body, values, checksum=checksum_of(values.view(np.int32), body.start))]
            case body if isinstance(body, CARRIERS):
                raise RemoteProtocolError(f"{type(body).__name__} without its values")
            case RosterTold() | CodeTold() | FlowOffered() | FlowAnswered():
                raise RemoteProtocolError(f"{type(envelope.body).__name__} where there is no mesh")
            case body:
                return [Received(sender, body)]
        return []

    def close(self) -> None:
        self._hashes.close()

    def forget(self, receiver: str) -> None:
        """Drop what was promised to a receiver that was restarted since."""
        self._outgoing.forget(receiver)

    def forget_all_of(self, peer_id: str) -> None:
        """Drop all transfers to and from this peer."""
        self._outgoing.forget(peer_id)
        self._incoming.forget(peer_id)

    def on_time(self, now: float) -> list[Step]:
        return [*self._outgoing.on_time(now), *self._incoming.on_time(now)]

    def deadline(self) -> float | None:
        times = [part.deadline() for part in (self._outgoing, self._incoming)]
        return min((time for time in times if time is not None), default=None)


def check_frames(envelope: Envelope, frames: Sequence[zmq.Frame]) -> None:
    """Raise RemoteProtocolError unless a chunk or segment has one frame beside its header, and all else none."""
    if len(frames) > 2 or (len(frames) == 2) != isinstance(envelope.body, (ChunkSent, *SEGMENTS)):
        raise RemoteProtocolError(f"{type(envelope.body).__name__} with {len(frames) - 1} frames beside it")
