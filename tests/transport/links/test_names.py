"""Whose a name is at a cloud: the device's that had it first."""

from __future__ import annotations

import pytest

from mdl.errors import RemoteProtocolError
from mdl.transport.links import hub as names_module
from mdl.transport.links.hub import MOST_OF_ONE, NEW_AT_ONCE, Names

ANN, BOB = bytes([1]) * 32, bytes([2]) * 32


def test_a_name_belongs_to_the_device_that_had_it_first() -> None:
    kept: list[tuple[str, bytes]] = []
    names = Names(keep=lambda name, key: kept.append((name, key)))
    for _ in range(2):
        names.check(["ann", "pupil a"], ANN)
    names.check(["bob"], BOB)
    for mine in (["ann"], ["bob", "pupil a"], ["new", "pupil a"]):
        with pytest.raises(RemoteProtocolError, match="another device had the name"):
            names.check(mine, BOB)
    assert kept == [("ann", ANN), ("pupil a", ANN), ("bob", BOB)], "nothing of a refused one is kept"


def test_what_was_kept_holds_from_the_start() -> None:
    names = Names({"ann": ANN})
    names.check(["ann"], ANN)
    with pytest.raises(RemoteProtocolError, match="the name ann first"):
        names.check(["ann"], BOB)


def test_a_device_has_so_many_names() -> None:
    names = Names()
    for number in range(MOST_OF_ONE):
        names.check([f"ann-{number}"], ANN)
    with pytest.raises(RemoteProtocolError, match=f"its device has {MOST_OF_ONE} names already"):
        names.check(["one-more"], ANN)
    names.check(["ann-0"], ANN)
    names.check(["bob"], BOB)


def _at_most(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(names_module, "MOST_NAMES", many)


def test_a_full_table_makes_place_by_who_came_first_and_gave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had the code and made up keys filled it for ever within a minute."""
    _at_most(monkeypatch, 16)
    left: list[tuple[set[str], frozenset[str]]] = []
    names = Names({"ann": ANN, "old": BOB}, worked=["ann"], keep_all=lambda all_, has: left.append((set(all_), has)))
    names.check(["bob"], BOB)
    names.note_worked("bob")
    for number in range(100):
        names.check([f"made up {number}"], number.to_bytes(32, "big"))
    for name in ("ann", "bob"):
        with pytest.raises(RemoteProtocolError, match="another device"):
            names.check([name], bytes([3]) * 32)
    names.check(["old"], bytes([3]) * 32)
    assert left
    assert all(kept >= {"ann", "bob"} and "old" not in kept and has == {"ann", "bob"} for kept, has in left)
    assert all(len(kept) < 16 for kept, _ in left)


def test_where_all_have_given_something_a_new_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _at_most(monkeypatch, 2)
    names = Names({"ann": ANN, "ann-2": ANN}, worked=["ann", "ann-2"])
    with pytest.raises(RemoteProtocolError, match="as many as it keeps"):
        names.check(["bob"], BOB)


def test_each_address_brings_so_many_new_names_a_second() -> None:
    names = Names()

    def bring(number: int, host: str, now: float) -> bool:
        try:
            names.check([f"n{number}"], number.to_bytes(32, "big"), host, now)
        except RemoteProtocolError:
            return False
        return True

    assert sum(bring(at, "10.0.0.1", 0.0) for at in range(2 * NEW_AT_ONCE)) == NEW_AT_ONCE
    with pytest.raises(RemoteProtocolError, match=r"too many new names come from 10\.0\.0\.1"):
        names.check(["one more"], bytes(32), "10.0.0.1", 0.0)
    assert bring(9_000, "10.0.0.2", 0.0)
    assert not bring(9_001, "10.0.0.1", 0.5)
    assert bring(9_001, "10.0.0.1", 2.0)
    names.check(["n1"], (1).to_bytes(32, "big"), "10.0.0.1", 2.0)
    assert sum(bring(20_000 + at, f"2001:db8::{at:x}", 0.0) for at in range(2 * NEW_AT_ONCE)) == NEW_AT_ONCE
