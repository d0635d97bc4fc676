"""The codec: every message survives it, and nothing else gets through."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.bounds import MAX_HEADER_BYTES, MAX_MEMBERS
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import PROTOCOL_VERSION, Hello, PeersKnown
from mdl.protocol.round_messages import DeltaMessage
from mdl.protocol.statements import (
    MAX_HOSTS,
    MAX_KEPT,
    STATEMENTS_A_MESSAGE,
    CodeChanged,
    DeviceRevoked,
    Enrolled,
    OwnerNamed,
    Proof,
)
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.wire.codec import (
    ChunkSent,
    ChunksWanted,
    CodeTold,
    RosterTold,
    TransferDropped,
    TransferEnded,
    TransferOffered,
    decode,
    encode,
)
from tests.fuzz.hostile import forced

ME = Contributor("phone", 7)
DELTA = DeltaMessage(3, 4, 2.5, (Contributor("a", 1), Contributor("b", 2)))
INFO = PeerInfo("phone", 7, Role.TRAINER, "127.0.0.1", 5750, "abc")
KEY, SIGNATURE = bytes(range(32)), bytes(64)
ENROLLED = Enrolled(KEY, "phone", KEY, SIGNATURE, SIGNATURE)
PROVEN = msgspec.structs.replace(INFO, proof=Proof(ENROLLED, 5751, ("127.0.0.1", "::1"), 9, SIGNATURE))
STATEMENTS = (
    ENROLLED,
    OwnerNamed(KEY, KEY, SIGNATURE),
    DeviceRevoked(KEY, KEY, 7, "phone", "lost", SIGNATURE),
    CodeChanged(1, bytes(16), (KEY,), KEY, SIGNATURE),
)
BODIES = [
    StatusWanted(4),
    Hello(INFO),
    PeersKnown((INFO,)),
    TransferOffered(1, 1000, DELTA),
    ChunksWanted(1, 0, 4096, True),
    ChunkSent(1, 4096),
    TransferEnded(1, "too large"),
    TransferDropped(1),
    Hello(PROVEN, b"x" * 16),
    PeersKnown((INFO, PROVEN)),
    RosterTold(bytes(16), STATEMENTS, True),
    CodeTold("home:2222-2222-2222-2222-222i"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_message_comes_out_as_it_went_in(body):
    envelope = decode(encode(ME, body))
    assert (envelope.sender, envelope.body) == (ME, body)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_nothing_worse(data):
    with pytest.raises(RemoteProtocolError):
        decode(data)


@given(st.sampled_from(BODIES), st.data())
def test_a_damaged_message_is_refused_or_is_still_a_checked_one(body, data):
    frame = bytearray(encode(ME, body))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for damaged in (bytes(frame), bytes(frame[:cut]), bytes(frame) + b"\0"):
        try:
            envelope = decode(damaged)
        except RemoteProtocolError:
            continue
        assert decode(encode(envelope.sender, envelope.body)) == envelope


def test_another_protocol_version_is_refused_with_both_versions_named():
    body = msgspec.to_builtins(StatusWanted())
    known = msgspec.msgpack.encode(
        {"version": PROTOCOL_VERSION + 1, "sender": {"peer_id": "a", "incarnation": 1}, "body": body}
    )
    unknown = msgspec.msgpack.encode({"version": PROTOCOL_VERSION + 1, "from": "a", "said": [1, 2]})
    for frame in (known, unknown):
        with pytest.raises(RemoteProtocolError, match=f"version {PROTOCOL_VERSION + 1}, this one {PROTOCOL_VERSION}"):
            decode(frame)


@pytest.mark.parametrize("sender", [("", 1), ("x" * 65, 1), ("a", -1), ("a", 1 << 63)])
def test_a_sender_needs_a_valid_id_and_incarnation(sender):
    frame = encode(Contributor(*sender), StatusWanted())
    with pytest.raises(RemoteProtocolError, match="sender"):
        decode(frame)


@pytest.mark.parametrize(
    "statement",
    [
        msgspec.structs.replace(ENROLLED, device=KEY[1:]),
        msgspec.structs.replace(ENROLLED, signature=SIGNATURE + b"0"),
        msgspec.structs.replace(ENROLLED, peer_id="../x"),
        CodeChanged(1, bytes(16), (KEY,) * (MAX_KEPT + 1), KEY),
        CodeChanged(0, bytes(16), (), KEY),
        DeviceRevoked(KEY, KEY, 7, "phone", "a\x1b[2J"),
        Hello(INFO),
    ],
)
def test_a_statement_out_of_bounds_is_refused(statement):
    with pytest.raises(RemoteProtocolError):
        decode(encode(ME, RosterTold(bytes(16), (statement,))))


def test_a_message_holds_so_many_statements_and_a_proof_so_many_addresses():
    assert decode(encode(ME, RosterTold(bytes(16), (ENROLLED,) * STATEMENTS_A_MESSAGE)))
    hosts = Proof(ENROLLED, 5751, ("127.0.0.1",) * (MAX_HOSTS + 1), 9)
    long = forced(Proof(ENROLLED, 5751, ("127.0.0.1",), 9), {"hosts": ("1" * 40,)})
    for body in (
        Hello(msgspec.structs.replace(INFO, proof=long)),
        RosterTold(bytes(16), (ENROLLED,) * (STATEMENTS_A_MESSAGE + 1)),
        Hello(msgspec.structs.replace(INFO, proof=hosts)),
        Hello(msgspec.structs.replace(INFO, proof=Proof(ENROLLED, 5751, (), 9))),
    ):
        with pytest.raises(RemoteProtocolError):
            decode(encode(ME, body))


def test_a_full_mesh_fits_into_one_message():
    """Or a newcomer would hear of nobody: with the longest names and addresses there are."""
    name, host = "n" * 64, "fd12:3456:789a:bcde:ffff:ffff:ffff:ffff"
    proof = Proof(msgspec.structs.replace(ENROLLED, peer_id=name), 65535, (host,) * MAX_HOSTS, 1 << 45, SIGNATURE)
    info = PeerInfo(name, 1 << 45, Role.TRAINER, host, 65535, "a" * 16, proof)
    assert len(encode(ME, PeersKnown((info,) * MAX_MEMBERS))) < MAX_HEADER_BYTES


def test_a_header_beyond_the_limit_is_neither_sent_nor_read():
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(bytes(MAX_HEADER_BYTES + 1))
    with pytest.raises(LocalProtocolError, match="beyond"):
        encode(ME, TransferEnded(1, "x" * MAX_HEADER_BYTES))
