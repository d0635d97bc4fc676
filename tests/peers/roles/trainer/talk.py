"""What an exchange makes of one message of another."""

from __future__ import annotations

import numpy as np

from mdl.peers.roles.trainer.exchange import SegmentExchange
from mdl.protocol.checksum import checksum_of
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import PieceMessage, SegmentMessage, SegmentsReady, SegmentTaken
from mdl.protocol.vocabulary import Bulk


def hear(
    exchange: SegmentExchange, sender: Contributor, message: object, values: Bulk | None, now: float
) -> list[Send]:
    if isinstance(message, SegmentsReady):
        return exchange.hear_ready(sender, message, now)
    if isinstance(message, SegmentTaken):
        return exchange.hear_taken(sender, message, now)
    assert isinstance(values, np.ndarray)
    assert isinstance(message, PieceMessage | SegmentMessage)
    checksum = checksum_of(values.view(np.int32), message.start)
    if isinstance(message, PieceMessage):
        return exchange.take_piece(sender, message, values, now, checksum)
    return exchange.take_result(sender, message, values, now, checksum)
