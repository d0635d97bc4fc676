"""Downloads over real HTTP on loopback: whole and proven, or nothing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mdl.errors import DataError
from mdl.transport.download import fetch

CONTENT = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Hands out CONTENT, from an offset if asked; /short breaks off half-way, /plain ignores the offset."""

    asked: list[str]

    def do_GET(self) -> None:
        offset = self.headers.get("Range", "")
        self.server.asked.append(offset)  # type: ignore[attr-defined]
        start = int(offset.removeprefix("bytes=").rstrip("-")) if offset and self.path != "/plain" else 0
        if self.path == "/none":
            self.send_error(404)
            return
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/short" else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def url_of(server: ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


def test_a_download_appears_whole_and_reports_progress(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    target = tmp_path / "new" / "a.zip"
    fetch(url_of(server, "/a"), target, DIGEST, len(CONTENT), lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in target.parent.iterdir()] == ["a.zip"]


def test_a_download_that_broke_off_goes_on_where_it_stopped(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    target = tmp_path / "a.zip"
    with pytest.raises(DataError, match="broke off"):
        fetch(url_of(server, "/short"), target, DIGEST, len(CONTENT))
    assert not target.exists()
    fetch(url_of(server, "/a"), target, DIGEST, len(CONTENT))
    assert target.read_bytes() == CONTENT
    assert server.asked == ["", f"bytes={len(CONTENT) // 2}-"]  # type: ignore[attr-defined]


def test_a_server_that_cannot_go_on_starts_from_the_beginning(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(b"older")
    fetch(url_of(server, "/plain"), tmp_path / "a.zip", DIGEST, len(CONTENT))
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_part_that_is_complete_already_is_taken(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    fetch(url_of(server, "/a"), tmp_path / "a.zip", DIGEST, len(CONTENT))
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_other_content_is_discarded_and_both_digests_are_named(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=DIGEST) as caught:
        fetch(url_of(server, "/a"), tmp_path / "a.zip", "0" * 64, len(CONTENT))
    assert "0" * 64 in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_no_more_is_read_than_expected(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than the expected 1000 bytes"):
        fetch(url_of(server, "/a"), tmp_path / "a.zip", DIGEST, 1000)
    assert not (tmp_path / "a.zip").exists()


def test_an_address_that_fails_is_one_line(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    for url in (url_of(server, "/none"), "http://127.0.0.1:9/", "file:///etc/hostname"):
        with pytest.raises(DataError) as caught:
            fetch(url, tmp_path / "a.zip", DIGEST, len(CONTENT))
        assert "\n" not in str(caught.value)
