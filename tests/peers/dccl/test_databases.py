"""PostgreSQL by URL: what is wrong with one is one line without the password, and a server may go and come back."""

from __future__ import annotations

import builtins
import threading
from pathlib import Path
from typing import Any

import pytest

from mdl.errors import ConfigError, MdlError
from mdl.peers.dccl.databases import PostgresDatabase, VectorStore, describe_url, read_url
from tests.peers.dccl.postgres import PASSWORD, Server
from tests.peers.dccl.test_vector_store import BASIS, TASK, _keep, _vector


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://ann:secret@host/shop", "mysql scheme; expected postgresql://USER@HOST:PORT/DATABASE"),
        ("shop", "no scheme; expected postgresql://"),
        ("postgresql://ann:secret@host:123456/shop", "the URL's host or port is none"),
        ("postgresql://ann:secret@[host/shop", "the URL's host or port is none"),
        ("postgresql://ann:secret@host", "the URL names no database"),
    ],
)
def test_a_url_that_is_none_is_told_in_one_line_without_its_password(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match="--store") as caught:
        describe_url(url)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_shown_of_a_url_has_no_password_and_no_options() -> None:
    shown = describe_url("postgres://ann:secret@[::1]:5432/shop?sslpassword=other")
    assert shown == "postgresql://ann@::1:5432/shop"


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "psycopg":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"needs psycopg: pip install 'mdl\[postgresql\]'"):
        PostgresDatabase("postgresql://ann:secret@127.0.0.1:1/shop")


def test_no_server_and_a_wrong_password_and_database_are_one_line_each(server: Server) -> None:
    urls = ("postgresql://mdl:sesame@127.0.0.1:1/shop", server.url(password="sesame"), server.url("nosuch"))
    for url, told in zip(urls, ("refused", "password authentication failed", '"nosuch" does not exist'), strict=True):
        with pytest.raises(ConfigError) as caught:
            PostgresDatabase(url)
        text = str(caught.value)
        assert told in text
        assert text.startswith("postgresql://mdl@127.0.0.1:")
        assert "\n" not in text
        assert "sesame" not in text
        assert PASSWORD not in text


def test_a_database_is_one_clouds_at_a_time(url: str) -> None:
    first = PostgresDatabase(url)
    with pytest.raises(ConfigError, match="another cloud uses this database"):
        PostgresDatabase(url)
    first.close()
    PostgresDatabase(url).close()


def test_a_cloud_that_has_only_just_gone_is_waited_for(url: str) -> None:
    """A server takes a moment to see that its client has closed the connection."""
    first = PostgresDatabase(url)
    leaves = threading.Timer(0.5, first.close)
    leaves.start()
    PostgresDatabase(url).close()
    leaves.join()


def test_fresh_sets_aside_what_is_there(url: str) -> None:
    database = PostgresDatabase(url)
    store = VectorStore(database)
    store.close_round(1, "1", BASIS, TASK)
    _keep(store, _vector("ann"))
    database.close()
    fresh = PostgresDatabase(url, fresh=True)
    assert VectorStore(fresh).newest() is None
    (name,) = fresh.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'mdl_before%'").fetchone()
    assert fresh.execute(f"SELECT device FROM {name}.vectors").fetchall() == [("ann",)]
    fresh.close()


def test_a_server_that_was_away_is_asked_again(server: Server, url: str) -> None:
    database = PostgresDatabase(url)
    store = VectorStore(database)
    store.close_round(1, "1", BASIS, TASK)
    assert _keep(store, _vector("ann")) == [""]
    server.stop()
    try:
        for _ in range(2):  # the connection is seen to be lost; then there is none to be had
            with pytest.raises(MdlError, match="postgresql://mdl@127"):
                _keep(store, _vector("bob"))
    finally:
        server.start()
    assert _keep(store, _vector("bob")) == [""]
    assert store.fresh(1) == 2
    database.close()


def test_a_url_may_stand_in_a_file(tmp_path: Path) -> None:
    assert read_url("postgresql://db/shop") == "postgresql://db/shop"
    (tmp_path / "store").write_text("postgresql://ann:secret@db/shop\n")
    assert read_url(f"@{tmp_path / 'store'}") == "postgresql://ann:secret@db/shop"
    (tmp_path / "store").write_bytes(b"\xff" * 5000)
    for wrong in ("store", "missing"):
        with pytest.raises(ConfigError, match="--store: cannot read"):
            read_url(f"@{tmp_path / wrong}")
