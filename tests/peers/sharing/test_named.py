"""A name stands for one key: the one that has it in the mesh, or the first that has the words."""

from __future__ import annotations

import pytest

from mdl.errors import ConfigError
from mdl.peers.sharing import Named
from mdl.transport.trust.keys import DeviceKey, MeshKeys, fingerprint, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership

PHONE, WATCH, EVE = (DeviceKey.of(bytes([number]) * 32) for number in (1, 2, 3))
KEYS = MeshKeys.from_code(new_join_code("home", bytes(19), founder_mark(PHONE.public)))


def membership() -> Membership:
    """Of the phone, which has met the watch."""
    own = Membership(KEYS, PHONE)
    own.join("phone")
    own.roster.add(Membership(KEYS, WATCH).enrol("watch"))
    return own


def test_a_name_is_the_key_that_has_it_in_the_mesh() -> None:
    named = Named(membership(), ["watch"])
    assert (named.name_of(WATCH.public), named.name_of(EVE.public)) == ("watch", "")
    assert (named.key_of("watch"), named.words_of("watch")) == (WATCH.public, fingerprint(WATCH.public))


def test_words_of_a_device_that_was_never_met_are_the_first_key_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = fingerprint(EVE.public)
    named = Named(membership(), [words.replace("-", " ").title()])
    (text,) = named.names
    assert (named.words_of(text), named.key_of(text)) == (words, b"")
    assert named.name_of(EVE.public) == text
    assert named.key_of(text) == EVE.public
    monkeypatch.setattr("mdl.peers.sharing.fingerprint", lambda device: words)
    assert named.name_of(b"x" * 32) == "", "another key with the same words comes too late"


@pytest.mark.parametrize("text", ["tablet", "able-acid", "able-acid-acorn-actor-nosuch"])
def test_what_is_neither_a_name_nor_words_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r"no device .* there is phone .*, watch"):
        Named(membership(), [text])


def test_nobody_shares_with_the_device_that_it_is() -> None:
    with pytest.raises(ConfigError, match="phone is this device"):
        Named(membership(), ["watch", "phone"])
