"""Echo requests (ping, RFC 792) of chosen sizes that no router may cut: how long they take, how many get lost.

By a datagram socket where the system allows it (net.ipv4.ping_group_range), else by a raw one, for which one is root.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass

# IPv4 and ICMP headers of an echo request.
HEADERS_BYTES = 28
_REQUEST, _REPLY = 8, 0
_HEADER = struct.Struct("!BBHHH")
_DONT_FRAGMENT, _PROBE = 10, 3  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE of Linux
_RAW_IP_BYTES = 20


@dataclass(frozen=True)
class Echoes:
    """round_trips_s: of those that came back. too_long: this machine itself did not let one of this size out."""

    sent: int
    round_trips_s: tuple[float, ...]
    too_long: bool = False

    @property
    def loss(self) -> float:
        return 1.0 - len(self.round_trips_s) / self.sent if self.sent else 0.0


def echo(host: str, packet_bytes: int, count: int, wait_s: float) -> Echoes | None:
    """Send `count` packets of `packet_bytes` (IPv4 header included), one after the other; None if it is not allowed.

    wait_s: for each answer.
    """
    try:
        kind, found = _open()
    except PermissionError:
        return None
    with found:
        found.setsockopt(socket.IPPROTO_IP, _DONT_FRAGMENT, _PROBE)
        number = os.getpid() & 0xFFFF
        round_trips: list[float] = []
        for place in range(count):
            try:
                found.sendto(_request(number, place, max(0, packet_bytes - HEADERS_BYTES)), (host, 0))
            except OSError:
                return Echoes(count, (), too_long=True)
            if (took_s := _wait(found, kind, host, number, place, wait_s)) is not None:
                round_trips.append(took_s)
        return Echoes(count, tuple(round_trips))


def _open() -> tuple[int, socket.socket]:
    try:
        return socket.SOCK_DGRAM, socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    except PermissionError:
        return socket.SOCK_RAW, socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def _wait(found: socket.socket, kind: int, host: str, number: int, place: int, wait_s: float) -> float | None:
    """Seconds until the answer is here; None if it is not in time."""
    began = time.monotonic()
    while (left_s := began + wait_s - time.monotonic()) > 0:
        found.settimeout(left_s)
        try:
            packet, sender = found.recvfrom(65_536)
        except TimeoutError:
            return None
        except OSError:  # an error that came back for it: unreachable, too long
            continue
        body = packet[_RAW_IP_BYTES:] if kind == socket.SOCK_RAW else packet
        if sender[0] != host or len(body) < _HEADER.size:
            continue
        of, _, _, its_number, its_place = _HEADER.unpack_from(body)
        if (of, its_place) == (_REPLY, place) and (kind == socket.SOCK_DGRAM or its_number == number):
            return time.monotonic() - began
    return None


def _request(number: int, place: int, body_bytes: int) -> bytes:
    body = bytes(body_bytes)
    return (
        _HEADER.pack(_REQUEST, 0, _checksum(_HEADER.pack(_REQUEST, 0, 0, number, place) + body), number, place) + body
    )


def _checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
