"""Hostile values by type: edges of the bounds and beyond them, what was seen in real traffic, and anything between.

Everything follows from the generator that is passed in, so that a case can be repeated by its seed.
"""

from __future__ import annotations

import copy
import enum
import math
import random
from collections import deque
from typing import Any

import msgspec
from msgspec import inspect

from mdl.errors import ConfigError
from mdl.protocol.statements import DeviceRevoked
from mdl.transport.trust.membership import Membership

# Values of one field that are remembered from real traffic.
_SEEN = 64
# Items of a generated list: mostly few; now and then as many as make work.
_FEW, _MANY = 3, 300
_WORDS = (
    "",
    "a",
    "merged",
    "total",
    "refused: x",
    "..",
    "a/b",
    "\x1b[2J",
    "\u202e",
    "[red]",
    "x" * 300,
    "ä",
    "\n",
    "0",
)
# Addresses, and what some readers take for one.
_HOSTS = (
    "127.0.0.1",
    "10.7.0.3",
    "192.168.1.20",
    "fe80::1",
    "::1",
    "2001:db8::7",
    "1.2",
    "127.1",
    "0x7f.1",
    "010.0.0.1",
    "1.2.3.4.5",
    "256.1.1.1",
    "::ffff:1",
    "::ffff:10.0.0.1",
    "::",
    ":::",
    "1::2::3",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "ff02::1",
    "ab",
    "0" * 39,
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-9, 1e6, 1e9, 1e12, 1e19, 1e300, math.inf, -math.inf, math.nan)
_INTEGERS = (0, 1, 2, 3, -1, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 42, 1 << 43, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63)


class Hostile:
    """Makes values of any type that a decoder knows. seen: field name -> values of real messages."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.seen: dict[str, deque[Any]] = {}

    def learn(self, value: object) -> None:
        """Remember the fields of a real message: hostile ones that look like it go deeper."""
        if isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                field = getattr(value, name)
                self.seen.setdefault(name, deque(maxlen=_SEEN)).append(field)
                self.learn(field)
        elif isinstance(value, tuple):
            for item in value[:_FEW]:
                self.learn(item)

    def change(self, value: Any, least: int = 1) -> Any:
        """A real message with one or a few of its fields changed, here or further inside."""
        rng = self.rng
        info = _info(type(value))
        changes = {}
        for field in rng.sample(info.fields, min(len(info.fields), least + (rng.random() < 0.4))):
            old = getattr(value, field.encode_name)
            if isinstance(old, msgspec.Struct) and old.__struct_fields__ and rng.random() < 0.5:
                changes[field.name] = self.change(old)
            elif isinstance(old, tuple) and old and isinstance(old[0], msgspec.Struct) and rng.random() < 0.5:
                place = rng.randrange(len(old))
                changes[field.name] = (*old[:place], self.change(old[place]), *old[place + 1 :])
            else:
                changes[field.name] = self.field(field.name, field.type)
        return forced(value, changes)

    def field(self, name: str, kind: inspect.Type) -> Any:
        seen = self.seen.get(name)
        return self.rng.choice(seen) if seen and self.rng.random() < 0.6 else self.make(kind, name)

    def make(self, kind: Any, name: str = "") -> Any:
        """A value of this type (`msgspec.inspect`), sometimes beyond its bounds."""
        rng = self.rng
        match kind:
            case inspect.IntType():
                return self._integer(kind)
            case inspect.FloatType():
                return self._float(kind)
            case inspect.StrType():
                return self.host() if name in ("host", "hosts[]") else self._text()
            case inspect.BytesType(min_length=least, max_length=most):
                ordinary = (least or 0, most or 16)
                return rng.randbytes(rng.choice((0, 1, 16, *ordinary, *ordinary, (most or 16) + 1)))
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.NoneType():
                return None
            case inspect.EnumType(cls=cls):
                return rng.choice(list(cls))
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.UnionType(types=types):
                return self.make(rng.choice(types), name)
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                count = rng.randrange(_FEW + 1) if rng.random() < 0.98 else rng.randrange(_MANY)
                made = [self.field(f"{name}[]", item) for _ in range(count)]
                return made if isinstance(kind, inspect.ListType) else tuple(made)
            case inspect.TupleType(item_types=types):
                return tuple(self.make(each) for each in types)
            case inspect.DictType(key_type=key, value_type=value):
                return {self.make(key): self.make(value) for _ in range(rng.randrange(_FEW + 1))}
            case inspect.StructType(cls=cls, fields=fields):
                made = {field.name: self.field(field.name, field.type) for field in fields}
                try:
                    return cls(**made)
                except ValueError:  # what the struct itself checks is made once more, as it would be right
                    return forced(cls(**made | {name: right for name, right in _RIGHT.items() if name in made}), made)
            case _:
                return None

    def _integer(self, kind: inspect.IntType) -> int:
        rng = self.rng
        least, most = kind.ge or 0, kind.le if kind.le is not None else (kind.lt or 1 << 63) - 1
        near = rng.choice(
            (least, least + 1, most, most - 1, most // 2, *_INTEGERS, rng.getrandbits(rng.randrange(1, 64)))
        )
        near += rng.choice((0, 0, 0, 1, -1))
        return near if rng.random() < 0.05 else max(least, min(most, near))

    def _float(self, kind: inspect.FloatType) -> float:
        rng = self.rng
        value = rng.choice((*_FLOATS, rng.random(), rng.random() * 100))
        if rng.random() < 0.05 or math.isnan(value):
            return value
        return max(
            kind.ge if kind.ge is not None else -math.inf, min(kind.le if kind.le is not None else math.inf, value)
        )

    def host(self) -> str:
        """An address, or what only looks like one."""
        return self.rng.choice(_HOSTS)

    def _text(self) -> str:
        ids = self.seen.get("peer_id")
        return self.rng.choice(ids) if ids and self.rng.random() < 0.5 else self.rng.choice(_WORDS)


def forced(value: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of a struct with these fields, whatever it says to them: an attacker's code checks nothing."""
    made = copy.copy(value)
    for name, changed in changes.items():
        msgspec.structs.force_setattr(made, name, changed)
    return made


# Fields that a struct checks when it is made, as they may be.
_RIGHT = {"host": "127.0.0.1", "hosts": ("127.0.0.1",), "code": "home:2222-2222-2222-2222-222i"}
_INFOS: dict[type, inspect.StructType] = {}


def _info(cls: type) -> inspect.StructType:
    if cls not in _INFOS:
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        _INFOS[cls] = info
    return _INFOS[cls]


def info_of(cls: type) -> inspect.StructType:
    """What msgspec knows of a struct."""
    return _info(cls)


def damage(data: bytes, rng: random.Random) -> bytes:
    """Bytes with a few of them changed, cut off, repeated or put in."""
    frame = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.randrange(len(frame) + 1)
        match rng.randrange(6):
            case 0 if frame:
                frame[place % len(frame)] = rng.randrange(256)
            case 1 if frame:
                frame[place % len(frame)] ^= 1 << rng.randrange(8)
            case 2:
                del frame[place:]
            case 3:
                frame[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                frame[place:place] = frame[: rng.randrange(1, 33)]
            case _:
                frame[place : place + rng.randrange(1, 9)] = b""
    return bytes(frame)


def is_enum(value: object) -> bool:
    return isinstance(value, enum.Enum)


def revocation(speaker: Membership, device: bytes, at: int, reason: str) -> DeviceRevoked:
    """Sign that a device is out, whether or not the speaker may say so."""
    try:
        return speaker.revoke(device, at, reason)[-1]
    except ConfigError:  # it owns nothing, or the device is the founder's
        return speaker._sign(DeviceRevoked(device, speaker.device.public, at, "", reason))
