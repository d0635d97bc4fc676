"""Bounds for what peers may send: the types of numbers, names and texts in messages and in files that come back.

A decoder checks them, so that no machine meets a number that it cannot count on from, a malformed name, or a text that
moves the cursor of a terminal. Each bound gives its reason. This device's own messages must keep to them too, or no
peer accepts them: `within` bounds measured values, `printable` bounds texts made of others' words.

IP addresses in messages and records. Only this module parses them.

The structs that carry an address check it when they are made, so a decoder refuses any other text and later parsing
cannot fail. A host name is no address: mdl looks nothing up because a message says so.
"""

from __future__ import annotations

import functools
import ipaddress
import math
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

# Far above any real mesh, far below what could hurt a small device.
MAX_MEMBERS = 1024
MAX_TEXT = 256
# Hops that one device decides in one attempt at a round, and segments of a model: no mesh has more than members.
MAX_HOPS = MAX_MEMBERS
# A majority deals out terms 65,536 at a time (`peers/roles/membership/majority.py`): enough for 134 million elections
# and rounds, which last four years at one a second.
# A hop's id is a million times its term and must stay below 2^63.
MAX_TERM = (1 << 43) - 1
# A round every nanosecond for 146 years. A device goes at most ROUND_LEAP ahead at once, a round every second for 136
# years: no single message can bring a mesh to the last round; that would take 2^30 models.
MAX_ROUND = 1 << 62
ROUND_LEAP = 1 << 32
# Segments of a model: 16 GiB of values.
MAX_SEGMENTS = 1 << 16
# Milliseconds since 1970 at the start of a process; one more than the last value if the clock was set back.
MAX_INCARNATION = 1 << 62
# 2^33 float32 are 32 GiB: beyond any model that a device of a mesh can train.
MAX_VALUES = 1 << 33
# Thirty years: no process measures a longer time.
MAX_SECONDS = 1e9
# 30 kW for a year, or a laptop for a thousand years.
MAX_JOULES = 1e12
# A terabyte a second: no memory of today is as fast.
MAX_RATE_MB_S = 1e6
# Weights are at most window counts: 2^53 windows on each of MAX_MEMBERS devices.
MAX_THETA = 1e19
# The mean loss over windows. Beyond this bound training has diverged, and the exact value is of no interest.
MAX_LOSS = 1e12
MAX_LENGTH = 1e12
MAX_DIGEST_BYTES = 32
# The largest count that a float holds exactly.
MAX_COUNT = 1 << 53
# Size of an encoded message without its values. A status of 1024 members is about 470 KiB; the objects that a decoder
# makes of 1 MiB still fit any device.
MAX_HEADER_BYTES = 1 << 20
# Classes that an evaluation counts; the largest public sets have some 20,000.
MAX_CLASSES = 1 << 16
# Numbers that a model predicts for a window; each report has the error of each.
MAX_NUMBERS = 64
# Classes up to which a device also reports its confusion matrix: 32 classes take at most 10 KiB, mostly one-byte zeros.
MAX_CONFUSED = 32

# The characters of an id are safe in a file name, a log line and a terminal.
_ID = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}"
# Control characters, line breaks, and invisible characters that change the text: direction, joining, tags.
_UNSEEN = (
    "\u0000-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff0-\uffff\U000e0000-\U000e0fff"
)
_ANY_UNSEEN = re.compile(f"[{_UNSEEN}]")

PeerId: TypeAlias = Annotated[str, Meta(pattern=rf"^{_ID}\Z")]
# Empty if there is no peer.
SomePeerId: TypeAlias = Annotated[str, Meta(pattern=rf"^(?:{_ID})?\Z")]
Incarnation: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INCARNATION)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT, pattern=rf"^[^{_UNSEEN}]*\Z")]
# One word of a fixed vocabulary; an older or newer version may have more words.
Word: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z_-]{0,32}\Z")]
SchemaHash: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{0,128}\Z")]
Digest: TypeAlias = Annotated[bytes, Meta(max_length=MAX_DIGEST_BYTES)]
HexDigest: TypeAlias = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{2}){0,32}\Z")]

# The sum of MAX_MEMBERS counts stays below 2^63, and each count is exact in any JSON reader.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Term: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TERM)]
Round: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ROUND)]
HopId: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
SegmentNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_SEGMENTS)]
SegmentCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_SEGMENTS)]
SegmentBits: TypeAlias = Annotated[bytes, Meta(max_length=MAX_SEGMENTS // 8)]
Place: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)]
ValueCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_VALUES)]
# A group of a cloud's pupils; -1 is the base. There are at most as many groups as pupils.
Group: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_MEMBERS)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Percent: TypeAlias = Annotated[float, Meta(ge=0.0, le=100.0)]
# A working sensor's value: no computer is colder or hotter.
Celsius: TypeAlias = Annotated[float, Meta(ge=-100.0, le=300.0)]
Joules: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_JOULES)]
RateMBs: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_RATE_MB_S)]
# The room of a round's grid (`mdl/protocol/grid.py`).
MAX_ROOM = 383
Room: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ROOM)]
Theta: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_THETA)]
# The checksum of a sum (`mdl/protocol/checksum.py`).
Checksum: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Loss: TypeAlias = Annotated[float, Meta(ge=-MAX_LOSS, le=MAX_LOSS)]
Length: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_LENGTH)]
# An exact share of something.
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]


# The errors that msgspec raises for malformed bytes, in JSON and MessagePack alike.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def whole_number(text: str, most: int) -> int | None:
    """Return the decimal number from 0 to `most` that a file or a record keeps; None for any other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def within(value: float, least: float, most: float) -> float:
    """Return a measured value cut to the bounds; NaN counts as the most."""
    return most if math.isnan(value) else min(max(value, least), most)


def _is_seen(text: str) -> bool:
    """Return False also for variation selectors, which Python takes for printable though nobody sees them."""
    return text.isprintable() and _ANY_UNSEEN.search(text) is None


def printable(text: str, most: int = MAX_TEXT) -> str:
    """Return the text in one line of at most `most` characters; unseen characters become escapes (\\x1b, \\u202e)."""
    if len(text) <= most and _is_seen(text):
        return text
    shown: list[str] = []
    length = 0
    for character in text[: most + 1]:
        seen = character if _is_seen(character) else ascii(character)[1:-1]
        length += len(seen)
        if length > most - 1:
            return "".join(shown) + "…"
        shown.append(seen)
    return "".join(shown)


def in_utf8(text: str) -> str:
    """Return the text as UTF-8 can hold it: undecodable bytes of a file's name become escapes (\\udce9)."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_few(names: Sequence[str], most: int = 8, separator: str = ", ") -> str:
    """Return the first names, at most `most`, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


IpAddress: TypeAlias = IPv4Address | IPv6Address
# An IP address as text. The addresses of a full mesh fit into one message (`PeersKnown`). A link ("%eth0") is not
# allowed: it means nothing on another machine.
Host: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]{2,39}\Z")]
# Empty if the address is not known.
SomeHost: TypeAlias = Annotated[str, Meta(pattern=r"^(?:[0-9A-Fa-f:.]{2,39})?\Z")]
# The addresses of all members: each look around asks for each of them.
_REMEMBERED = 2 * MAX_MEMBERS


@functools.lru_cache(maxsize=_REMEMBERED)
def parse_host(text: str) -> IpAddress:
    """Return the address that a text names. Raises ValueError for any other text."""
    return ipaddress.ip_address(text)


def check_reachable(text: str) -> None:
    """Raise ValueError unless the text names an address at which one machine can be reached."""
    host = parse_host(text)
    if host.is_unspecified or host.is_multicast:
        raise ValueError(f"nobody can be reached at {text}")
