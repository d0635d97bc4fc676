"""A test whether a node can be reached and where it fails: no route, no listener, another program, or other keys.

It opens one connection to one address, as the links would, and sends nothing on it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from enum import Enum

import psutil
import zmq
from zmq.utils.monitor import parse_monitor_message

from mdl.transport.discovery.directory import Address
from mdl.transport.links.sockets import HEARTBEAT_TIMEOUT_MS, Curve, new_context, open_dealer, prepare_dealer
from mdl.transport.trust.keys import MeshKeys

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
