"""Freed memory goes back to the system, not in every short round, and nowhere that it cannot."""

from __future__ import annotations

import pytest

from peers.edge.small import memory
from peers.edge.small.memory import Spare, limit_arenas


class _Library:
    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def malloc_trim(self, pad: int) -> None:
        self.asked.append((pad,))

    def mallopt(self, *given: int) -> None:
        self.asked.append(given)


def test_memory_is_given_back_at_most_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    library, now = _Library(), [10.0]
    monkeypatch.setattr(memory, "_library", lambda: library)
    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    spare = Spare()
    for now[0] in (10.1, 11.9, 12.1, 12.2, 13.0, 14.2):
        spare.give_back()
    assert library.asked == [(0,), (0,)]


def test_where_the_c_library_has_no_such_thing_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_library", lambda: None)
    limit_arenas()
    Spare(0.0).give_back()


def test_what_glibc_is_asked_is_what_it_has() -> None:
    library = memory._library()
    if library is None:
        pytest.skip("not glibc")
    assert library.mallopt(memory._ARENA_MAX, memory._ARENAS) == 1
    assert library.malloc_trim(0) in (0, 1)
