"""A device's keys follow from its secret, and only it can sign for itself."""

from __future__ import annotations

import msgspec
import pytest
import zmq

from mdl.errors import ConfigError
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.device_key import DeviceKey, is_signed, where_claim
from mdl.trust.statements import Enrolled, OwnerNamed, Proof, claim_of

DEVICE, OTHER = DeviceKey.of(bytes(32)), DeviceKey.of(b"x" * 32)


def test_the_same_secret_gives_the_same_keys_and_none_of_them_shows() -> None:
    again = DeviceKey.of(bytes(32))
    assert again == DEVICE
    assert len({DEVICE.public, OTHER.public, DEVICE.link_key, OTHER.link_key}) == 4
    assert zmq.curve_public(DEVICE.curve_secret) == DEVICE.curve_public
    assert DEVICE.curve_secret.decode() not in repr(DEVICE)
    assert (len(DEVICE.public), len(DEVICE.link_key)) == (32, 32)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_of_another_size_is_named(size: int) -> None:
    with pytest.raises(ConfigError, match=f"{size} bytes, it has 32"):
        DeviceKey.of(bytes(size))


def test_a_signature_is_of_one_key_and_one_text() -> None:
    signature = DEVICE.signing.sign(b"claim")
    assert is_signed(DEVICE.public, b"claim", signature)
    assert not is_signed(DEVICE.public, b"claims", signature)
    assert not is_signed(OTHER.public, b"claim", signature)
    for broken in (b"", signature[:-1], signature[:-1] + b"\0\0"):
        assert not is_signed(DEVICE.public, b"claim", broken)
    assert not is_signed(b"short", b"claim", signature)


def test_a_statement_is_about_one_mesh() -> None:
    bare = OwnerNamed(OTHER.public, DEVICE.public)
    signed = msgspec.structs.replace(bare, signature=DEVICE.signing.sign(claim_of("home:a", bare)))
    assert is_signed(DEVICE.public, claim_of("home:a", signed), signed.signature)
    assert not is_signed(DEVICE.public, claim_of("home:b", signed), signed.signature)
    assert not is_signed(OTHER.public, claim_of("home:a", signed), signed.signature)
    assert claim_of("home:a", signed) == claim_of("home:a", bare), "signatures are not signed"


def test_all_that_is_said_of_a_peer_is_signed_but_the_host_that_was_chosen() -> None:
    proof = Proof(Enrolled(DEVICE.public, "ann", DEVICE.link_key), 6, ("10.0.0.1", "10.0.0.2"), 7)
    info = PeerInfo("ann", 1, Role.TRAINER, "10.0.0.1", 5, "abc")
    claim = where_claim("home:a", info, proof)
    assert where_claim("home:a", msgspec.structs.replace(info, host="10.0.0.2"), proof) == claim
    changed = [{"peer_id": "bob"}, {"incarnation": 2}, {"role": Role.AGENT}, {"port": 6}, {"schema_hash": "abd"}]
    claims = [where_claim("home:a", msgspec.structs.replace(info, **each), proof) for each in changed]
    for field in ({"link_port": 7}, {"hosts": ("10.0.0.1",)}, {"serial": 8}):
        claims.append(where_claim("home:a", info, msgspec.structs.replace(proof, **field)))
    claims.append(where_claim("home:b", info, proof))
    assert len({claim, *claims}) == 10
