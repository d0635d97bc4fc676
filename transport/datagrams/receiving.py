"""The receiving half of a flow: it orders pieces, joins them to messages, and acknowledges packets.

Bounded for anything that a member sends: MOST_AHEAD pieces of a channel, and one message with a header of
MAX_HEADER_BYTES and a payload of MAX_FRAME_BYTES. A message is put together in one piece of memory, so that the bound
counts all the memory held. Pure.
"""

from __future__ import annotations

from math import inf

from mdl.bounds import MAX_HEADER_BYTES
from mdl.errors import RemoteProtocolError
from mdl.transport.datagrams.packets import ACKED_BEFORE, CHANNELS, Ack, Data
from mdl.transport.datagrams.sending import LENGTHS, MOST_AHEAD
from mdl.transport.wire.codec import MAX_FRAME_BYTES

# Packets that are remembered, so that a recorded and repeated one is not accepted again.
_REMEMBERED = 2_048


class _Channel:
    """The pieces of one channel.

    next: place of the missing piece. ahead: pieces that came before it. begun: the bytes of an unfinished message.
    """

    def __init__(self) -> None:
        self.next = 0
        self.ahead: dict[int, Data] = {}
        self.begun = bytearray()

    def take(self, data: Data) -> list[list[bytes]]:
        """Return the messages that this piece completes: each a header, and the payload if there is one."""
        if not self.next <= data.place < self.next + MOST_AHEAD:
            return []
        self.ahead[data.place] = data
        messages = []
        while (piece := self.ahead.pop(self.next, None)) is not None:
            self.next += 1
            self.begun += piece.body
            if len(self.begun) > LENGTHS.size + MAX_HEADER_BYTES + MAX_FRAME_BYTES:
                raise RemoteProtocolError("a message in datagrams that does not end")
            if piece.is_last:
                whole, self.begun = self.begun, bytearray()
                messages.append(_take_apart(memoryview(whole)))
        return messages


class Receiving:
    """Takes packets, gives messages and acknowledgements."""

    def __init__(self) -> None:
        self._channels = [_Channel() for _ in range(CHANNELS)]
        self._largest, self._before, self._came_at = -1, 0, -inf
        self._owes = False

    def is_new(self, number: int, now: float) -> bool:
        """Note a packet; return False if it was here before, or is too old to tell."""
        if number > self._largest:
            shift = number - self._largest
            known = (self._before << 1 | 1) if self._largest >= 0 else 0
            self._before = (known << (shift - 1)) & ((1 << _REMEMBERED) - 1) if shift <= _REMEMBERED else 0
            self._largest, self._came_at = number, now
            return True
        place = self._largest - number - 1
        if not 0 <= place < _REMEMBERED or self._before >> place & 1:
            return False
        self._before |= 1 << place
        return True

    def owe(self) -> None:
        """Note that a packet wants an acknowledgement, even a repeated one: the earlier answer may be lost."""
        self._owes = True

    def take(self, data: Data) -> list[list[bytes]]:
        """Return the messages that this piece completes. Raises RemoteProtocolError for an invalid message."""
        return self._channels[data.channel].take(data)

    def ack(self, now: float) -> Ack | None:
        """Return what there is to acknowledge, once."""
        if not self._owes:
            return None
        self._owes = False
        waited_us = int(1e6 * max(0.0, now - self._came_at))
        return Ack(self._largest, self._before & ((1 << ACKED_BEFORE) - 1), waited_us)


def _take_apart(message: memoryview) -> list[bytes]:
    if len(message) < LENGTHS.size:
        raise RemoteProtocolError(f"a message in datagrams of {len(message)} bytes")
    header_bytes, payload_bytes = LENGTHS.unpack_from(message)
    if LENGTHS.size + header_bytes + payload_bytes != len(message):
        raise RemoteProtocolError("a message in datagrams with lengths that do not fit")
    header = bytes(message[LENGTHS.size : LENGTHS.size + header_bytes])
    return [header, bytes(message[LENGTHS.size + header_bytes :])] if payload_bytes else [header]
