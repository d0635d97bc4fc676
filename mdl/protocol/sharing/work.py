"""Events and effects of devices that share windows (`mdl.protocol.machine` has all the others)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mdl.devices.offer import Offer
from mdl.protocol.bulk import Packed
from mdl.protocol.sharing.messages import WindowsOffered


class CutWindows(msgspec.Struct, frozen=True):
    """The giver: divide the data, write each share down, answer WindowsCut.

    offers: each with the key of the device that asked, 32 bytes.
    """

    offers: tuple[tuple[bytes, Offer], ...]


class WindowsCut(msgspec.Struct, frozen=True):
    """The shares are on the disk.

    parcels: each with the key of the device that it is for; a share without windows is not among them.
    """

    parcels: tuple[tuple[bytes, WindowsOffered], ...]


class ReadPart(msgspec.Struct, frozen=True):
    """The giver: read one part of a parcel, answer PartRead.

    receiver: the peer that wants it.
    sharing_id: of the parcel.
    part: counted from 0.
    """

    receiver: str
    sharing_id: bytes
    part: int


class PartRead(msgspec.Struct, frozen=True):
    """One part of a parcel is there.

    receiver: as in ReadPart.
    sharing_id: as in ReadPart.
    part: as in ReadPart.
    content: its bytes.
    """

    receiver: str
    sharing_id: bytes
    part: int
    content: Packed


class ForgetShare(msgspec.Struct, frozen=True):
    """The giver: a taker has deleted its windows; nothing is left to be told.

    sharing_id: of that.
    """

    sharing_id: bytes


class StorePart(msgspec.Struct, frozen=True):
    """The taker: keep a part; with the last one check the whole. Answers PartStored.

    offered: the parcel.
    part: counted from 0; they come in order.
    content: its bytes.
    """

    offered: WindowsOffered
    part: int
    content: Packed


class PartStored(msgspec.Struct, frozen=True):
    """A part is on the disk.

    sharing_id: of its parcel.
    part: as in StorePart.
    is_whole: all of the parcel is there, and is what was announced.
    """

    sharing_id: bytes
    part: int
    is_whole: bool


class DeleteShared(msgspec.Struct, frozen=True):
    """The taker: delete the windows that it was given. Answers SharedDeleted.

    reason: why, for the user.
    """

    reason: str


class SharedDeleted(msgspec.Struct, frozen=True):
    """The windows are deleted, and so is what was fetched so far."""


SharingEffect: TypeAlias = CutWindows | ReadPart | ForgetShare | StorePart | DeleteShared
SharingEvent: TypeAlias = WindowsCut | PartRead | PartStored | SharedDeleted
