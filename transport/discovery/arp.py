"""Whether another machine has an address of ours, too: an ARP probe (RFC 5227), for which one has to be root. Linux."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable

import psutil

_ETHERNET, _ARP, _IPV4 = 1, 0x0806, 0x0800
_REQUEST, _REPLY = 1, 2
_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_HEADER_BYTES = 14
_EVERYBODY = b"\xff" * 6
_PROBES = 2


def who_else_has(host: str, interface: str, wait_s: float) -> str | None:
    """The hardware address of the other one; None if there is none, or it is not known here who there is."""
    own = next(iter(_hardware_addresses([interface])), None)
    if own is None:
        return None
    ours = _hardware_addresses(psutil.net_if_addrs())  # a second interface in the same network answers for the first
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
                if (other := _hear(found, address, ours, wait_s / _PROBES)) is not None:
                    return other.hex(":")
        except OSError:  # an interface without hardware addresses, or one that is gone
            return None
    return None


def _hear(found: socket.socket, address: bytes, ours: set[bytes], wait_s: float) -> bytes | None:
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
