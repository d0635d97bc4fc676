"""The database of a cloud of recommenders, and the vectors and profiles in it.

SQLite in its directory, or a PostgreSQL server by its URL: both take the same statements, with ? for values; all their
differences stand here.

The last vector of each device is kept, and the round in which it counted. A vector is named by its device and that
device's own count. The same one again is answered and not kept twice; an older one, and another one of the same number,
are refused. One transaction marks the vectors of a round as counted and its lesson as the newest: if this process ends,
both hold or neither.

A profile has the categories of a user, in words, beside the clicks. Profiles in a log replace the kept ones; a log
without profiles is completed by the kept ones.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from mdl.errors import ConfigError, DamagedError, DataError, MdlError, RemoteProtocolError, StorageError
from mdl.peers.dccl.model.interactions import Told
from mdl.peers.dccl.model.lesson import OtherBasisError, read_vector
from mdl.protocol.cloud_messages import VectorMessage
from mdl.protocol.delta import digest_of
from mdl.reading import read_bytes, shorten
from mdl.writing import make_private_folder, open_private

logger = logging.getLogger(__name__)


_SCHEMES = ("postgresql", "postgres")
# The key of an advisory lock: one cloud at a time writes into a database.
_LOCK = 0x6D646C
# A server takes a moment to see that the former holder of the lock has gone.
_LOCK_MS = 2_000
_CONNECT_S = 10
_LONGEST_TOLD = 300
# The most bytes of a file with a URL: far more than one has.
_LONGEST_URL = 4096
# SQLite's errors for a file with pages that do not fit together, or that is no database.
_DAMAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database(ABC):
    """One connection; one thread at a time uses it. Raises MdlError in one line, which never holds a password."""

    # Types and table options of this kind of database, for `CREATE TABLE`.
    blob = "BLOB"
    table_end = ""
    _begin = "BEGIN"

    @abstractmethod
    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Return the cursor: fetchone, rowcount, and rows to iterate over. Inside `guarded` or `transaction` only."""

    @abstractmethod
    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute the statement once for each row. Inside `guarded` or `transaction` only."""

    @abstractmethod
    def guarded(self) -> Any:
        """Return a context manager that turns all errors of the database into MdlError."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _roll_back(self) -> None: ...

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.guarded():
            self.execute(self._begin)
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise


class SqliteDatabase(Database):
    """A file for this user alone. Raises StorageError if it cannot be made, DamagedError if it is damaged."""

    table_end = "WITHOUT ROWID"
    _begin = "BEGIN IMMEDIATE"

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_private_folder(path.parent)
            open_private(path, "ab").close()
        except OSError as error:
            raise StorageError(path, error) from None
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self.guarded():
                # Every commit is on the disk before a device is answered.
                self.execute("PRAGMA journal_mode = WAL")
                self.execute("PRAGMA synchronous = FULL")
                self._check()
        except MdlError:
            self.connection.close()
            raise

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        return self.connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        self.connection.executemany(statement, rows)

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGES:
                raise self._damaged(str(error)) from None
            raise MdlError(f"{self._path}: {error}") from None

    def _check(self) -> None:
        """Raise DamagedError if a page is damaged, before any page is read, or written."""
        (told,) = self.execute("PRAGMA quick_check(1)").fetchone()
        if told != "ok":
            raise self._damaged(str(told))

    def _damaged(self, reason: str) -> DamagedError:
        new = self._path.with_name(f"new-{self._path.name}")
        return DamagedError(
            f"{self._path}: the database is damaged ({shorten(reason)}): put a copy of it back. Or stop the cloud, "
            f"save the readable part by `sqlite3 {self._path} .recover | sqlite3 {new}`, and move that into its "
            "place. Or give --fresh, which sets all of it aside"
        )

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # it was rolled back already: a page is damaged, or the disk is full
            self.connection.execute("ROLLBACK")


class PostgresDatabase(Database):
    """Tables in a schema `mdl` of the database that a URL names; a lost connection is made again.

    Raises ConfigError for a URL, a server or a database that does not answer, and without psycopg. fresh: an existing
    schema is set aside under another name.
    """

    blob = "BYTEA"

    def __init__(self, url: str, fresh: bool = False) -> None:
        self._url, self.shown = url, describe_url(url)
        self._secret = unquote(urlsplit(url).password or "")
        self._psycopg = _import_psycopg()
        self._connection: Any = None
        try:
            with self.guarded():
                if fresh:
                    self._set_aside()
                self.execute("CREATE SCHEMA IF NOT EXISTS mdl")
        except MdlError as error:
            self.close()
            raise ConfigError(str(error)) from None

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        return self._connection.execute(statement.replace("?", "%s"), values or None)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        try:
            yield
        except self._psycopg.Error as error:
            raise MdlError(self._tell(error)) from None

    def _connect(self) -> Any:
        try:
            connection = self._psycopg.connect(self._url, autocommit=True, **self._defaults())
            connection.execute("SET search_path TO mdl")
            connection.execute(f"SET lock_timeout = {_LOCK_MS}")
            connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            connection.execute("SET lock_timeout TO DEFAULT")
        except self._psycopg.errors.LockNotAvailable:
            connection.close()
            raise MdlError(f"{self.shown}: another cloud uses this database; each needs one of its own") from None
        except self._psycopg.Error as error:
            raise MdlError(self._tell(error)) from None
        return connection

    def _defaults(self) -> dict[str, Any]:
        return {} if "connect_timeout" in self._url else {"connect_timeout": _CONNECT_S}

    def _set_aside(self) -> None:
        found = self.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mdl'").fetchone()
        if found is not None:
            self.execute(f"ALTER SCHEMA mdl RENAME TO mdl_before_{int(time.time())}")

    def _roll_back(self) -> None:
        if not self._connection.closed:
            self._connection.execute("ROLLBACK")

    def _tell(self, error: Exception) -> str:
        said = " ".join(str(error).split())[:_LONGEST_TOLD]
        return f"{self.shown}: {said.replace(self._secret, '...') if self._secret else said}"


def read_url(text: str) -> str:
    """Return the given URL, or the one in @FILE, which hides its password. Raises ConfigError."""
    if not text.startswith("@"):
        return text
    try:
        return read_bytes(Path(text[1:]).expanduser(), _LONGEST_URL, "the URL of a database").decode().strip()
    except (DataError, UnicodeDecodeError) as error:
        raise ConfigError(f"--store: cannot read {error}") from None


def describe_url(url: str) -> str:
    """Return a URL without password and options, to be shown. Raises ConfigError if it is none of PostgreSQL."""
    expected = "expected postgresql://USER@HOST:PORT/DATABASE"
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise ConfigError(f"--store: the URL's host or port is none; {expected}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"--store: {parts.scheme[:20] or 'no'} scheme; {expected}")
    if not parts.path.strip("/"):
        raise ConfigError(f"--store: the URL names no database; {expected}")
    user = f"{parts.username}@" if parts.username else ""
    return f"postgresql://{user}{parts.hostname or ''}{port}{parts.path}"


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ConfigError("--store: PostgreSQL needs psycopg: pip install 'mdl[postgresql]'") from None
    return psycopg


_TABLE = """CREATE TABLE IF NOT EXISTS profiles (
    person TEXT, feature TEXT, category TEXT NOT NULL, PRIMARY KEY (person, feature)) {end}"""


class ProfileStore:
    """Reads and writes the profiles; see the module. One thread at a time uses it. Raises MdlError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.transaction():
            database.execute(_TABLE.format(end=database.table_end))

    def read(self, users: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the known categories of these users."""
        told: dict[str, dict[str, str]] = {}
        wanted = frozenset(users)
        with self._database.guarded():
            for user, feature, category in self._database.execute(
                "SELECT person, feature, category FROM profiles ORDER BY person, feature"
            ):
                if user in wanted:
                    told.setdefault(user, {})[feature] = category
        return told

    def keep(self, users: tuple[str, ...], told: Told) -> None:
        """Replace the profiles of these users; write the changes in one transaction."""
        kept = self.read(users)
        changed = [user for user in users if told.get(user, {}) != kept.get(user, {})]
        if not changed:
            return
        rows = [(user, *category) for user in changed for category in told.get(user, {}).items()]
        with self._database.transaction():
            self._database.execute_many("DELETE FROM profiles WHERE person = ?", [(user,) for user in changed])
            self._database.execute_many("INSERT INTO profiles VALUES (?, ?, ?)", rows)


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
