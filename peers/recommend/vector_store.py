"""The devices' vectors in a cloud of recommenders: the last one of each, and the round in which it counted.

A vector is named by its device and that device's own count. The same one again is answered and not kept twice; an older
one, and another one of the same number, are refused. One transaction marks the vectors of a round as counted and its
lesson as the newest: if this process ends, both hold or neither.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError
from mdl.peers.recommend.databases import Database
from mdl.protocol.cloud_messages import VectorMessage
from mdl.protocol.delta import digest_of
from mdl.recommend.vector_codec import OtherBasisError, read_vector

logger = logging.getLogger(__name__)

# Rows of 1 KB: a gigabyte.
MOST_DEVICES = 1_000_000
_TABLES = (
    """CREATE TABLE IF NOT EXISTS vectors (
    device TEXT PRIMARY KEY, number BIGINT NOT NULL, version BIGINT NOT NULL, digest {blob} NOT NULL,
    vector {blob} NOT NULL, counted_in BIGINT NOT NULL DEFAULT 0) {end}""",
    """CREATE TABLE IF NOT EXISTS counted (
    device TEXT, number BIGINT, version BIGINT NOT NULL, PRIMARY KEY (device, number)) {end}""",
    """CREATE TABLE IF NOT EXISTS lessons (version BIGINT PRIMARY KEY, file TEXT NOT NULL, basis {blob} NOT NULL,
    task TEXT NOT NULL, vectors BIGINT NOT NULL)""",
)


class VectorStore:
    """Keeps the vectors; see the module. One thread at a time uses it. Raises MdlError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.transaction():
            for table in _TABLES:
                database.execute(table.format(blob=database.blob, end=database.table_end))

    def close(self) -> None:
        self._database.close()

    def newest(self) -> tuple[int, str, bytes, str] | None:
        """Return version, file, name of the basis and task of the newest lesson."""
        with self._database.guarded():
            found: tuple[int, str, bytes, str] | None = self._database.execute(
                "SELECT version, file, basis, task FROM lessons ORDER BY version DESC LIMIT 1"
            ).fetchone()
        return found

    def older(self, version: int) -> list[tuple[int, str]]:
        """Return version and file of the lessons before this one, the newest first."""
        with self._database.guarded():
            rows = self._database.execute(
                "SELECT version, file FROM lessons WHERE version < ? ORDER BY version DESC", (version,)
            )
            return [(int(number), str(file)) for number, file in rows]

    def hand_out_again(self, version: int, file: str, basis: bytes, task: str) -> None:
        """Make `file` the lesson of this version too: the one before was damaged, and no vector counted."""
        with self._database.transaction():
            self._database.execute("INSERT INTO lessons VALUES (?, ?, ?, ?, 0)", (version, file, basis, task))

    def keep(
        self, messages: list[VectorMessage], version: int, basis: bytes, size: int
    ) -> list[RemoteProtocolError | None]:
        """Check vectors and keep them with one write; return the problem of each, None if it is kept."""
        with self._database.transaction():
            return [self._keep(message, version, basis, size) for message in messages]

    def fresh(self, version: int) -> int:
        """Return how many vectors of this version no round has counted."""
        with self._database.guarded():
            (count,) = self._database.execute(
                "SELECT count(*) FROM vectors WHERE version = ? AND counted_in = 0", (version,)
            ).fetchone()
        return int(count)

    def read(self, version: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield device and vector of all that are to count in the round after this version."""
        with self._database.guarded():
            found = self._database.execute("SELECT basis FROM lessons WHERE version = ?", (version,)).fetchone()
            basis = bytes(found[0]) if found else b""
            rows = self._database.execute(
                "SELECT device, vector, digest FROM vectors WHERE version = ? AND counted_in = 0 ORDER BY device",
                (version,),
            )
            for device, vector, digest in rows:
                if basis and digest_of(basis + bytes(vector)) != bytes(digest):
                    logger.warning("the vector of %s has changed since it was kept, and does not count", device)
                    continue
                yield device, np.frombuffer(vector, "<f4").astype(np.float32)

    def close_round(self, version: int, file: str, basis: bytes, task: str) -> int:
        """Make `file` the lesson of this version; count the vectors of the one before, and return how many they are."""
        with self._database.transaction():
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
        """Return the number of vectors that counted in each version's lesson."""
        with self._database.guarded():
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
            "INSERT INTO vectors VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT (device) DO UPDATE SET "
            "number = excluded.number, version = excluded.version, digest = excluded.digest, "
            "vector = excluded.vector, counted_in = 0",
            (message.pupil, message.number, version, message.digest, vector.tobytes()),
        )
        return None

    def _is_full(self) -> bool:
        (count,) = self._database.execute("SELECT count(*) FROM vectors").fetchone()
        return int(count) >= MOST_DEVICES
