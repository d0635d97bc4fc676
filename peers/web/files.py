"""The page's own files, read once: a name that is not in the table is no file, wherever a path might lead."""

from __future__ import annotations

import gzip
import hashlib
from html import escape
from importlib.resources import files

import msgspec
from starlette.responses import Response

from mdl.peers.view.snapshot import SHOWN

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class PageFiles:
    """The files by name: type, plain and compressed content, and tag."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, bytes, bytes, str]] = {}
        for path in files("mdl.peers.web").joinpath("page").iterdir():
            if path.is_file():
                self._keep(path.name, path.read_bytes())
        facts = [(field, how.fact, how.form) for field, how in SHOWN.items() if how.fact]
        self._keep("facts.js", b"export const FACTS = %s;\n" % msgspec.json.encode(facts))

    def _keep(self, name: str, content: bytes) -> None:
        if kind := _TYPES.get(name.rpartition(".")[2]):
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            self._files[name] = kind, content, gzip.compress(content, mtime=0), tag

    def document(self, pages: tuple[str, ...]) -> Response:
        """Return the page itself. pages: other origins that it may ask besides this server."""
        kind, content, _, _ = self._files["index.html"]
        told = escape(" ".join(pages)).encode()
        return Response(
            content.replace(b'name="pages" content=""', b'name="pages" content="%s"' % told), 200, None, kind
        )

    def answer(self, name: str, known: str, accepted: str) -> Response:
        """Return a file. known: the tag of the browser's copy. accepted: the encodings that it reads."""
        if name not in self._files:
            return Response("there is no such file\n", 404)
        kind, content, packed, tag = self._files[name]
        headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if known == tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in accepted:
            return Response(packed, 200, {**headers, "content-encoding": "gzip"}, kind)
        return Response(content, 200, headers, kind)
