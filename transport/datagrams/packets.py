"""A datagram of a flow: sealed by a key that only its receiver and its sender have, and one of three kinds inside.

Outside, in clear: the flow's id, by which the receiver finds the key, and the packet's number. Then ChaCha20-Poly1305
over the kind and its content (RFC 8439). A number is used once for a key, so that it is the nonce. The receiver draws a
key for one sender. Keys travel by the link that they are for, which is encrypted (CURVE).
For any bytes, `Seal.open` and `read` return a member's frame or raise RemoteProtocolError. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from mdl.errors import RemoteProtocolError

KEY_BYTES, FLOW_ID_BYTES = 32, 8
# With all headers it stays below 1,280 bytes, which every IPv6 link carries; IPv4's smallest are rare (RFC 8200).
FRAGMENT_BYTES = 1_168
# An acknowledgement tells of the last packet and so many before it.
ACKED_BEFORE = 256
# The size of our largest packet.
LARGEST_BYTES = 1_280
CHANNELS = 2
_OUTSIDE = struct.Struct("!8sQ")
_DATA = struct.Struct("!BBBI")
_ACK = struct.Struct("!BQI")
_DATA_KIND, _ACK_KIND, _PROBE_KIND = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a message, FRAGMENT_BYTES long but for the last one.

    place: among all pieces of its channel. is_last: of its message.
    """

    channel: int
    place: int
    is_last: bool
    body: bytes


@dataclass(frozen=True)
class Ack:
    """Packet `largest` is here; bit i of `before`: so is largest - 1 - i. waited_us: since `largest` came."""

    largest: int
    before: int
    waited_us: int


@dataclass(frozen=True)
class Probe:
    """Asks for an acknowledgement, and nothing else."""


Frame: TypeAlias = Data | Ack | Probe


class Seal:
    """One direction of a flow."""

    def __init__(self, flow_id: bytes, key: bytes) -> None:
        self.flow_id = flow_id
        self._cipher = ChaCha20Poly1305(key)

    def close(self, number: int, frame: Frame) -> bytes:
        outside = _OUTSIDE.pack(self.flow_id, number)
        return outside + self._cipher.encrypt(_nonce(number), write(frame), outside)

    def open(self, datagram: bytes) -> tuple[int, Frame]:
        """Return the packet's number and its frame. Raises RemoteProtocolError."""
        _, number = _OUTSIDE.unpack_from(datagram)
        try:
            inside = self._cipher.decrypt(_nonce(number), datagram[_OUTSIDE.size :], datagram[: _OUTSIDE.size])
        except InvalidTag:
            raise RemoteProtocolError("a datagram that its flow's key does not open") from None
        return number, read(inside)


def flow_id_of(datagram: bytes) -> bytes | None:
    """Return the flow id in clear; None if the datagram is too short or too long for any."""
    return datagram[:FLOW_ID_BYTES] if _OUTSIDE.size < len(datagram) <= LARGEST_BYTES else None


def write(frame: Frame) -> bytes:
    match frame:
        case Data():
            return _DATA.pack(_DATA_KIND, frame.channel, frame.is_last, frame.place) + frame.body
        case Ack():
            head = _ACK.pack(_ACK_KIND, frame.largest, min(frame.waited_us, 0xFFFFFFFF))
            return head + frame.before.to_bytes(ACKED_BEFORE // 8, "little").rstrip(b"\0")
        case Probe():
            return bytes([_PROBE_KIND])


def read(inside: bytes) -> Frame:
    """Return the frame in these bytes. Raises RemoteProtocolError if they are none of the three kinds."""
    kind = inside[0] if inside else 0
    if kind == _DATA_KIND and _DATA.size < len(inside) <= _DATA.size + FRAGMENT_BYTES:
        _, channel, is_last, place = _DATA.unpack_from(inside)
        is_whole = (
            is_last or len(inside) == _DATA.size + FRAGMENT_BYTES
        )  # many small ones would cost more than they hold
        if channel < CHANNELS and is_last in (0, 1) and is_whole:
            return Data(channel, place, bool(is_last), inside[_DATA.size :])
    elif kind == _ACK_KIND and _ACK.size <= len(inside) <= _ACK.size + ACKED_BEFORE // 8:
        _, largest, waited_us = _ACK.unpack_from(inside)
        return Ack(largest, int.from_bytes(inside[_ACK.size :], "little"), waited_us)
    elif kind == _PROBE_KIND and len(inside) == 1:
        return Probe()
    raise RemoteProtocolError(f"a packet of kind {kind} with {len(inside)} bytes")


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
