"""One file from the web, complete and verified, or none: streamed, bounded in size, resumed, checked, then renamed."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from mdl.errors import DataError, StorageError

# Read in pieces of this size: large enough to keep a link busy, small enough that progress moves.
_PIECE_BYTES = 256 << 10
# A server that is silent for this long counts as gone; what has arrived is kept, and the next attempt resumes there.
_SILENCE_S = 30.0

Progress = Callable[[int, int], None]


def fetch(url: str, target: Path, sha256: str, size_bytes: int, on_progress: Progress | None = None) -> Path:
    """Fetch `url` to `target`; it exists only once its SHA-256 is right. Returns target.

    size_bytes bounds what is read. A part left by an earlier attempt (target + ".part") is continued where the server
    allows it. `on_progress` is called with (bytes so far, size_bytes). Raises DataError if the address cannot be read,
    breaks off (the part is kept) or hands out something else (it is discarded); StorageError if the disk refuses.
    """
    if urlsplit(url).scheme not in ("https", "http"):
        raise DataError(f"{url}: expected an http or https address")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(target, error) from None
    part = target.with_name(f"{target.name}.part")
    try:
        _receive(url, part, size_bytes, on_progress or (lambda done, total: None))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{url}: {reason}; try again, or fetch it elsewhere and pass --from FILE") from None
    found = digest_file(part)
    if found != sha256:
        size = part.stat().st_size
        part.unlink()
        raise DataError(f"{url}: {size} bytes with SHA-256 {found}; expected {sha256}; discarded")
    part.replace(target)
    return target


def digest_file(file: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _receive(url: str, part: Path, size_bytes: int, on_progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=_SILENCE_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing lies behind what we have: the part is complete or wrong, and the digest decides.
            return
        raise
    with response:
        # A server that does not resume after our part starts from the beginning.
        start = done if response.status == HTTPStatus.PARTIAL_CONTENT else 0
        length = response.headers.get("Content-Length")
        with part.open("ab" if start else "wb") as file:
            end = _copy(response, file, start, size_bytes, url, on_progress)
    if length is not None and end < start + int(length):
        raise ConnectionError(f"broke off after {end} of {start + int(length)} bytes, which are kept")


def _copy(source: IO[bytes], file: IO[bytes], done: int, size_bytes: int, url: str, on_progress: Progress) -> int:
    while piece := source.read(_PIECE_BYTES):
        done += len(piece)
        if done > size_bytes:
            raise DataError(f"{url}: more than the expected {size_bytes} bytes; stopped reading")
        try:
            file.write(piece)
            file.flush()
        except OSError as error:
            raise StorageError(file.name, error) from None
        on_progress(done, size_bytes)
    return done
