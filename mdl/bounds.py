"""Bounds of what others may say: the types of numbers, names and texts in messages and in files that come back.

A decoder checks them, so that no machine meets a number that it cannot count on from, a name that is no name, or a text
that moves the cursor of a terminal. Each bound says why it is where it is. What this device says itself must keep to
them too, or nobody hears it: `within` and `printable` see to measured values and to texts made of others' words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

# Far above any real mesh, far below what could hurt a small device.
MAX_MEMBERS = 1024
MAX_TEXT = 256
# Hops that one device decides in one attempt at a round, and segments of a model: no mesh has more than members.
MAX_HOPS = MAX_MEMBERS
# Terms are dealt out 65,536 at a time (`peers/roles/membership/majority.py`): 134 million elections and rounds, which
# at one a second is
# four years. A hop's id is a million times its term and must stay below 2^63.
MAX_TERM = (1 << 43) - 1
# A round every nanosecond for 146 years. A device goes at most ROUND_LEAP ahead at once, a round every second for 136
# years: one message that names the last round does not bring a mesh there; 2^30 models would have to be sent.
MAX_ROUND = 1 << 62
ROUND_LEAP = 1 << 32
# Of a model that travels in segments: 16 GiB of them.
MAX_SEGMENTS = 1 << 16
# Milliseconds since 1970, when a process was started; one more than the last if the clock was set back.
MAX_INCARNATION = 1 << 62
# 2^33 float32 are 32 GiB: beyond any model that a device of a mesh can train.
MAX_VALUES = 1 << 33
# Thirty years: what took longer was not measured by one process.
MAX_SECONDS = 1e9
# A terabyte a second: no memory of today is as fast.
MAX_RATE_MB_S = 1e6
# Weights are window counts at most: 2^53 of them on each of MAX_MEMBERS devices.
MAX_THETA = 1e19
# Of a mean over windows; beyond, training has diverged, and how far is of no interest.
MAX_LOSS = 1e12
MAX_LENGTH = 1e12
MAX_DIGEST_BYTES = 32
# What a float holds exactly.
MAX_COUNT = 1 << 53
# Of a message without its values, encoded. A status of 1024 members is about 300 KiB; what a decoder makes of 1 MiB
# still fits any device.
MAX_HEADER_BYTES = 1 << 20
# Classes that an evaluation counts; the largest public sets have some 20,000.
MAX_CLASSES = 1 << 16
# Numbers that a model predicts of a window, whose errors are told in each report.
MAX_NUMBERS = 64
# Classes up to which a device also tells which it took for which: 32 are at most 10 KiB, mostly of one-byte zeros.
MAX_CONFUSED = 32

# Of these a file name, a log line and a terminal can be made as they are.
_ID = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}"
# Control characters, line breaks, and those that are not seen but change what is: direction, joining, tags.
_UNSEEN = (
    "\u0000-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff0-\uffff\U000e0000-\U000e0fff"
)
_ANY_UNSEEN = re.compile(f"[{_UNSEEN}]")

PeerId: TypeAlias = Annotated[str, Meta(pattern=rf"^{_ID}\Z")]
# Empty where there is nobody.
SomePeerId: TypeAlias = Annotated[str, Meta(pattern=rf"^(?:{_ID})?\Z")]
Incarnation: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INCARNATION)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT, pattern=rf"^[^{_UNSEEN}]*\Z")]
# One word of a fixed vocabulary, which an older or newer version may have more of.
Word: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z_-]{0,32}\Z")]
SchemaHash: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{0,128}\Z")]
Digest: TypeAlias = Annotated[bytes, Meta(max_length=MAX_DIGEST_BYTES)]
HexDigest: TypeAlias = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{2}){0,32}\Z")]

# Sums over MAX_MEMBERS of them stay below 2^63, and each is exact in any JSON reader.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Term: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TERM)]
Round: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ROUND)]
HopId: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Segment: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)]
SegmentNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_SEGMENTS)]
SegmentCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_SEGMENTS)]
SegmentBits: TypeAlias = Annotated[bytes, Meta(max_length=MAX_SEGMENTS // 8)]
Place: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)]
ValueCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_VALUES)]
# Of a cloud: a group of its pupils, -1 is the base; there are at most as many as pupils.
Group: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_MEMBERS)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Percent: TypeAlias = Annotated[float, Meta(ge=0.0, le=100.0)]
# Of a sensor that is not broken: nothing that computes is colder or hotter.
Celsius: TypeAlias = Annotated[float, Meta(ge=-100.0, le=300.0)]
RateMBs: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_RATE_MB_S)]
Theta: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_THETA)]
Loss: TypeAlias = Annotated[float, Meta(ge=-MAX_LOSS, le=MAX_LOSS)]
Length: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_LENGTH)]
# An exact share of something.
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]


# What msgspec raises for bytes that are not what they should be; decoders of JSON and MessagePack alike.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def whole_number(text: str, most: int) -> int | None:
    """A number from 0 to `most` in decimal, as a file or a record keeps it; None if it is none."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def within(value: float, least: float, most: float) -> float:
    """A measured value as it may be told; what is not a number counts as the most."""
    return most if math.isnan(value) else min(max(value, least), most)


def _is_seen(text: str) -> bool:
    """Python takes some for printable that are not seen: what selects a variant of the character before."""
    return text.isprintable() and _ANY_UNSEEN.search(text) is None


def printable(text: str, most: int = MAX_TEXT) -> str:
    """The text in one line of at most `most` characters; what cannot be seen appears as its escape (\\x1b, \\u202e)."""
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
    """The text as UTF-8 can hold it: bytes of a file's name that are none appear as their escape (\\udce9)."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_few(names: Sequence[str], most: int = 8, separator: str = ", ") -> str:
    """Those that a line for people has room for, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more
