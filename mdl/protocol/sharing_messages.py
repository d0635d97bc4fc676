"""The messages of one person's devices about windows that one of them shares (MDLdroid 1, the individual model). Pure.

The device that has the data is the giver, one that accepts some of it a taker. The taker asks, and says all of what it
has each time; the giver answers only devices with a key that its user has named.

All train equally long: windows follow the speed and power that a device offers, up to its memory. Shares are disjoint
and together the whole; windows that no other device takes stay in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import Bytes, Count, Percent
from mdl.protocol.vocabulary import Message

# On battery a device takes half of what it would take on its charger, and less the emptier it is.
ON_BATTERY = 0.5
# Below this level a device takes nothing: its battery is to last until its owner charges it.
LEAST_BATTERY_PERCENT = 20.0
# Beyond any processor: windows are at least some multiplications.
FASTEST_WINDOWS_S = 1e9

Speed = Annotated[float, Meta(ge=0.0, le=FASTEST_WINDOWS_S)]


class Offer(msgspec.Struct, frozen=True):
    """One device's resources.

    windows_s: windows that it trains in a second.
    memory_bytes: for windows; 0: no limit.
    battery_percent: of a full charge; None: it has no battery.
    charging: it is on its charger; None: not known.
    """

    windows_s: Speed
    memory_bytes: Bytes = 0
    battery_percent: Percent | None = None
    charging: bool | None = None

    def weight(self) -> float:
        """Return the device's speed, scaled by its battery."""
        if self.charging or self.battery_percent is None:
            return self.windows_s
        if self.battery_percent < LEAST_BATTERY_PERCENT:
            return 0.0
        return self.windows_s * ON_BATTERY * self.battery_percent / 100.0

    def most_windows(self, window_bytes: int) -> float:
        return self.memory_bytes // window_bytes if self.memory_bytes else math.inf


def share_out(total: int, window_bytes: int, own: Offer, others: Sequence[Offer]) -> list[int]:
    """Return each device's number of windows, the present holder first: by `Offer.weight`, up to its memory.

    They add up to `total`. Windows for which some have no room are divided anew among those with room; in the end they
    stay with the first device, which has all of them already.
    """
    weights = [own.weight(), *(offer.weight() for offer in others)]
    most = [math.inf, *(offer.most_windows(window_bytes) for offer in others)]
    shares = [0] * len(weights)
    open_ = [place for place, weight in enumerate(weights) if weight > 0.0]
    left = total
    while open_:
        ideal = _divide(left, [weights[place] for place in open_])
        full = [place for place, share in zip(open_, ideal, strict=True) if share > most[place]]
        if not full:
            break
        for place in full:
            shares[place] = int(most[place])
        left -= sum(shares[place] for place in full)
        open_ = [place for place in open_ if place not in full]
    for place, share in zip(open_, apportion(left, [weights[place] for place in open_]), strict=True):
        shares[place] = share
    shares[0] += total - sum(shares)
    return shares


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers adding up to `total`, by largest remainder, the first of equal ones; [] without weights."""
    ideal = _divide(total, weights)
    shares = [math.floor(share) for share in ideal]
    by_rest = sorted(range(len(ideal)), key=lambda place: (shares[place] - ideal[place], place))
    for place in by_rest[: total - sum(shares) if shares else 0]:
        shares[place] += 1
    return shares


def _divide(total: int, weights: Sequence[float]) -> list[float]:
    whole = math.fsum(weights)
    return [total * weight / whole for weight in weights]


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
