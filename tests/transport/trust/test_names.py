"""Whose a name is at a cloud: the device's that had it first."""

from __future__ import annotations

import pytest

from mdl.errors import RemoteProtocolError
from transport.trust import names as names_module
from transport.trust.names import MOST_OF_ONE, Names

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


def test_a_device_and_all_together_have_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    for number in range(MOST_OF_ONE):
        names.check([f"ann-{number}"], ANN)
    with pytest.raises(RemoteProtocolError, match=f"its device has {MOST_OF_ONE} names already"):
        names.check(["one-more"], ANN)
    names.check(["ann-0"], ANN)
    names.check(["bob"], BOB)
    monkeypatch.setattr(names_module, "MOST_NAMES", MOST_OF_ONE + 1)
    with pytest.raises(RemoteProtocolError, match="as many as it keeps"):
        names.check(["bob-2"], BOB)
