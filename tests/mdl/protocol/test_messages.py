"""Messages survive the wire unchanged, and what is no message is told so by the decoder."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.bounds import MAX_MEMBERS, MAX_TEXT
from mdl.protocol.cloud_messages import (
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateMessage,
    UpdateNamed,
    UpdateOffered,
)
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import CARRIERS, Hello, PeersKnown, Said
from mdl.protocol.round_messages import (
    AgentMessage,
    AgentPresent,
    AgentResigned,
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    HopOrdered,
    MemberRefused,
    ModelMessage,
    PeerReport,
    PieceMessage,
    RoundOpened,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.sharing_messages import Offer, PartMessage, PartWanted, WindowsOffered, WindowsRecalled, WindowsSought
from mdl.protocol.statements import Enrolled, Proof
from mdl.protocol.status_messages import PageServed
from mdl.protocol.vocabulary import (
    MAX_FORKS,
    Activity,
    Counted,
    Fork,
    History,
    Holding,
    HopDecision,
    HopOutcome,
    Incoming,
    Message,
    PeerInfo,
    ResourceState,
    Role,
    RoundEvaluation,
    Staged,
    TrainingReport,
    Transfer,
)

ANN, BOB = Contributor("ann", 1), Contributor("bob", 2)
FORKS = (Fork(0, 2, "ann.1.7"), Fork(4, 1, "bob.2.70007"))
# What the decoder raises: a text that is no UTF-8 has an error of its own.
REFUSED = (msgspec.MsgspecError, UnicodeDecodeError)
ENCODER, DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Said)
INFO = PeerInfo("ann", 1, Role.TRAINER, "192.0.2.1", 7)
KEY, SIGNATURE = bytes(range(32)), bytes(64)
PROOF = Proof(Enrolled(KEY, "ann", KEY, SIGNATURE, SIGNATURE), 8, ("10.0.0.1", "10.0.0.2"), 9, SIGNATURE)
PROVEN = PeerInfo("ann", 1, Role.TRAINER, "10.0.0.1", 7, "schema", PROOF)
REPORT = PeerReport(
    sequence=3,
    term=2,
    round_id=1,
    digest=b"1234567890123456",
    schema_hash="schema",
    model="lenet",
    size=10,
    activity=Activity.SENT,
    open_round=2,
    open_term=2,
    agent="bob",
    lineage=FORKS,
    base=("ann", "bob"),
    votes=True,
    goal=9,
    incoming=Incoming(2_000_002, BOB),
    holding=Holding(2.5, (ANN,), 2_000_000, BOB),
    hops=(HopDecision(2_000_001, BOB, HopOutcome.ABORTED, 1.5, 0, "cancelled"),),
    staged=Staged(b"digest", 3.0, (ANN,), 2, 1),
    resources=ResourceState(1 << 33, 12.5, 80.0, True, False),
    training=TrainingReport(0.7, 100, 1.2),
    evaluation=RoundEvaluation(1, Evaluation((1, 0), (1, 0), (0, 1), 0.5, 2, ((1, 0), (1, 0)))),
    transfer=Transfer("bob", 5, 40),
    sent_bytes=9,
)
MESSAGES: list[Said] = [
    REPORT,
    AgentPresent(1, 2, FORKS, True, ("bob",)),
    AgentResigned(1, 2),
    RoundOpened(1, 2, b"digest", (ANN,), 1, FORKS, ("ann",), 3, ("bob",)),
    HopOrdered(1, 2, 1_000_000, ANN),
    BroadcastOrdered(1, 2, b"base", 1, (ANN,), 1.0, (ANN,), b"digest"),
    CatchUp(1, 2, b"digest", ANN, FORKS, ("ann",)),
    ModelMessage(2, b"digest", History(FORKS, ("ann",), (Counted(ANN, 2),))),
    DeltaMessage(2, 1_000_000, 1.0, (ANN,)),
    BroadcastOrdered(1, 2, b"base", 1, (ANN, BOB), 2.0, (ANN, BOB), owns=(3, 1), segment_values=4096, room=131),
    SegmentsReady(2, 1, 1),
    PieceMessage(2, 1, 1, 3, 1.0),
    SegmentMessage(2, 1, 1, 3),
    SegmentTaken(2, 1, 1, 3, True),
    LessonWanted("ann", "schema", "lenet", 3),
    LessonMessage("ann", 4, 1, synchronous=True),
    UpdateOffered("ann", "schema", 2, b"digest", 4, 1),
    UpdateMessage("ann", "schema", 2, b"digest"),
    PupilRefused("ann", "another task", b"digest", pull_again=True),
    WindowsSought(Offer(120.5, 1 << 30, 80.0, False), b"s" * 16, True),
    WindowsOffered(b"s" * 16, 5_000_000, b"d" * 32, 40, 10),
    PartWanted(b"s" * 16, 1),
    PartMessage(b"s" * 16, 1),
    WindowsRecalled(b"s" * 16),
    Hello(INFO),
    PeersKnown((INFO, PROVEN)),
    PageServed(8420),
]


def _subclasses(kind: type) -> set[type]:
    return {leaf for each in kind.__subclasses__() for leaf in ({each} | _subclasses(each))}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Said) -> None:
    assert DECODER.decode(ENCODER.encode(message)) == message


def test_every_message_can_be_said_and_is_frozen() -> None:
    said = set(Said.__args__)  # type: ignore[attr-defined]
    spoken = {kind for kind in _subclasses(Message) if kind.__module__.startswith("mdl.protocol.")}
    assert said == spoken - {AgentMessage, UpdateNamed}
    assert set(CARRIERS) <= said
    assert all(kind.__struct_config__.frozen for kind in said)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_message(junk: bytes) -> None:
    with pytest.raises(REFUSED):
        DECODER.decode(junk)


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_report_with_a_wrong_byte_is_a_report_or_refused(position: int, value: int) -> None:
    data = bytearray(ENCODER.encode(REPORT))
    data[position % len(data)] = value
    with contextlib.suppress(*REFUSED):
        assert isinstance(DECODER.decode(data), Message)


@pytest.mark.parametrize(
    "message",
    [
        msgspec.structs.replace(REPORT, sequence=-1),
        msgspec.structs.replace(REPORT, digest=b"x" * 33),
        msgspec.structs.replace(REPORT, schema_hash="x" * (MAX_TEXT + 1)),
        RoundOpened(1, 2, b"", (ANN,) * (MAX_MEMBERS + 1)),
        RoundOpened(1, 2, b"", (ANN,), lineage=FORKS[:1] * (MAX_FORKS + 1)),
        AgentPresent(1, 2, successors=("ann",) * (MAX_MEMBERS + 1)),
        ModelMessage(2, b"", History(counted=(Counted(ANN, 2),) * (MAX_MEMBERS + 1))),
        MemberRefused(1, 0, "x" * (MAX_TEXT + 1)),
        Hello(msgspec.structs.replace(INFO, port=65536)),
        Hello(msgspec.structs.replace(INFO, peer_id="")),
        Hello(msgspec.structs.replace(INFO, peer_id="x" * 65)),
    ],
)
def test_what_is_out_of_bounds_is_refused(message: Said) -> None:
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(ENCODER.encode(message))


def test_a_wrong_type_or_an_unknown_message_is_refused() -> None:
    wrong = {"type": "GlobalWanted", "round_id": "1"}
    for junk in ({"type": "Nonsense"}, wrong, 3, None):
        with pytest.raises(msgspec.ValidationError):
            DECODER.decode(ENCODER.encode(junk))
