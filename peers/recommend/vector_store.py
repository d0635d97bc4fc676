"""What a cloud of recommenders keeps of its devices: the last vector of each, and in which round it counted (SQLite).

A vector is named by its device and that device's own count: the same one again is answered and not kept twice, an
older one and another one of the same number are refused. That a round has counted its vectors and that its lesson is
the newest is one transaction: whatever ends this process, both hold or neither.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdl.errors import MdlError, RemoteProtocolError, StorageError
from mdl.protocol.cloud_messages import VectorMessage
from mdl.recommend.vector_codec import OtherBasisError, read_vector
from mdl.writing import make_private_folder, open_private

# Rows of 1 KB: a gigabyte.
MOST_DEVICES = 1_000_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    device TEXT PRIMARY KEY, number INTEGER NOT NULL, version INTEGER NOT NULL, digest BLOB NOT NULL,
    vector BLOB NOT NULL, counted_in INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counted (
    device TEXT, number INTEGER, version INTEGER NOT NULL, PRIMARY KEY (device, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lessons (version INTEGER PRIMARY KEY, file TEXT NOT NULL, basis BLOB NOT NULL,
    task TEXT NOT NULL, vectors INTEGER NOT NULL);
"""


class VectorStore:
    """See the module. One thread at a time uses it; `path` is made for this user alone. Raises MdlError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_private_folder(path.parent)
            open_private(path, "ab").close()
        except OSError as error:
            raise StorageError(path, error) from None
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with self._guarded():
            # Every commit is on the disk before anybody is answered.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)

    def close(self) -> None:
        self._database.close()

    def newest(self) -> tuple[int, str, bytes, str] | None:
        """version, file, name of the basis and task of the newest lesson."""
        with self._guarded():
            found: tuple[int, str, bytes, str] | None = self._database.execute(
                "SELECT version, file, basis, task FROM lessons ORDER BY version DESC LIMIT 1"
            ).fetchone()
        return found

    def keep(
        self, messages: list[VectorMessage], version: int, basis: bytes, size: int
    ) -> list[RemoteProtocolError | None]:
        """Check vectors and keep them with one write: what was wrong with each, None if it is kept."""
        with self._transaction():
            return [self._keep(message, version, basis, size) for message in messages]

    def fresh(self, version: int) -> int:
        """How many vectors of this version no round has counted."""
        with self._guarded():
            (count,) = self._database.execute(
                "SELECT count(*) FROM vectors WHERE version = ? AND counted_in = 0", (version,)
            ).fetchone()
        return int(count)

    def read(self, version: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Device and vector of all that are to count in the round after this version."""
        with self._guarded():
            rows = self._database.execute(
                "SELECT device, vector FROM vectors WHERE version = ? AND counted_in = 0 ORDER BY device", (version,)
            )
            for device, vector in rows:
                yield device, np.frombuffer(vector, "<f4").astype(np.float32)

    def close_round(self, version: int, file: str, basis: bytes, task: str) -> int:
        """`file` is the lesson of this version, and the vectors of the one before have counted in it; how many."""
        with self._transaction():
            new = self._database.execute(
                "INSERT INTO counted SELECT device, number, ? FROM vectors WHERE version = ? AND counted_in = 0",
                (version, version - 1),
            ).rowcount
            self._database.execute(
                "UPDATE vectors SET counted_in = ? WHERE version = ? AND counted_in = 0", (version, version - 1)
            )
            self._database.execute("INSERT INTO lessons VALUES (?, ?, ?, ?, ?)", (version, file, basis, task, new))
        return int(new)

    def counts(self) -> dict[int, int]:
        """Vectors that counted in each version's lesson."""
        with self._guarded():
            return dict(self._database.execute("SELECT version, vectors FROM lessons ORDER BY version"))

    def _keep(self, message: VectorMessage, version: int, basis: bytes, size: int) -> RemoteProtocolError | None:
        row = self._database.execute("SELECT number, digest FROM vectors WHERE device = ?", (message.pupil,)).fetchone()
        if row is not None and message.number <= row[0]:
            if message.number == row[0] and message.digest == row[1]:
                return None  # the answer was lost
            return RemoteProtocolError(f"its vector {message.number} has come before; the last one was {row[0]}")
        try:
            if message.version != version:
                raise OtherBasisError(f"the vector is of lesson {message.version}; this cloud is at {version}")
            vector = read_vector(message.values, basis, size)
        except RemoteProtocolError as error:
            return error
        if row is None and self._is_full():
            return RemoteProtocolError(f"this cloud has {MOST_DEVICES} devices, which is as many as it takes")
        self._database.execute(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?, 0)",
            (message.pupil, message.number, version, message.digest, vector.tobytes()),
        )
        return None

    def _is_full(self) -> bool:
        (count,) = self._database.execute("SELECT count(*) FROM vectors").fetchone()
        return int(count) >= MOST_DEVICES

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._guarded():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise MdlError(f"{self._path}: {error}") from None
