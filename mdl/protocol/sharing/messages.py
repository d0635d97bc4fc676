"""The messages of one person's devices about windows that one of them shares (MDLdroid 1, the individual model).

The device that has the data is the giver, one that accepts some of it a taker. The taker asks, and says all of what it
has each time; the giver answers only devices with a key that its user has named.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from mdl.bounds import Count
from mdl.devices.offer import Offer
from mdl.protocol.vocabulary import Message

# Bytes of a parcel that travel at once: a small device holds them in memory, and a broken link costs as many.
PART_BYTES = 4 << 20
# Far more than a person's recordings; a device's disk and memory are bounded by what its user offers.
MAX_PARCEL_BYTES = 1 << 36

SharingId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
SomeSharingId: TypeAlias = Annotated[bytes, Meta(max_length=16)]
ParcelDigest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
ParcelBytes: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PARCEL_BYTES)]
PartNumber: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_PARCEL_BYTES // PART_BYTES)]


class WindowsSought(Message, frozen=True):
    """A taker to the device that it accepts windows from, again and again; tells what it offers and what it has.

    offer: the measure of its share.
    held: the sharing of the windows that it has, or is fetching; empty: none.
    is_whole: it has all of them.
    """

    offer: Offer
    held: SomeSharingId = b""
    is_whole: bool = False


class WindowsOffered(Message, frozen=True):
    """The giver to a taker: its share is there to be fetched.

    sharing_id: drawn for this taker and this sharing.
    size_bytes: of the parcel.
    digest: SHA-256 of it.
    train: training windows in it.
    test: test windows in it.
    """

    sharing_id: SharingId
    size_bytes: ParcelBytes
    digest: ParcelDigest
    train: Count
    test: Count


class PartWanted(Message, frozen=True):
    """A taker to the giver: send PART_BYTES of the parcel from part * PART_BYTES on.

    sharing_id: as it was offered.
    part: counted from 0.
    """

    sharing_id: SharingId
    part: PartNumber


class PartMessage(Message, frozen=True):
    """The giver to a taker: that part; carries its bytes.

    sharing_id: as it was offered.
    part: as it was wanted.
    """

    sharing_id: SharingId
    part: PartNumber


class WindowsRecalled(Message, frozen=True):
    """The giver to a taker: the sharing has ended; delete what you have of it.

    sharing_id: of what is to be deleted.
    """

    sharing_id: SharingId
