"""What this user's devices keep of a mesh on disk: one device key, and a roster that nobody's words are lost from."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mdl.config import MeshSection
from mdl.errors import ConfigError
from mdl.peers.edge import membership as kept
from mdl.peers.edge.identity import known_meshes
from mdl.peers.ownership import change_code
from mdl.protocol.statements import MAX_KEPT, CodeChanged
from mdl.transport.links.standing import LinkStanding, News, Stated
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership

THIEF = DeviceKey.of(b"t" * 32)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(kept.KEY_VARIABLE, raising=False)


def _found() -> MeshKeys:
    code = new_join_code("home", mark=founder_mark(kept.device_key().public))
    kept.found_mesh(code)
    return MeshKeys.from_code(code)


def _revoke(membership: Membership) -> None:
    for statement in membership.revoke(THIEF.public, 1, "stolen"):
        membership.roster.add(statement)
    kept.keep_roster(membership)


def test_a_device_has_one_key_also_where_there_are_no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Android, FAT and some network disks."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    assert kept.device_key().public == kept.device_key().public
    assert stat.S_IMODE(kept.key_path().stat().st_mode) == 0o600


def test_whoever_starts_at_the_same_moment_has_the_same_key() -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = {key.public for key in pool.map(lambda _: kept.device_key(), range(64))}
    assert len(keys) == 1
    assert [path.name for path in kept.key_path().parent.iterdir() if path.name != ".lock"] == [kept.key_path().name]


def test_who_is_locked_out_stays_out_whatever_bit_of_the_file_flips() -> None:
    """What is void counts no more: a revocation that is not signed any more once let the device in again."""
    keys = _found()
    member = kept.open_membership(keys)
    member.join("me")
    member.roster.add(Membership(keys, THIEF).enrol("thief"))
    _revoke(member)
    path = kept.roster_path(keys)
    assert path is not None
    good, refused = path.read_bytes(), list[str]()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            assert kept.open_membership(keys).roster.is_revoked(THIEF.public), at
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > len(good) / 2
    assert all(f"{path} is no whole roster (" in told and "remove it only if" in told for told in refused)
    with pytest.raises(ConfigError, match="1 of 3 statements have changed"):
        kept.keep_roster(member)  # what others have added to it is not taken out either
    path.write_bytes(good)
    kept.keep_roster(member)


def test_the_roster_of_an_earlier_mesh_of_this_name_is_not_in_the_way(tmp_path: Path) -> None:
    path = kept.roster_path(_found())
    assert path is not None
    path.with_suffix(".code").unlink()
    keys = _found()
    assert kept.open_membership(keys).roster.owners() == {kept.device_key().public}


def test_what_another_process_adds_to_the_roster_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mdl mesh revoke` beside a peer that runs and has just met somebody."""
    keys = _found()
    peer, owner = kept.open_membership(keys), kept.open_membership(keys)
    for each in (peer, owner):
        each.roster.add(Membership(keys, THIEF).enrol("thief"))
    revoking, write = threading.Thread(target=_revoke, args=(owner,)), kept.write_bytes

    def write_late(path: Path, content: bytes) -> None:
        monkeypatch.setattr(kept, "write_bytes", write)
        revoking.start()
        revoking.join(0.3)
        write(path, content)

    monkeypatch.setattr(kept, "write_bytes", write_late)
    kept.keep_roster(peer)
    revoking.join()
    assert kept.open_membership(keys).roster.is_revoked(THIEF.public)


def test_what_this_device_wrote_is_read_without_a_check_and_what_another_wrote_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = _found()
    member = kept.open_membership(keys)
    member.roster.add(Membership(keys, THIEF).enrol("thief"))
    _revoke(member)
    path = kept.roster_path(keys)
    assert path is not None
    checked: list[bytes] = []
    is_signed = kept.is_signed
    monkeypatch.setattr(kept, "is_signed", lambda *said: not checked.append(said[0]) and is_signed(*said))
    assert kept.open_membership(keys).roster.digest == member.roster.digest
    assert not checked
    mark = path.with_name(f"{path.name}-mark")
    for spoil in (mark.unlink, lambda: mark.write_bytes(b"x" * 32)):
        checked.clear()
        spoil()
        assert kept.open_membership(keys).roster.digest == member.roster.digest
        assert len(checked) == len(member.roster.statements()), "each once"
    monkeypatch.setenv(kept.KEY_VARIABLE, "ab" * 32)
    checked.clear()
    kept.open_membership(keys)
    assert checked, "another device's mark says nothing"


def test_a_roster_that_nobody_could_read_is_not_written() -> None:
    keys = _found()
    member = kept.open_membership(keys)
    path = kept.roster_path(keys)
    assert path is not None
    before = path.read_bytes()
    too_many = CodeChanged(1, bytes(16), (bytes(32),) * (MAX_KEPT + 1), member.device.public)
    member.roster._is_signed = lambda *_: True
    member.roster.add(too_many)
    with pytest.raises(ConfigError, match="could not be read again"):
        kept.keep_roster(member)
    assert path.read_bytes() == before


def test_who_has_worked_is_known_after_a_restart_and_in_every_run_of_the_mesh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = _found()
    member = kept.open_membership(keys)
    member.roster.add(Membership(keys, THIEF).enrol("pi"))
    assert member.note_worked(["pi", "nobody"])
    assert not member.note_worked(["pi"])
    kept.keep_roster(member)
    run = MeshKeys.from_code(known_meshes()["home"], "gait")
    for each in (keys, run):
        assert list(kept.open_membership(each).worked) == [(THIEF.public, "pi")]
    path = kept.codes_home() / "home.worked"
    path.write_bytes(b"\xff" + path.read_bytes())
    assert not len(kept.open_membership(keys).worked)
    assert "the list of devices that worked begins anew" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "everybody", "stay"), [((), False, {"pi"}), (("desk",), False, {"pi", "desk"}), ((), True, None)]
)
def test_a_new_code_keeps_who_worked_here_and_says_who_is_left_out(
    keep: tuple[str, ...], everybody: bool, stay: set[str] | None
) -> None:
    keys = _found()
    member = kept.open_membership(keys)
    names = ["desk", "pi", "x1", "x2"]
    for at, name in enumerate(names):
        member.roster.add(Membership(keys, DeviceKey.of(bytes([at]) * 32)).enrol(name))
    member.note_worked(["pi"])
    kept.keep_roster(member)
    code, _, left_out = change_code("home", MeshSection(loopback=True), 0.1, keep, everybody)
    assert known_meshes()["home"] == code
    after = {each.peer_id for each in kept.open_membership(MeshKeys.from_code(code)).roster.members()}
    assert after == (stay or set(names))
    assert left_out == sorted(set(names) - after)


@pytest.mark.slow
def test_a_node_that_is_slow_to_state_a_new_code_has_changed_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _found()
    state = LinkStanding.state

    def state_late(self: LinkStanding, stated: Stated, now: float) -> News:
        threading.Event().wait(3.2)  # longer than its end is waited for
        return state(self, stated, now)

    monkeypatch.setattr(LinkStanding, "state", state_late)
    code, _, _ = change_code("home", MeshSection(loopback=True), 0.1)
    assert known_meshes()["home"] == code


def test_a_device_to_keep_that_nobody_knows_changes_nothing() -> None:
    _found()
    before = known_meshes()
    with pytest.raises(ConfigError, match="no device 'nobody'"):
        change_code("home", MeshSection(loopback=True), 0.1, ["nobody"])
    assert known_meshes() == before
