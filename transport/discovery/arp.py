"""Hardware addresses of IPv4 addresses, by an ARP probe (RFC 5227), and machines that share ours. For root, on Linux.

An address that two machines have, of either kind, makes a switch or a neighbour send frames to the wrong one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import psutil

_ETHERNET, _ARP, _IPV4 = 1, 0x0806, 0x0800
_REQUEST, _REPLY = 1, 2
_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_HEADER_BYTES = 14
_EVERYBODY = b"\xff" * 6
_PROBES = 2
# Frames that came in, to us or to others, as a packet socket marks them (packet(7)).
_CAME_IN = range(4)
_EVERY_KIND = 0x0003
_IPV4_SENDER, _ARP_SENDER = slice(26, 30), slice(28, 32)
_TABLE = Path("/proc/net/arp")
_COMPLETE, _PERMANENT = 0x2, 0x4


def who_else_has(host: str, interface: str, wait_s: float) -> str | None:
    """Return the hardware address of another machine with this address; None if there is none, or it is unknown."""
    # A second interface in the same network answers for the first.
    return who_has(host, interface, wait_s, _hardware_addresses(psutil.net_if_addrs()))


def who_has(host: str, interface: str, wait_s: float, but: Collection[bytes] = ()) -> str | None:
    """Return the hardware address that answers for `host` on this interface; None if none does, or it is unknown.

    but: hardware addresses with answers that do not count.
    """
    own = next(iter(_hardware_addresses([interface])), None)
    if own is None:
        return None
    try:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ARP))
    except PermissionError:
        return None
    address = socket.inet_aton(host)
    probe = _PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, own, bytes(4), bytes(6), address)
    with found:
        try:
            found.bind((interface, _ARP))
            for _ in range(_PROBES):
                found.send(_EVERYBODY + own + struct.pack("!H", _ARP) + probe)
                if (other := _hear(found, address, but, wait_s / _PROBES)) is not None:
                    return other.hex(":")
        except OSError:  # an interface without hardware addresses, or one that is gone
            return None
    return None


def remembered(host: str) -> tuple[str, bool] | None:
    """Return the hardware address that the system has for a host, and True if somebody has set it permanently."""
    with contextlib.suppress(OSError):
        for line in _TABLE.read_text().splitlines()[1:]:
            words = line.split()
            if len(words) >= 4 and words[0] == host and int(words[2], 16) & _COMPLETE:
                return words[3], bool(int(words[2], 16) & _PERMANENT)
    return None


def hear_namesake(interface: str, wait_s: float) -> str | None:
    """Return the IPv4 address of another machine with this interface's hardware address, if heard in this time."""
    own = next(iter(_hardware_addresses([interface])), None)
    if own is None:
        return None
    ours = {
        socket.inet_aton(each.address) for found in psutil.net_if_addrs().values() for each in found if _is_v4(each)
    }
    try:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_KIND))
    except PermissionError:
        return None
    give_up_at = time.monotonic() + wait_s
    with found, contextlib.suppress(OSError):  # the interface is gone, or nothing more was heard
        found.bind((interface, _EVERY_KIND))
        while (left_s := give_up_at - time.monotonic()) > 0:
            found.settimeout(left_s)
            packet, (_, kind, came, _, sender) = found.recvfrom(64)
            if came not in _CAME_IN or sender != own or kind not in (_IPV4, _ARP):
                continue
            host = packet[_IPV4_SENDER if kind == _IPV4 else _ARP_SENDER]
            if len(host) == 4 and any(host) and host not in ours:  # ours: a switch has sent our own frame back
                return socket.inet_ntoa(host)
    return None


def _is_v4(address: Any) -> bool:
    return bool(address.family == socket.AF_INET)


def _hear(found: socket.socket, address: bytes, ours: Collection[bytes], wait_s: float) -> bytes | None:
    give_up_at = time.monotonic() + wait_s
    while (left_s := give_up_at - time.monotonic()) > 0:
        found.settimeout(left_s)
        try:
            packet = found.recv(2_048)[_HEADER_BYTES:]
        except TimeoutError:
            return None
        if len(packet) < _PACKET.size:
            continue
        _, _, _, _, operation, sender, sender_host, _, _ = _PACKET.unpack_from(packet)
        if operation == _REPLY and sender_host == address and sender not in ours:
            return bytes(sender)
    return None


def _hardware_addresses(interfaces: Iterable[str]) -> set[bytes]:
    family = getattr(socket, "AF_PACKET", None)
    found, told = psutil.net_if_addrs(), set()
    for each in (each for name in interfaces for each in found.get(name, ()) if each.family == family):
        with contextlib.suppress(ValueError):
            told.add(bytes.fromhex(each.address.replace(":", "")))
    return {address for address in told if len(address) == 6 and any(address)}
