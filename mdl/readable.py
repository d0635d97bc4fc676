"""Checks mdl's own output against the bounds of its readers, before a byte of it leaves. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from mdl.bounds import UNREADABLE
from mdl.errors import ConfigError


def encode_readable(value: object, kind: Any, what: str) -> bytes:
    """Encode a value as MessagePack that a reader of `kind` accepts. Raises ConfigError naming `what` otherwise."""
    encoded = msgspec.msgpack.encode(value)
    try:
        msgspec.msgpack.decode(encoded, type=kind)
    except UNREADABLE as error:
        raise ConfigError(f"{what} could not be read again ({error}): nothing was changed") from None
    return encoded
