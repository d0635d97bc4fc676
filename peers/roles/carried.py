"""The load of a message: its values, and their digest. Raises RemoteProtocolError where a sender left values out."""

from __future__ import annotations

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Received
from mdl.protocol.messages import SEGMENTS


def values_of(event: Received) -> Vector:
    if event.values is None or isinstance(event.values, bytes):
        raise RemoteProtocolError(f"{type(event.message).__name__} without values")
    return event.values


def segment_of(event: Received) -> Vector | None:
    return values_of(event) if type(event.message) in SEGMENTS else None


def digest_of(event: Received) -> bytes:
    """Return the digest that the transport computed while the values came."""
    if not event.digest:
        raise LocalProtocolError(f"{type(event.message).__name__} without the digest of its values")
    return event.digest
