"""The messages of peers. Frozen structs: the decoder checks every type; random bytes do not become a message.

Some messages announce bulk data (`CARRIERS`), which travels raw beside the header: models as little-endian float32,
sums as int32 (`mdl/protocol/grid.py`), coded means of segments, or packed bytes (`PACKED`).
A report is the sender's whole state, not a change: a peer that missed ten reports knows everything after the eleventh.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from mdl.bounds import MAX_MEMBERS
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateMessage,
    UpdateOffered,
    UpdateTaken,
    UpdateWanted,
    VectorMessage,
)
from mdl.protocol.round_messages import (
    AgentPresent,
    AgentResigned,
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    GlobalTaken,
    GlobalWanted,
    HopCancelled,
    HopOrdered,
    HopReleased,
    MemberQuarantined,
    MemberRefused,
    MeshFinished,
    ModelMessage,
    ModelWanted,
    PeerReport,
    PieceMessage,
    RoundClosed,
    RoundOpened,
    RoundTold,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.sharing_messages import PartMessage, PartWanted, WindowsOffered, WindowsRecalled, WindowsSought
from mdl.protocol.status_messages import MeshStatus, PageServed, StatusWanted
from mdl.protocol.vocabulary import Message, Nonce, PeerInfo

PROTOCOL_VERSION = 15


class Hello(Message, frozen=True):
    """A node introduces itself to an address it was given (`--join`), or to a peer it found.

    me: the sender, and where it listens.
    challenge: to another process of the same name: say this back, from where you listen.
    answer: the challenge of the other one, said back.
    """

    me: PeerInfo
    challenge: Nonce = b""
    answer: Nonce = b""


class PeersKnown(Message, frozen=True):
    """Members pass on the addresses they know.

    peers: those.
    """

    peers: Annotated[tuple[PeerInfo, ...], Meta(max_length=MAX_MEMBERS)]


Said: TypeAlias = (
    PeerReport
    | AgentPresent
    | AgentResigned
    | RoundOpened
    | HopOrdered
    | HopCancelled
    | HopReleased
    | BroadcastOrdered
    | RoundClosed
    | CatchUp
    | MemberRefused
    | MemberQuarantined
    | MeshFinished
    | RoundTold
    | DeltaWanted
    | DeltaMessage
    | GlobalWanted
    | GlobalTaken
    | GlobalMessage
    | ModelWanted
    | ModelMessage
    | SegmentsReady
    | PieceMessage
    | SegmentMessage
    | SegmentTaken
    | StatusWanted
    | MeshStatus
    | PageServed
    | LessonWanted
    | LessonCurrent
    | LessonMessage
    | UpdateOffered
    | UpdateWanted
    | UpdateMessage
    | UpdateTaken
    | VectorMessage
    | PupilRefused
    | WindowsSought
    | WindowsOffered
    | PartWanted
    | PartMessage
    | WindowsRecalled
    | Hello
    | PeersKnown
)
# Carriers with values that the receiver compares with a digest: they are hashed on arrival, and never again.
DIGESTED = (GlobalMessage, ModelMessage)
# Carriers of integers that are a sum, or a part of one, of which the receiver knows the checksum.
SUMMED = (GlobalMessage, PieceMessage, SegmentMessage)
# Carriers of bytes; those of a mesh carry float32 values.
PACKED = (LessonMessage, UpdateMessage, PartMessage)
CARRIERS = (DeltaMessage, GlobalMessage, ModelMessage, *PACKED)
# Carriers of one segment: their values come in the same message, at most LARGEST_SEGMENT_BYTES of them.
SEGMENTS = (PieceMessage, SegmentMessage)
# Each is answered with a carrier.
ASKS = (DeltaWanted, GlobalWanted, ModelWanted, LessonWanted, UpdateWanted, PartWanted)
