"""Join codes that forgive nothing silently, keys that only the code gives, and a device's keys.

These follow from its secret, and only it can sign for itself.
"""

from __future__ import annotations

import re

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from mdl.errors import ConfigError
from mdl.protocol.statements import Enrolled, OwnerNamed, Proof, claim_of
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust import keys as keys_module
from mdl.transport.trust.keys import (
    DERIVED_VARIABLE,
    DeviceKey,
    MeshKeys,
    code_hash,
    founder_mark,
    is_signed,
    mark_of,
    new_join_code,
    parse_join_code,
    run_code,
    show_name,
    where_claim,
)

CODE = new_join_code("home", bytes(range(40, 59)))
CHARACTERS = "23456789abcdefghijkmnpqrstuvwxyz"
DEVICE, OTHER = DeviceKey.of(bytes(32)), DeviceKey.of(b"x" * 32)


def test_a_code_names_its_mesh_and_holds_95_random_bits():
    assert re.fullmatch(r"home(:|-)[2-9a-km-np-z-]{24}", CODE)
    codes = {new_join_code("home") for _ in range(50)}
    assert len(codes) == 50


def test_capitals_missing_dashes_and_blanks_do_not_matter():
    expected = parse_join_code(CODE)
    name, groups = CODE.split(":")
    assert parse_join_code(f" {name.upper()}:{groups.upper().replace('-', '')}\n") == expected
    assert parse_join_code(f"{name}:{groups.replace('-', ' ')}") == expected


@given(st.integers(0, 19), st.sampled_from(CHARACTERS))
def test_every_single_wrong_character_is_noticed(place, character):
    groups = CODE.split(":")[1].replace("-", "")
    typo = groups[:place] + character + groups[place + 1 :]
    if typo == groups:
        assert parse_join_code(f"home:{typo}")
        return
    with pytest.raises(ConfigError, match="typo"):
        parse_join_code(f"home:{typo}")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("home", "no ':'"),
        ("Home sweet:aaaa", "mesh name"),
        (CODE.replace("home", "hume"), "typo in the name"),
        (CODE[:-1], "19 characters"),
        (CODE[:-1] + "0", "'0' is never in a code"),
    ],
)
def test_a_bad_code_says_what_is_wrong(code, problem):
    with pytest.raises(ConfigError, match=problem):
        MeshKeys.from_code(code)


def test_a_name_that_cannot_be_one_is_refused():
    for name in ("", "-a", "a-", "a b", "ü", "x" * 32):
        with pytest.raises(ConfigError, match="mesh name"):
            new_join_code(name)
    with pytest.raises(ConfigError, match="random bytes"):
        new_join_code("home", b"short")


def test_the_same_code_gives_the_same_keys_and_another_gives_others():
    keys, again, other = (MeshKeys.from_code(c) for c in (CODE, CODE, new_join_code("home", bytes(19))))
    assert keys == again
    assert keys.fingerprint != other.fingerprint
    assert keys.server_public != other.server_public
    assert zmq.curve_public(keys.client_secret) == keys.client_public
    assert keys.server_secret != keys.client_secret


@pytest.mark.parametrize("run", ["", "walk"])
def test_keys_that_the_parent_process_hands_over_are_those_of_this_code_alone(run, monkeypatch):
    keys, other = MeshKeys.from_code(CODE, run), MeshKeys.from_code(new_join_code("home", bytes(19)), run)
    monkeypatch.setenv(DERIVED_VARIABLE, keys.hand_over())
    with monkeypatch.context() as nothing:
        nothing.setattr(keys_module, "_scrypt", None)
        assert MeshKeys.from_code(CODE, run) == keys
    assert MeshKeys.from_code(new_join_code("home", bytes(19)), run) == other
    assert MeshKeys.from_code(CODE, "another").server_secret != keys.server_secret


def test_secrets_do_not_show_in_logs():
    keys = MeshKeys.from_code(CODE)
    assert keys.server_secret.decode() not in repr(keys)
    assert "_proof_key" not in repr(keys)
    assert "_derived" not in repr(keys)


def test_another_statement_or_code_gives_another_proof():
    keys, other = MeshKeys.from_code(CODE), MeshKeys.from_code(new_join_code("home", bytes(19)))
    proofs = [keys.prove("a at b"), keys.prove("a at c"), other.prove("a at b")]
    assert proofs[0] == MeshKeys.from_code(CODE).prove("a at b")
    assert len({*proofs}) == 3
    assert {len(proof) for proof in proofs} == {32}


FOUNDER = bytes(range(32))
FOUNDED = new_join_code("home", bytes(range(19)), founder_mark(FOUNDER))


def test_the_founder_is_told_by_its_code_and_nobody_else_is():
    keys = MeshKeys.from_code(FOUNDED)
    assert re.fullmatch(r"home:([2-9a-km-np-z]{4}-){7}[2-9a-km-np-z]{4}", FOUNDED)
    assert keys.is_founder(FOUNDER)
    assert not keys.is_founder(bytes(32))
    assert not MeshKeys.from_code(CODE).is_founder(FOUNDER), "a mesh without owners"
    assert mark_of(parse_join_code(FOUNDED)[1]) == keys.mark == founder_mark(FOUNDER)


@given(st.integers(0, 31), st.sampled_from(CHARACTERS))
def test_every_single_wrong_character_of_a_founded_mesh_is_noticed(place, character):
    groups = FOUNDED.split(":")[1].replace("-", "")
    typo = groups[:place] + character + groups[place + 1 :]
    if typo == groups:
        return
    with pytest.raises(ConfigError, match="typo"):
        parse_join_code(f"home:{typo}")


def test_a_changed_code_is_of_the_same_mesh_and_opens_another_door():
    keys, changed = (
        MeshKeys.from_code(code) for code in (FOUNDED, new_join_code("home", bytes(19), founder_mark(FOUNDER)))
    )
    for same in ("mesh_id", "fingerprint", "beacon_key", "mark"):
        assert getattr(keys, same) == getattr(changed, same), same
    for other in ("server_public", "client_public", "code_hash", "admitting"):
        assert getattr(keys, other) != getattr(changed, other), other
    assert keys.code_hash == code_hash(FOUNDED)


def test_a_run_of_a_founded_mesh_has_its_owners_and_members_and_another_door():
    keys, run = MeshKeys.from_code(FOUNDED), MeshKeys.from_code(FOUNDED, "gait")
    assert run.name == "home--gait"
    assert (run.shown, show_name("home")) == ("home/gait", "home")
    assert (run.mesh_id, run.mark, run.code_hash) == (keys.mesh_id, keys.mark, keys.code_hash)
    assert run.fingerprint != keys.fingerprint
    assert run.server_public != keys.server_public


def test_a_run_is_a_mesh_of_its_own_that_the_code_lets_into() -> None:
    code = new_join_code("home", bytes(range(19)))
    gait, swim = (MeshKeys.from_code(run_code(code, run)) for run in ("gait", "swim"))
    whole = MeshKeys.from_code(code)
    assert gait.name == "home--gait"
    assert MeshKeys.from_code(run_code(code, "gait")) == gait
    assert len({whole.server_public, gait.server_public, swim.server_public}) == 3
    assert whole.prove("x") != gait.prove("x")
    for run in ("", "Gait", "a--b", "x" * 40, "a/b", "-a"):
        with pytest.raises(ConfigError, match="name"):
            run_code(code, run)


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
