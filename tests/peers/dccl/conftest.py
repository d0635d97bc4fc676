"""Databases that a cloud keeps vectors in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from mdl.peers.dccl.databases import Database, PostgresDatabase, SqliteDatabase
from tests.peers.dccl.postgres import Server, missing

_NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if why := missing():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="mdl-pg-", dir="/tmp"))
    folder.chmod(0o755)
    server = Server(folder / "pg")
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def url(server: Server) -> str:
    """Of a database that nobody has used."""
    return server.make_database(f"shop{next(_NUMBERS)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Database]]:
    """Opens the same database each time; what it opened before must be closed."""
    opened: list[Database] = []
    found = "" if request.param == "sqlite" else request.getfixturevalue("url")

    def make() -> Database:
        for each in opened:
            each.close()
        opened.append(PostgresDatabase(found) if found else SqliteDatabase(tmp_path / "vectors.sqlite"))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
