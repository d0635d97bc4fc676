"""Tests whether packets get through a network and whether a node can be reached, and where it fails.

A probe of a node tells no route, no listener, another program, or other keys. It opens one connection to one address,
as the links would, and sends nothing on it.

Echo requests (ping, RFC 792 and 4443) have chosen sizes that no router may fragment: their round trips and losses. They
use a datagram socket where the system allows it (net.ipv4.ping_group_range), else a raw one, which needs root. If they
get no answer, full TCP segments to a node find a hole for large packets on the way out (Linux alone): its system
acknowledges them, even if the program drops them.

Multicast is tested on an interface, out and back in: mDNS needs it (RFC 6762). One question is sent. The system gives a
copy of each packet to the listeners on this machine, unless a firewall or a missing route takes it. Answers of others
count, too: they show that multicast gets through the network.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import psutil
import zmq
from zmq.utils.monitor import parse_monitor_message

from mdl.transport.discovery.directory import Address, bare, socket_address
from mdl.transport.links.sockets import HEARTBEAT_TIMEOUT_MS, Curve, new_context, open_dealer, prepare_dealer
from mdl.transport.trust.keys import MeshKeys

# tcp_info of linux/tcp.h: eight bytes, rto, ato, snd_mss, rcv_mss, unacked.
_UNACKNOWLEDGED_AT = 24
_LOOK_S = 0.02
GROUP, GROUP_IPV6, PORT = "224.0.0.251", "ff02::fb", 5353
# Socket options: hear only the groups of this very socket; otherwise it hears all groups of the machine (Linux).
_MULTICAST_ALL, _MULTICAST_ALL_IPV6 = 49, 29
# A question for all services (RFC 6763, 9): every mDNS responder answers it.
_QUESTION = b"".join(bytes([len(word)]) + word for word in (b"_services", b"_dns-sd", b"_udp", b"local"))
_MOST = 64  # others that are remembered
_POINTER, _ANY_CLASS = 12, 1


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


class Heard(Enum):
    """ITSELF: its own question came back. OTHERS: another device was heard, too."""

    TAKEN = "taken"
    NO_WAY = "no way"
    NOTHING = "nothing"
    ITSELF = "itself"
    OTHERS = "others"


@dataclass(frozen=True)
class Multicast:
    heard: Heard
    others: tuple[str, ...] = ()
    problem: str = ""


def try_multicast(host: str, wait_s: float) -> Multicast:
    """Ask once from this own address, and listen for wait_s. host: an IPv6 address comes with its link."""
    number = secrets.randbelow(0xFFFF) + 1
    question = _ask(number)
    try:
        listener = _listen(host)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        return Multicast(Heard.TAKEN if taken else Heard.NO_WAY, problem=error.strerror or str(error))
    with listener, socket.socket(listener.family, socket.SOCK_DGRAM) as sender:
        try:
            sender.bind(socket_address(sender.family, host, 0))
            if sender.family == socket.AF_INET6:
                link = sender.getsockname()[3]
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, link)
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
                sender.sendto(question, (GROUP_IPV6, PORT, 0, link))
            else:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
                sender.sendto(question, (GROUP, PORT))
        except OSError as error:
            return Multicast(Heard.NO_WAY, problem=error.strerror or str(error))
        return _hear_multicast(listener, host, number, wait_s)


def count_answers(
    host: str, others: Sequence[str], count: int, pause_s: float, wait_s: float
) -> dict[str, tuple[int, int]]:
    """Ask so many times from this own IPv4 address, by multicast and each other host alone.

    Returns the number of questions of both kinds that each host has answered: a busy host answers few of either. The
    questions leave from another port than mDNS's, so that each answer comes to us alone (RFC 6762, 6.7).
    """
    answered: dict[str, set[int]] = {other: set() for other in others[:_MOST]}
    first = secrets.randbelow(0x8000) + 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.bind((host, 0))
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        for place in range(count):
            asking.sendto(_ask(first + place), (GROUP, PORT))
            for other in answered:
                asking.sendto(_ask(first + count + place), (other, PORT))
            give_up_at = time.monotonic() + (pause_s if place + 1 < count else wait_s)
            while (left_s := give_up_at - time.monotonic()) > 0:
                asking.settimeout(left_s)
                try:
                    packet, (sender, *_) = asking.recvfrom(9_000)
                except TimeoutError:
                    break
                number = int.from_bytes(packet[:2], "big") - first
                if sender in answered and 0 <= number < 2 * count:
                    answered[sender].add(number)
    by_group = {other: sum(number < count for number in numbers) for other, numbers in answered.items()}
    return {other: (by_group[other], len(numbers) - by_group[other]) for other, numbers in answered.items()}


def _ask(number: int) -> bytes:
    return struct.pack("!6H", number, 0, 1, 0, 0, 0) + _QUESTION + b"\0" + struct.pack("!2H", _POINTER, _ANY_CLASS)


def _listen(host: str) -> socket.socket:
    is_ipv6 = ":" in host
    listener = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(AttributeError, OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if is_ipv6:
                listener.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL_IPV6, 0)
            else:
                listener.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
        if is_ipv6:
            link = socket.if_nametoindex(host.partition("%")[2])
            listener.bind(("::" if sys.platform == "win32" else GROUP_IPV6, PORT, 0, link))
            group = socket.inet_pton(socket.AF_INET6, GROUP_IPV6) + struct.pack("@I", link)
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        else:
            listener.bind(("" if sys.platform == "win32" else GROUP, PORT))  # a group is no own address there
            group = socket.inet_aton(GROUP) + socket.inet_aton(host)
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    except OSError:
        listener.close()
        raise
    return listener


def _hear_multicast(listener: socket.socket, host: str, number: int, wait_s: float) -> Multicast:
    heard_itself, others = False, dict[str, None]()
    own = {bare(each.address) for found in psutil.net_if_addrs().values() for each in found}
    give_up_at = time.monotonic() + wait_s
    while (left_s := give_up_at - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            packet, (sender, *_) = listener.recvfrom(9_000)
        except TimeoutError:
            break
        if sender == bare(host):
            heard_itself = heard_itself or packet[:2] == struct.pack("!H", number)
        elif sender not in own and len(others) < _MOST:
            others[sender] = None
    if others:
        return Multicast(Heard.OTHERS, tuple(others))
    return Multicast(Heard.ITSELF if heard_itself else Heard.NOTHING)


_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)
# EINVAL: the error of a "blackhole" route.
_NO_WAY = (errno.EINVAL, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL)

# 50 bytes and their headers each way: 40 KB in a second, unless this machine has much else to do.
_BEAT_MS, _ENOUGH_BYTES, _LOOK_MS = 2, 60_000, 50


class ProbeStage(Enum):
    """The stage that a connection reached."""

    NO_WAY = "no way"
    REFUSED = "refused"
    SILENT = "silent"
    NOT_MDL = "not mdl"
    OTHER_KEYS = "other keys"
    MEMBER = "member"


def probe(address: Address, keys: MeshKeys | None, wait_s: float) -> ProbeStage:
    """Connect, and return how far that got.

    Takes at most wait_s, and a second more if a connection opens late and nothing comes on it.
    """
    began = time.monotonic()
    reached = connect(address, wait_s)
    left_s = max(1.0, began + wait_s - time.monotonic())
    return reached or _shake_hands(address, None if keys is None else Curve.of_door(keys), left_s)


def probe_link(address: Address, curve: Curve, wait_s: float) -> bool:
    """Return True if a member's socket for messages lets this device in, by the device's own key."""
    return _shake_hands(address, curve, wait_s) is ProbeStage.MEMBER


def endures(address: Address, keys: MeshKeys, wait_s: float) -> bool | None:
    """Return False if a connection to a door that lets us in breaks off once some ten KB have passed on it.

    Only heartbeats are sent (RFC 37 of ZeroMQ), for wait_s and until that many bytes have left this machine, four times
    as long at most. None if the door did not let us in.
    """
    context = new_context(4)
    try:
        dealer = context.socket(zmq.DEALER)
        monitor = dealer.get_monitor_socket(_WATCHED)
        dealer.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)  # the default is the interval
        prepare_dealer(dealer, Curve.of_door(keys), address).connect(address.endpoint())
        began, until, is_in = time.monotonic(), _bytes_out() + _ENOUGH_BYTES, None
        while (passed_s := time.monotonic() - began) < wait_s or (passed_s < 4 * wait_s and _bytes_out() < until):
            if not monitor.poll(_LOOK_MS):
                continue
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                is_in = True
            elif is_in:
                return False
        return is_in
    finally:
        with contextlib.suppress(zmq.ZMQError):
            context.destroy(linger=0)


def _bytes_out() -> int:
    """Return the bytes that this machine has sent since its start, to see whether a busy one's heartbeats leave.

    0 where the system does not tell.
    """
    try:
        return int(psutil.net_io_counters().bytes_sent)
    except PermissionError:
        return 0


def connect(address: Address, wait_s: float) -> ProbeStage | None:
    """Connect by TCP; return None if a program listens there."""
    try:
        with socket.create_connection((address.host, address.port), wait_s):
            return None
    except ConnectionRefusedError:
        return ProbeStage.REFUSED
    except TimeoutError:
        return ProbeStage.SILENT
    except OSError as error:
        return ProbeStage.NO_WAY if error.errno in _NO_WAY else ProbeStage.SILENT


def _shake_hands(address: Address, curve: Curve | None, wait_s: float) -> ProbeStage:
    context = new_context(4)
    try:
        dealer = open_dealer(context, curve, address, bulk=True)
        monitor = dealer.get_monitor_socket(_WATCHED)
        give_up_at = time.monotonic() + wait_s
        while (left_s := give_up_at - time.monotonic()) > 0:
            if not monitor.poll(max(1, int(1000 * left_s))):
                break
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return ProbeStage.MEMBER
            if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                return ProbeStage.NOT_MDL
            return ProbeStage.OTHER_KEYS
        return ProbeStage.NOT_MDL
    finally:
        with contextlib.suppress(zmq.ZMQError):
            context.destroy(linger=0)
