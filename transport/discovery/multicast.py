"""A test of multicast on an interface, out and back in: mDNS needs it (RFC 6762). It sends one question.

The system gives a copy of each packet to the listeners on this machine, unless a firewall or a missing route takes it.
Answers of others count, too: they show that multicast gets through the network.
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

import psutil

from mdl.transport.discovery.scopes import bare, socket_address

GROUP, GROUP_IPV6, PORT = "224.0.0.251", "ff02::fb", 5353
# Socket options: hear only the groups of this very socket; otherwise it hears all groups of the machine (Linux).
_MULTICAST_ALL, _MULTICAST_ALL_IPV6 = 49, 29
# A question for all services (RFC 6763, 9): every mDNS responder answers it.
_QUESTION = b"".join(bytes([len(word)]) + word for word in (b"_services", b"_dns-sd", b"_udp", b"local"))
_MOST = 64  # others that are remembered
_POINTER, _ANY_CLASS = 12, 1


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
        return _hear(listener, host, number, wait_s)


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


def _hear(listener: socket.socket, host: str, number: int, wait_s: float) -> Multicast:
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
