"""The messages while a delta travels in segments: pieces to the segments' owners, results to all."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mdl.bounds import (
    MAX_MEMBERS,
    MAX_SEGMENTS,
    Checksum,
    Count,
    Place,
    Round,
    SegmentBits,
    SegmentCount,
    SegmentNumber,
    Term,
    Theta,
    ValueCount,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import Message


class Lost(Struct, frozen=True):
    """A contributor that was lost in the middle of an exchange: its pieces stay where they are merged.

    contributor: the process.
    theta: the weight of its own delta.
    place: that it had in the order at first.
    owns: number of segments that it owned at first.
    """

    contributor: Contributor
    theta: Theta
    place: Place
    owns: SegmentCount


class Exchanging(Struct, frozen=True):
    """The exchange that a device takes part in, and how far it has followed it.

    term: of the order that it began with.
    version: of that order.
    lost: number of its devices that were lost since then.
    """

    term: Term
    version: Count
    lost: Count = 0

    def is_same(self, other: Exchanging) -> bool:
        """Return True if both began with the same order."""
        return (self.term, self.version) == (other.term, other.version)


class SegmentsReady(Message, frozen=True):
    """Receiver to sender: it follows this order; send what it needs. Nothing is sent before this.

    round_id: the round of the order.
    term: of the order.
    version: of the order.
    has: one bit for each segment, 1 if it need not come again. It is one of this device's own that has the other's
        piece, or one of the other's with its result here.
    checksums: of its own delta in each segment; (): it gives none, or coded ones.
    asks: it has not heard the checksums of the other one yet.
    """

    round_id: Round
    term: Term
    version: Count
    has: SegmentBits = b""
    checksums: Annotated[tuple[Checksum, ...], Meta(max_length=MAX_SEGMENTS)] = ()
    asks: bool = False


class PieceMessage(Message, frozen=True):
    """Contributor to owner: its own delta in one segment; carries int32 sums, or coded means, of its values.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    theta: the weight of the sender's own delta.
    start: coordinate of the first value.
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    theta: Theta
    start: ValueCount = 0


class SegmentMessage(Message, frozen=True):
    """Owner to all: the result in one segment; carries int32 sums, or coded means, of its values.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    without: contributors with no piece in it, by their number among those that the order has lost.
    start: coordinate of the first value.
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    without: Annotated[tuple[Place, ...], Meta(max_length=MAX_MEMBERS)] = ()
    start: ValueCount = 0


class SegmentTaken(Message, frozen=True):
    """Receiver to sender: the values are here; send what comes next.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    is_result: a SegmentMessage was taken; else a PieceMessage.
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    is_result: bool = False
