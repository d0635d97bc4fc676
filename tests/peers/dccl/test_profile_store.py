"""Profiles in SQLite and in PostgreSQL: what the log says last counts."""

from __future__ import annotations

from collections.abc import Callable

from mdl.peers.dccl.databases import Database, ProfileStore


def test_what_a_log_says_takes_the_place_of_what_was_kept_of_its_users(connect: Callable[[], Database]) -> None:
    store = ProfileStore(connect())
    everybody = ("ann", "bob", "cat")
    assert store.read(everybody) == {}
    store.keep(("ann", "bob"), {"ann": {"age": "20", "town": "Bern"}, "bob": {"age": "30"}, "not asked": {"age": "1"}})
    assert store.read(everybody) == {"ann": {"age": "20", "town": "Bern"}, "bob": {"age": "30"}}
    again = ProfileStore(connect())
    again.keep(("ann", "cat"), {"ann": {"age": "21"}})
    assert again.read(everybody) == {"ann": {"age": "21"}, "bob": {"age": "30"}}
    assert again.read(("bob",)) == {"bob": {"age": "30"}}
    again.keep(("ann",), {})
    assert again.read(everybody) == {"bob": {"age": "30"}}


def test_what_is_the_same_is_not_written_again(connect: Callable[[], Database]) -> None:
    database = connect()
    store = ProfileStore(database)
    told = {"ann": {"age": "20"}}
    store.keep(("ann",), told)
    written: list[str] = []
    database.execute_many = lambda statement, rows: written.append(statement)  # type: ignore[method-assign]
    store.keep(("ann",), told)
    assert written == []
