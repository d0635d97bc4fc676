"""A test whether full TCP segments reach a node: its system acknowledges them, even if the program drops them.

If echo requests get no answer, this finds a hole for large packets on the way out (Linux alone).
"""

from __future__ import annotations

import socket
import struct
import time

from mdl.transport.discovery.directory import Address

# tcp_info of linux/tcp.h: eight bytes, rto, ato, snd_mss, rcv_mss, unacked.
_UNACKNOWLEDGED_AT = 24
_LOOK_S = 0.02


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
