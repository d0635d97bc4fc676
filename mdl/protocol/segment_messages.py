"""What devices say to each other while a delta travels in segments: pieces to the segments' owners, results to all."""

from __future__ import annotations

from mdl.bounds import Count, Round, SegmentNumber, Term, Theta
from mdl.protocol.vocabulary import Message


class SegmentsReady(Message, frozen=True):
    """Receiver to sender: it follows this order; send what it needs. Nothing is sent before this.

    round_id: the round of the order.
    term: of the order.
    version: of the order.
    """

    round_id: Round
    term: Term
    version: Count


class PieceMessage(Message, frozen=True):
    """Contributor to owner: its own delta in one segment; carries values, float32, as many as the segment has.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    theta: the weight of the sender's own delta.
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    theta: Theta


class SegmentMessage(Message, frozen=True):
    """Owner to all: the global delta in one segment; carries values, float32, as many as the segment has.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber


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
