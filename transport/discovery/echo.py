"""Echo requests (ping, RFC 792 and 4443) of chosen sizes that no router may fragment: their round trips and losses.

They use a datagram socket where the system allows it (net.ipv4.ping_group_range), else a raw one, which needs root.
If they get no answer, full TCP segments to a node find a hole for large packets on the way out (Linux alone): its
system acknowledges them, even if the program drops them.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.scopes import bare, socket_address

# tcp_info of linux/tcp.h: eight bytes, rto, ato, snd_mss, rcv_mss, unacked.
_UNACKNOWLEDGED_AT = 24
_LOOK_S = 0.02


class _Kind(NamedTuple):
    """Echo requests of one kind of address. whole: the option of Linux that forbids to fragment them."""

    family: int
    protocol: int
    request: int
    reply: int
    headers_bytes: int
    # The bytes that a raw socket gives before the answer itself.
    before_bytes: int
    whole: tuple[int, int]


# IP_MTU_DISCOVER and IPV6_MTU_DISCOVER of Linux, and their value, IP_PMTUDISC_PROBE.
_V4 = _Kind(socket.AF_INET, socket.IPPROTO_ICMP, 8, 0, 28, 20, (socket.IPPROTO_IP, 10))
_V6 = _Kind(socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129, 48, 0, (socket.IPPROTO_IPV6, 23))
_PROBE = 3
_WHOLE_ON = "linux", "android"
_HEADER = struct.Struct("!BBHHH")
_PAUSE_S = 0.02
# The fewest answers that tell a speed, and the wait for them; a time long enough for few to tell; a clock's step.
_FEW_CAME, _TRAIN_S, _SLOW_S, _SHORTEST_S = 4, 1.0, 0.05, 1e-5


@dataclass(frozen=True)
class Echoes:
    """The outcome of echo requests.

    round_trips_s: of the answers that came. too_long: this machine itself did not send a packet of this size.
    """

    sent: int
    round_trips_s: tuple[float, ...]
    too_long: bool = False

    @property
    def loss(self) -> float:
        return 1.0 - len(self.round_trips_s) / self.sent if self.sent else 0.0


def echo(host: str, packet_bytes: int, count: int, wait_s: float) -> Echoes | None:
    """Send `count` packets of `packet_bytes` (IP header included), 20 ms apart; return None if it is not allowed.

    wait_s: for the last answers.
    """
    try:
        sent_at, came_at = _exchange(host, packet_bytes, count, _PAUSE_S, wait_s)
    except OSError:  # not allowed, or not by this system
        return None
    if len(sent_at) < count:
        return Echoes(count, (), too_long=True)
    return Echoes(count, tuple(came_at[place] - sent_at[place] for place in sorted(came_at)))


def measure_speed(host: str, packet_bytes: int) -> float | None:
    """Return bytes a second there and back of packets that leave at once; None if too few come back to tell.

    It sends 16 packets, and if those are quick, 96: packets that fit in a queue tell nothing of the link behind it.
    """
    for count in (16, 96):
        try:
            _, came_at = _exchange(host, packet_bytes, count, 0.0, _TRAIN_S)
        except OSError:
            return None
        half = sorted(came_at.values())[len(came_at) // 2 :]
        if len(half) < _FEW_CAME:
            return None
        took_s = max(half[-1] - half[0], _SHORTEST_S)
        if took_s > _SLOW_S:
            break
    return (len(half) - 1) * packet_bytes / took_s


def _exchange(
    host: str, packet_bytes: int, count: int, pause_s: float, wait_s: float
) -> tuple[list[float], dict[int, float]]:
    """Return the times at which packets left, until one could not, and at which each answer came, by its place."""
    if sys.platform not in _WHOLE_ON:
        raise OSError(errno.ENOTSUP, "packets that stay whole are asked for otherwise here")
    kind = _V6 if ":" in host else _V4
    found = _open(kind)
    sent_at: list[float] = []
    came_at: dict[int, float] = {}
    number = secrets.randbelow(1 << 16)  # two probes of one host at once hear both's answers
    with found:
        found.setsockopt(*kind.whole, _PROBE)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        for place in range(count):
            request = _request(kind, number, place, max(0, packet_bytes - kind.headers_bytes))
            try:
                found.sendto(request, socket_address(kind.family, host, 0))
            except OSError:
                break
            sent_at.append(time.monotonic())
            if pause_s:
                _hear(found, kind, host, number, came_at, pause_s, count)
        _hear(found, kind, host, number, came_at, wait_s, len(sent_at))
    return sent_at, came_at


def _hear(
    found: socket.socket, kind: _Kind, host: str, number: int, came_at: dict[int, float], wait_s: float, most: int
) -> None:
    """Note answers until `most` are there, or for wait_s."""
    give_up_at = time.monotonic() + wait_s
    while len(came_at) < most and (left_s := give_up_at - time.monotonic()) > 0:
        found.settimeout(left_s)
        try:
            packet, sender = found.recvfrom(65_536)
        except TimeoutError:
            return
        except OSError:  # an error that came back for one of them: unreachable, too long
            continue
        is_raw = found.type == socket.SOCK_RAW
        body = packet[kind.before_bytes :] if is_raw else packet
        if bare(sender[0]) != bare(host) or len(body) < _HEADER.size:
            continue
        of, _, _, its_number, place = _HEADER.unpack_from(body)
        if of == kind.reply and (its_number == number or not is_raw):
            came_at.setdefault(place, time.monotonic())


def _open(kind: _Kind) -> socket.socket:
    try:
        return socket.socket(kind.family, socket.SOCK_DGRAM, kind.protocol)
    except PermissionError:
        return socket.socket(kind.family, socket.SOCK_RAW, kind.protocol)


def _request(kind: _Kind, number: int, place: int, body_bytes: int) -> bytes:
    """Return a request with its checksum; for IPv6 the system computes that, since it covers the addresses."""
    body = bytes(body_bytes)
    checksum = 0 if kind is _V6 else _checksum(_HEADER.pack(kind.request, 0, 0, number, place) + body)
    return _HEADER.pack(kind.request, 0, checksum, number, place) + body


def _checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def are_taken(address: Address, wait_s: float) -> bool | None:
    """Return True if two full segments are acknowledged within wait_s; None if that cannot be said."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        with socket.create_connection((address.host, address.port), wait_s) as found:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            segment_bytes = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            found.sendall(b"\xff")  # the beginning of a greeting: the node waits for the rest
            if not _is_acknowledged(found, wait_s / 2):
                return None
            found.sendall(bytes(2 * segment_bytes))
            return _is_acknowledged(found, wait_s)
    except ConnectionResetError:  # because it is no greeting: it has arrived
        return True
    except OSError:
        return None


def _is_acknowledged(found: socket.socket, wait_s: float) -> bool:
    give_up_at = time.monotonic() + wait_s
    while time.monotonic() < give_up_at:
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        if struct.unpack_from("=I", info, _UNACKNOWLEDGED_AT)[0] == 0:
            return True
        time.sleep(_LOOK_S)
    return False
