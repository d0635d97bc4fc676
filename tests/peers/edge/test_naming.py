"""The name that a device takes where the host's is another device's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.errors import NameRefusedError
from mdl.peers.edge.identity import default_name
from mdl.peers.edge.membership import device_key, name_here, under_a_free_name
from mdl.transport.trust.keys import LONGEST_NAME, DeviceKey, Mesh, MeshKeys, new_join_code, next_own_name, own_names
from mdl.transport.trust.membership import Membership

KEYS = MeshKeys.from_code(new_join_code("home", bytes(range(19))))
ME, OTHER = (DeviceKey.of(bytes([at]) * 32) for at in (1, 2))


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MDL_KEY", raising=False)


def test_words_of_the_devices_key_come_behind_the_hosts_name() -> None:
    membership, own = Membership(KEYS, ME), own_names("raspberrypi", ME.public)
    assert name_here(membership, "raspberrypi") == "raspberrypi"
    membership.roster.add(Membership(KEYS, OTHER).enrol("raspberrypi"))
    assert name_here(membership, "raspberrypi") == own[0]
    membership.roster.add(Membership(KEYS, OTHER).enrol(own[0]))
    assert name_here(membership, "raspberrypi") == own[1]
    assert name_here(None, "pi") == "pi", "without keys nobody is told apart"


def test_a_name_of_its_own_stays_and_one_that_another_device_gave_up_is_free() -> None:
    membership = Membership(KEYS, ME)
    membership.roster.add(membership.enrol(own_names("pi", ME.public)[0]))
    assert name_here(membership, "pi") == own_names("pi", ME.public)[0]
    other, free = Membership(KEYS, OTHER), Membership(KEYS, ME)
    for name in ("pi", own_names("pi", OTHER.public)[0]):
        free.roster.add(other.enrol(name))
    assert name_here(free, "pi") == "pi"


def test_each_refusal_brings_one_word_more() -> None:
    own = own_names("pi-2", ME.public)
    assert [next_own_name(name, ME.public) for name in ("pi-2", *own)] == [*own, ""]


def test_a_long_host_name_leaves_room_for_the_words_and_for_a_number() -> None:
    names = own_names("h" * 36, ME.public)
    assert all(len(f"{name}-99") <= LONGEST_NAME for name in names)
    assert len(set(names)) == 5


def test_a_refused_host_name_gives_way_to_the_next_and_a_given_one_does_not() -> None:
    mesh = Mesh("home", KEYS)
    tried: list[str] = []

    def run(name: str) -> str:
        tried.append(name)
        if len(tried) < 3:
            raise NameRefusedError("refused", name)
        return name

    own = own_names(default_name(), device_key().public)
    assert under_a_free_name(mesh, None, run) == own[1]
    assert tried == [default_name(), *own[:2]]
    tried.clear()
    with pytest.raises(NameRefusedError) as refused:
        under_a_free_name(mesh, "dev2", run)
    assert (tried, refused.value.name) == (["dev2"], "dev2")


def test_the_last_refusal_is_the_users_where_no_name_is_left() -> None:
    def run(name: str) -> None:
        raise NameRefusedError("refused", name)

    with pytest.raises(NameRefusedError) as refused:
        under_a_free_name(Mesh("home", KEYS), None, run)
    assert refused.value.name == own_names(default_name(), device_key().public)[-1]
