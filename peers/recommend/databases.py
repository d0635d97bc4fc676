"""The database of a cloud of recommenders: SQLite in its directory, or a PostgreSQL server by its URL.

It keeps vectors and profiles. Both kinds take the same statements, with ? for values; all their differences stand here.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mdl.errors import ConfigError, DamagedError, DataError, MdlError, StorageError
from mdl.reading import read_bytes, shorten
from mdl.writing import make_private_folder, open_private

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
