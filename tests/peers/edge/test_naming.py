"""The name that a device takes where the host's is another device's."""

from __future__ import annotations

import pytest

from mdl.errors import NameRefusedError
from peers.edge.identity import default_name
from peers.edge.membership import open_membership
from peers.edge.naming import LONGEST_NAME, names_here, under_a_free_name
from transport.trust.device_key import DeviceKey
from transport.trust.keys import Mesh, MeshKeys, new_join_code
from transport.trust.membership import Membership
from transport.trust.words import fingerprint

KEYS = MeshKeys.from_code(new_join_code("home", bytes(range(19))))
ME, OTHER = (DeviceKey.of(bytes([at]) * 32) for at in (1, 2))


def test_words_of_the_devices_key_come_behind_the_hosts_name() -> None:
    names, words = names_here(Membership(KEYS, ME), "raspberrypi"), fingerprint(ME.public).split("-")
    assert names[:3] == ["raspberrypi", f"raspberrypi-{words[0]}", f"raspberrypi-{words[0]}-{words[1]}"]
    assert names_here(None, "pi") == ["pi"], "without keys nobody is told apart"


def test_names_of_others_are_left_out_and_its_own_are_not() -> None:
    membership, word = Membership(KEYS, ME), fingerprint(ME.public).split("-")[0]
    membership.roster.add(Membership(KEYS, OTHER).enrol("pi"))
    membership.roster.add(membership.enrol(f"pi-{word}"))
    assert names_here(membership, "pi")[0] == f"pi-{word}"


def test_a_long_host_name_leaves_room_for_the_words_and_for_a_number() -> None:
    names = names_here(Membership(KEYS, ME), "h" * 36)
    assert all(len(f"{name}-99") <= LONGEST_NAME for name in names)
    assert len(set(names)) == 6


def test_a_refused_host_name_gives_way_to_the_next_and_a_given_one_does_not() -> None:
    mesh = Mesh("home", KEYS)
    tried: list[str] = []

    def run(name: str) -> str:
        tried.append(name)
        if len(tried) < 3:
            raise NameRefusedError(name)
        return name

    names = names_here(open_membership(KEYS))
    assert names[0] == default_name()
    assert under_a_free_name(mesh, None, run) == names[2]
    assert tried == names[:3]
    tried.clear()
    with pytest.raises(NameRefusedError, match="dev2"):
        under_a_free_name(mesh, "dev2", run)
    assert tried == ["dev2"]


def test_the_last_refusal_is_the_users_where_no_name_is_left() -> None:
    def run(name: str) -> None:
        raise NameRefusedError(name)

    with pytest.raises(NameRefusedError, match=names_here(open_membership(KEYS))[-1]):
        under_a_free_name(Mesh("home", KEYS), None, run)
