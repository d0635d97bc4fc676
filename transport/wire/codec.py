"""The format of messages: one envelope per message, and beside it the raw bytes of one chunk.

Rules: sizes first, then types, then meaning, all before anything of the sender's choosing is allocated. For any bytes
of a peer, `decode` returns a checked envelope or raises RemoteProtocolError. Never pickle.
Knows nothing of sockets.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import MAX_HEADER_BYTES, MAX_VALUES, UNREADABLE, Bytes, Count, Text
from mdl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import PROTOCOL_VERSION, Said
from mdl.protocol.round_messages import DeltaMessage, GlobalMessage, ModelMessage
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES
from mdl.protocol.sharing_messages import PartMessage
from mdl.protocol.statements import CodeHash, Statements
from mdl.protocol.vocabulary import Message
from mdl.transport.trust.keys import parse_join_code

# A quarter of a second on a 10 Mbit/s link: short enough to see progress, long enough that Python is not the limit.
CHUNK_BYTES = 1 << 18
# Chunks of a slow link: each is a power of two, from this one up. A message shows progress only as a whole.
SMALLEST_CHUNK_BYTES = 1 << 14
# Connections that share a transfer over a link that waits much: each waits by itself. More cost handshakes.
MAX_STREAMS = 8
# The most bytes in one ZeroMQ frame; libzmq drops the connection of a peer that sends more. CURVE adds some 33 bytes.
MAX_FRAME_BYTES = max(MAX_HEADER_BYTES, CHUNK_BYTES, LARGEST_SEGMENT_BYTES) + 256

Carrier: TypeAlias = DeltaMessage | GlobalMessage | ModelMessage | LessonMessage | UpdateMessage | PartMessage
Streams: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_STREAMS)]
SomeBytes: TypeAlias = Annotated[int, Meta(ge=1, le=4 * MAX_VALUES)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
FlowId: TypeAlias = Annotated[bytes, Meta(min_length=8, max_length=8)]
FlowKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
# Far more versions than there will be, so that an error can name another one by its number.
Version: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]


class TransferOffered(Message, frozen=True):
    """Sender: `message` waits with `size_bytes` of float32 values, or of a packed model; ask for its chunks.

    streams: the number of connections that carry chunks sent unasked.
    """

    transfer_id: Count
    size_bytes: SomeBytes
    message: Carrier
    streams: Streams = 1


class ChunksWanted(Message, frozen=True):
    """Receiver: all before offset_bytes is here; send up to limit_bytes. again: repeat what was already sent of that.

    chunk_bytes, streams: the size of a chunk that the link carries in a moment, and the number of connections to use
    (`mdl.transport.wire.bulk`).
    """

    transfer_id: Count
    offset_bytes: Bytes
    limit_bytes: Bytes
    again: bool = False
    chunk_bytes: Annotated[int, Meta(ge=SMALLEST_CHUNK_BYTES, le=CHUNK_BYTES)] = CHUNK_BYTES
    streams: Streams = 1


class ChunkSent(Message, frozen=True):
    """Sender: the frame beside this header holds the bytes from offset_bytes on."""

    transfer_id: Count
    offset_bytes: Bytes


class TransferEnded(Message, frozen=True):
    """Receiver: nothing more of this transfer is wanted. reason: empty if it arrived whole."""

    transfer_id: Count
    reason: Text = ""


class TransferDropped(Message, frozen=True):
    """Sender: this transfer is not, or no longer, being sent."""

    transfer_id: Count


class RosterTold(Message, frozen=True):
    """The sender's knowledge of the mesh's members (`mdl.transport.links.introducer`).

    digest: of its whole roster. is_all: these statements and those right before are all of it.
    """

    digest: CodeHash
    statements: Statements = ()
    is_all: bool = False


class CodeTold(Message, frozen=True):
    """An owner's new join code, for members alone."""

    code: Text

    def __post_init__(self) -> None:
        """Raise ValueError unless this is a join code: a decoder refuses the message then."""
        try:
            parse_join_code(self.code)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class FlowOffered(Message, frozen=True):
    """The peers may exchange datagrams (`mdl.transport.wire.datagrams`). port: the sender's UDP port.

    flow_id, key: the other side puts the id on its datagrams, and seals them with the key.
    """

    port: Port
    flow_id: FlowId
    key: FlowKey


class FlowAnswered(Message, frozen=True):
    """The other half of the flow that FlowOffered with offered_id has begun."""

    port: Port
    flow_id: FlowId
    key: FlowKey
    offered_id: FlowId


FLOW_MESSAGES = (FlowOffered, FlowAnswered)
Handled: TypeAlias = TransferOffered | ChunksWanted | ChunkSent | TransferEnded | TransferDropped
Body: TypeAlias = Said | Handled | RosterTold | CodeTold | FlowOffered | FlowAnswered


class Envelope(msgspec.Struct, frozen=True):
    version: Version
    sender: Contributor
    body: Body


class _VersionOnly(msgspec.Struct, frozen=True):
    version: Version


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_version_decoder = msgspec.msgpack.Decoder(_VersionOnly)


def encode(sender: Contributor, body: Body) -> bytes:
    """Return the header frame of a message. Raises LocalProtocolError if no receiver could read it."""
    try:
        frame = _encoder.encode(Envelope(PROTOCOL_VERSION, sender, body))
    except OverflowError as error:
        raise LocalProtocolError(f"{type(body).__name__}: {error}") from None
    if len(frame) > MAX_HEADER_BYTES:
        raise LocalProtocolError(f"{type(body).__name__} of {len(frame)} bytes is beyond {MAX_HEADER_BYTES}")
    return frame


def decode(frame: bytes | memoryview) -> Envelope:
    """Return the checked envelope of a header frame. Raises RemoteProtocolError, and nothing else, for any bytes."""
    if len(frame) > MAX_HEADER_BYTES:
        raise RemoteProtocolError(f"a header of {len(frame)} bytes, at most {MAX_HEADER_BYTES} are accepted")
    try:
        envelope = _decoder.decode(frame)
    except UNREADABLE as error:
        _refuse_version(frame)
        raise RemoteProtocolError(f"not a message: {error}") from None
    if envelope.version != PROTOCOL_VERSION:
        raise _version_error(envelope.version)
    return envelope


def _refuse_version(frame: bytes | memoryview) -> None:
    """Raise an error about the version if it is another: only the version may be readable then, not the fields."""
    try:
        version = _version_decoder.decode(frame).version
    except UNREADABLE:
        return
    if version != PROTOCOL_VERSION:
        raise _version_error(version)


def _version_error(version: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer speaks protocol version {version}, this one {PROTOCOL_VERSION}")
