"""A node of the fault tests that alters what it gives to others: `altering_node.py WAY ...`."""

import sys
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import fault_node

from mdl.peers.roles.trainer import progress
from mdl.peers.roles.trainer.exchange import SegmentExchange
from mdl.protocol.round_messages import DeltaMessage, GlobalMessage, PieceMessage, SegmentMessage
from mdl.transport.links.transfers import Transfers

OLD = {}  # kind of message -> the values of the first one


def more(message, sums):
    sums[-1] += 1
    return message, sums


def negated(message, sums):
    return message, -sums


def halved(message, sums):
    return message, sums // 2


def heavier(message, sums):
    return msgspec.structs.replace(message, theta=2 * message.theta), sums


def replayed(message, sums):
    return message, OLD.setdefault(type(message), sums.copy())


def swapped(message, sums):
    """The first contributor is another one."""
    first, *rest = message.contributors
    other = msgspec.structs.replace(first, peer_id="p4")
    return msgspec.structs.replace(message, contributors=(*rest, other)), sums


# Way -> the messages that are altered, and how.
WAYS = {
    "one value of a segment": (SegmentMessage, more),
    "the sign of a segment": (SegmentMessage, negated),
    "a segment for one device": (SegmentMessage, more),
    "a scaled piece": (PieceMessage, halved),
    "a piece of another theta": (PieceMessage, heavier),
    "a segment of an earlier round": (SegmentMessage, replayed),
    "one value of a load": (DeltaMessage, more),
    "other contributors of a load": (DeltaMessage, swapped),
    "one value of the result": (GlobalMessage, more),
    "the result of an earlier round": (GlobalMessage, replayed),
}


def alter(way):
    kind, change = WAYS[way]
    send = Transfers.send

    def altered(self, receiver, message, values, now):
        is_whole = not isinstance(message, DeltaMessage) or len(message.contributors) > 1
        if type(message) is kind and is_whole and (way != "a segment for one device" or receiver == "p1"):
            message, sums = change(message, values.view(np.int32).copy())
            values = sums.astype(np.int32).view(np.float32)
        return send(self, receiver, message, values, now)

    Transfers.send = altered


if __name__ == "__main__":
    way = sys.argv.pop(1)
    if way == "looks away":
        SegmentExchange._is_altered = lambda *_: False
    elif way == "tells no checksum":
        add_round = progress._add_round
        progress._add_round = lambda report, part: msgspec.structs.replace(add_round(report, part), checksum=None)
    else:
        alter(way)
    fault_node.main()
