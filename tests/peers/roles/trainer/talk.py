"""What an exchange makes of one message of another."""

from __future__ import annotations

import numpy as np

from mdl.peers.roles.trainer.exchange import Exchange
from mdl.protocol.bulk import Bulk
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Send
from mdl.protocol.segment_messages import PieceMessage, SegmentMessage, SegmentsReady, SegmentTaken


def hear(exchange: Exchange, sender: Contributor, message: object, values: Bulk | None, now: float) -> list[Send]:
    if isinstance(message, SegmentsReady):
        return exchange.hear_ready(sender, message, now)
    if isinstance(message, SegmentTaken):
        return exchange.hear_taken(sender, message, now)
    assert isinstance(values, np.ndarray)
    if isinstance(message, PieceMessage):
        return exchange.take_piece(sender, message, values, now)
    assert isinstance(message, SegmentMessage)
    return exchange.take_result(sender, message, values, now)
