"""Vectors in SQLite and in PostgreSQL: each counts in one round, wherever the process ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mdl.errors import MdlError
from mdl.peers.dccl.databases import Database, PostgresDatabase, SqliteDatabase, VectorStore
from mdl.protocol.cloud_messages import VectorMessage
from mdl.protocol.delta import digest_of

BASIS = b"b" * 16
TASK = "6 users"


def _vector(device: str, number: int = 1, value: float = 1.0, version: int = 1, basis: bytes = BASIS) -> VectorMessage:
    packed = basis + np.full(4, value, "<f4").tobytes()
    return VectorMessage(device, "recommend-1", number, digest_of(packed), version, values=packed)


@pytest.fixture
def store(connect: Callable[[], Database]) -> VectorStore:
    store = VectorStore(connect())
    store.close_round(1, "00001.safetensors", BASIS, TASK)
    return store


def _keep(store: VectorStore, *messages: VectorMessage, version: int = 1) -> list[str]:
    return [str(problem or "") for problem in store.keep(list(messages), version, BASIS, 4)]


@pytest.mark.slow
def test_vectors_count_in_one_round_and_in_no_other(store: VectorStore) -> None:
    assert _keep(store, _vector("ann"), _vector("bob", value=2)) == ["", ""]
    assert store.fresh(1) == 2
    assert [(device, vector.tolist()) for device, vector in store.read(1)] == [("ann", [1.0] * 4), ("bob", [2.0] * 4)]
    assert store.close_round(2, "00002.safetensors", BASIS, TASK) == 2
    assert store.fresh(1) == store.fresh(2) == 0
    # The answer was lost, and the device says it again: it is answered, and counts no second time.
    assert _keep(store, _vector("ann"), version=2) == [""]
    assert store.close_round(3, "00003.safetensors", BASIS, TASK) == 0
    assert store.counts() == {1: 0, 2: 2, 3: 0}


def test_what_is_wrong_with_a_vector_is_said_and_the_others_are_kept(store: VectorStore) -> None:
    found = _keep(
        store,
        _vector("ann"),
        _vector("bob", value=float("nan")),
        _vector("cat", value=1e30),
        _vector("dan", basis=b"x" * 16),
        _vector("eve", version=7),
    )
    assert found[0] == ""
    assert found[1] == "the vector holds NaN or infinity"
    assert found[2].startswith("the vector holds 1e+30; at most 1000")
    assert found[3] == "the vector is of another basis than this cloud's"
    assert found[4] == "the vector is of lesson 7; this cloud is at 1"
    assert store.fresh(1) == 1


def test_a_vector_comes_once_a_newer_one_takes_its_place_an_older_one_does_not(store: VectorStore) -> None:
    assert _keep(store, _vector("ann", 5)) == [""]
    assert _keep(store, _vector("ann", 5)) == [""]
    assert _keep(store, _vector("ann", 5, value=3.0)) == ["its vector 5 has come before; the last one was 5"]
    assert _keep(store, _vector("ann", 4)) == ["its vector 4 has come before; the last one was 5"]
    assert _keep(store, _vector("ann", 6, value=2.0)) == [""]
    assert store.fresh(1) == 1
    assert [vector[0] for _, vector in store.read(1)] == [2.0]


def test_it_goes_on_where_it_was(store: VectorStore, connect: Callable[[], Database]) -> None:
    _keep(store, _vector("ann", 1 << 40))
    again = VectorStore(connect())
    assert again.fresh(1) == 1
    assert again.newest() == (1, "00001.safetensors", BASIS, TASK)
    assert _keep(again, _vector("ann", 1 << 40)) == [""]


def test_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = VectorStore(SqliteDatabase(tmp_path / "vectors.sqlite"))
    store.close_round(1, "1", BASIS, TASK)
    _keep(store, _vector("ann"))
    for path in tmp_path.iterdir():
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_what_goes_wrong_in_the_middle_leaves_nothing(store: VectorStore) -> None:
    _keep(store, _vector("ann"))
    with pytest.raises(MdlError, match="lessons"):
        store.close_round(1, "1", BASIS, TASK)  # that version is there
    assert store.fresh(1) == 1
    assert store.counts() == {1: 0}
    assert store.close_round(2, "2", BASIS, TASK) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_process_killed_between_rounds_counts_nothing_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It kills itself in the middle of closing a round: the transaction is not there, and the round is done again."""
    where = f"SqliteDatabase(Path({str(tmp_path)!r}) / 'vectors.sqlite')"
    if kind == "postgresql":
        where = f"PostgresDatabase({request.getfixturevalue('url')!r})"
    code = f"""
import os
from pathlib import Path
from tests.peers.dccl.test_vector_store import _vector, BASIS, TASK
from mdl.peers.dccl.databases import PostgresDatabase, SqliteDatabase
from mdl.peers.dccl.databases import Database, PostgresDatabase, SqliteDatabase
from mdl.peers.dccl.databases import VectorStore
database = {where}
store = VectorStore(database)
store.close_round(1, "1", BASIS, TASK)
store.keep([_vector("ann"), _vector("bob")], 1, BASIS, 4)
execute = database.execute
database.execute = lambda said, *values: os.kill(os.getpid(), 9) if said == "COMMIT" else execute(said, *values)
store.close_round(2, "2", BASIS, TASK)
"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=120
    )
    assert done.returncode == -9
    database = _open_again(where)
    store = VectorStore(database)
    assert store.newest() == (1, "1", BASIS, TASK)
    assert store.fresh(1) == 2
    assert store.close_round(2, "2", BASIS, TASK) == 2
    assert store.counts() == {1: 0, 2: 2}
    database.close()


def _open_again(where: str) -> Database:
    """The server sees that a client has gone a moment later; until then its lock is held."""
    names = {"Path": Path, "SqliteDatabase": SqliteDatabase, "PostgresDatabase": PostgresDatabase}
    ends = time.monotonic() + 30
    while True:
        try:
            found: Database = eval(where, names)
        except MdlError as error:
            if "another cloud" not in str(error) or time.monotonic() > ends:
                raise
        else:
            return found


def test_a_file_that_is_no_database_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "vectors.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(MdlError, match="not a database"):
        VectorStore(SqliteDatabase(tmp_path / "vectors.sqlite"))


def test_a_vector_that_has_changed_on_the_disk_does_not_count(
    connect: Callable[[], Database], caplog: pytest.LogCaptureFixture
) -> None:
    database = connect()
    store = VectorStore(database)
    store.close_round(1, "00001.safetensors", BASIS, TASK)
    _keep(store, _vector("ann"), _vector("bob", value=2))
    with database.transaction():
        database.execute("UPDATE vectors SET vector = ? WHERE device = ?", (np.full(4, 7, "<f4").tobytes(), "ann"))
    assert [device for device, _ in store.read(1)] == ["bob"]
    assert "the vector of ann has changed since it was kept" in caplog.text
