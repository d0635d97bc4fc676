"""A PostgreSQL server of its own for tests: in a temporary folder, on a Unix socket and 127.0.0.1, by no superuser."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

PASSWORD = "pa-ss:word"


def missing() -> str:
    """Why there can be no server here; "" if there can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'mdl[postgresql]'"
    if _binary("initdb") is None:
        return "no PostgreSQL server is installed: apt-get install postgresql"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not run as root, and there is no account postgres or nobody"
    return ""


class Server:
    """Started at once; `stop` and `start` as an administrator would. folder: a short path, of a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, _free_port()
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, _account())
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run("initdb", "-D", self._data, "-U", "mdl", "-A", "scram-sha-256", f"--pwfile={password}", "-N")
        self.start()

    def url(self, database: str = "postgres", password: str = "pa-ss%3Aword") -> str:
        return f"postgresql://mdl:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        log = self._folder / "log"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", str(log), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def make_database(self, name: str) -> str:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, name: str, *arguments: str) -> None:
        binary = _binary(name)
        assert binary is not None
        account = _account() if os.geteuid() == 0 else None
        done = subprocess.run(
            [binary, *arguments],
            user=account,
            extra_groups=None if account is None else [],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == 0, f"{name} ended with {done.returncode}"


def _binary(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else shutil.which(name)


def _account() -> str | None:
    known = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
