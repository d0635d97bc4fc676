"""Opens a page: turns a user's wishes into addresses that answer, until it is closed again.

The secret of a page's server is chosen at random by this device, so no other device can derive it. It is kept beside
this user's files of the mesh, so that a bookmark lives through a restart, and Prometheus reads it there. `mdl mesh
forget`, or removing the file, gives a new one. MDL_PAGE_TOKEN sets one for several devices, so that their pages go on
with each other: the token itself, or @FILE.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mdl.config import MeshSection, WebSection
from mdl.errors import ConfigError, DataError
from mdl.locks import wait_for_lock
from mdl.peers.edge.identity import state_home
from mdl.peers.view.watch import Watcher
from mdl.peers.web.sources import LiveMesh, Poller, SnapshotSource
from mdl.reading import read_bytes
from mdl.transport.discovery.interfaces import of_ipv4, usable_interfaces
from mdl.transport.trust.keys import Mesh
from mdl.writing import make_private_folder, narrow, open_private

logger = logging.getLogger(__name__)

# Packages that `pip install 'mdl[web]'` brings.
_EXTRA = ("starlette", "uvicorn", "h11", "segno", "prometheus_client")
# Equal to `mdl.peers.command.web.DEFAULT_PORT`; a script that chose its own port means exactly that one.
_USUAL_PORT = 8420
_LOOK_S = 0.5
TOKEN_VARIABLE = "MDL_PAGE_TOKEN"
FILE = "page.token"
# 16 random bytes in hexadecimal digits; a token that a user has chosen must be hard to guess too.
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")
_LARGEST_BYTES = 256


@dataclass(frozen=True)
class Opened:
    """url: of the page with its token, "" if only metrics are served. metrics_url: likewise. notify: there is news.

    token_path: the file that holds the token; None if no file does.

    problem: returns why nothing can be heard; None if it can. name_classes: gives the page the class names of this
    node's data.
    """

    url: str
    metrics_url: str
    token: str
    notify: Callable[[], None]
    token_path: Path | None = None
    problem: Callable[[], Exception | None] = lambda: None
    name_classes: Callable[[tuple[str, ...]], None] = lambda names: None

    def wait(self, over: threading.Event) -> None:
        """Wait until `over`; raise the problem that keeps the page from hearing the mesh."""
        while not over.wait(_LOOK_S):
            if problem := self.problem():
                raise problem

    def tell(self) -> str:
        """Return the addresses in one line, for the person that started it."""
        parts = [f"the page: {self.url}"] if self.url else []
        return "; ".join([*parts, *([f"metrics: {self.metrics_url}"] if self.metrics_url else [])])


@dataclass(frozen=True)
class PageWanted:
    """port, metrics_port: TCP ports, 0 is any; None: not served. lan: to others too. or_next: if `port` is taken."""

    port: int | None
    lan: bool = False
    metrics_port: int | None = None
    or_next: bool = False

    @classmethod
    def of(cls, web: WebSection) -> PageWanted:
        """Return the configured wishes; the usual port may be taken by another node of this machine."""
        return cls(web.port or None, web.lan, web.metrics_port or None, web.port == _USUAL_PORT)


@contextmanager
def page_of_mesh(
    mesh: Mesh,
    section: MeshSection,
    wanted: PageWanted,
    source: str,
    code: str = "",
    cycles: Path | None = None,
) -> Iterator[Opened]:
    """Serve a page about a live mesh, with a watcher of its own. source, cycles: as in `peers/web/sources.py`.

    Raises ConfigError before anything is announced. The page's `problem` tells what keeps it from hearing the mesh.
    """
    need_libraries()
    with ExitStack() as stack:
        sockets = _listen(wanted)
        for each in sockets:
            stack.callback(each.close)
        watcher = Watcher(mesh, section, source)
        source_of_page = LiveMesh(watcher, cycles)
        opened = stack.enter_context(serve(source_of_page, mesh, wanted, sockets, code))
        watcher.on_news = opened.notify
        # Another member's page may go on here only if it can reach this one.
        if wanted.port is not None and (wanted.lan or section.loopback):
            watcher.machine.page_port = sockets[0].getsockname()[1]
        stack.enter_context(watcher)
        yield replace(opened, problem=lambda: watcher.problem, name_classes=source_of_page.name_classes)


@contextmanager
def page_of(source: SnapshotSource, mesh: Mesh | None, wanted: PageWanted, code: str = "") -> Iterator[Opened]:
    """Serve a page about a source that is not heard over a network. Raises ConfigError."""
    need_libraries()
    with serve(source, mesh, wanted, _listen(wanted), code) as opened, Poller(opened.notify):
        yield opened


@contextmanager
def serve(
    source: SnapshotSource, mesh: Mesh | None, wanted: PageWanted, sockets: Sequence[socket.socket], code: str
) -> Iterator[Opened]:
    from mdl.peers.web.app import Site, make_guard, metrics_app
    from mdl.peers.web.prometheus import CONTENT_TYPE, make_metrics
    from mdl.peers.web.serving import Serving

    token, token_path = page_token(mesh)
    name = socket.gethostname()
    guard = make_guard(token, [name, f"{name}.local"], source)
    site = Site(source, guard, code)
    scrape = metrics_app(make_metrics(site.hub.snapshot), CONTENT_TYPE, guard, source)
    apps = [*([site.app()] if wanted.port is not None else []), *([scrape] if wanted.metrics_port is not None else [])]
    host = _own_host() if wanted.lan else "127.0.0.1"
    ports = [each.getsockname()[1] for each in sockets]
    url = f"http://{host}:{ports[0]}/?token={token}" if wanted.port is not None else ""
    metrics_url = f"http://{host}:{ports[-1]}/metrics?token={token}" if wanted.metrics_port is not None else ""
    with Serving(list(zip(apps, sockets, strict=True)), site.hub) as serving:
        yield Opened(url, metrics_url, token, serving.notify, token_path)


def need_libraries() -> None:
    """Raise ConfigError that says what to install, if a package is missing."""
    try:
        import h11
        import prometheus_client
        import segno
        import starlette
        import uvicorn
    except ImportError as error:
        if error.name not in _EXTRA:
            raise
        raise ConfigError(f"the page needs {', '.join(_EXTRA)}: pip install 'mdl[web]'") from None
    del h11, prometheus_client, segno, starlette, uvicorn


def draw_code(text: str) -> str:
    """Return a QR code for a terminal."""
    import segno

    drawn = io.StringIO()
    segno.make(text, micro=False).terminal(drawn, compact=True)
    return drawn.getvalue()


def _listen(wanted: PageWanted) -> list[socket.socket]:
    from mdl.peers.web.serving import listen

    found: list[socket.socket] = []
    try:
        if wanted.port is not None:
            found.append(listen(wanted.port, wanted.lan, wanted.or_next))
        if wanted.metrics_port is not None:
            found.append(listen(wanted.metrics_port, wanted.lan))
    except ConfigError:
        for each in found:
            each.close()
        raise
    return found


def _own_host() -> str:
    own = of_ipv4(usable_interfaces())
    return str(own[0].ip) if own else "127.0.0.1"


def page_token(mesh: Mesh | None) -> tuple[str, Path | None]:
    """Return the token and its file; a new one, and no file, if nothing can be kept.

    mesh: of the page; None for a finished run. Raises ConfigError for an invalid token in MDL_PAGE_TOKEN.
    """
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given.startswith("@"):
        path = Path(given[1:]).expanduser()
        return _checked(_read(path), str(path)), path
    if given:
        return _checked(given, TOKEN_VARIABLE), None
    if mesh is None or mesh.keys is None:
        return _draw(), None
    path = state_home(mesh.name) / FILE
    try:
        make_private_folder(path.parent)
        was_open = narrow(path)
        with open_private(path, "a+b") as file:
            wait_for_lock(file)  # processes that start together share one token
            file.seek(0)
            kept = file.read(_LARGEST_BYTES).decode("ascii", "replace").strip()
            if _TOKEN.fullmatch(kept) and not was_open:
                return kept, path
            token = _draw()  # also if others could read the kept one
            file.truncate(0)
            file.write(f"{token}\n".encode())
            return token, path
    except (OSError, RuntimeError) as error:
        logger.warning("the page's token is not kept (%s): it is another one at the next start", error)
        return _draw(), None


def _draw() -> str:
    return secrets.token_hex(16)


def _read(path: Path) -> str:
    try:
        return read_bytes(path, _LARGEST_BYTES, "a page's token").decode("ascii", "replace").strip()
    except DataError as error:
        raise ConfigError(f"{TOKEN_VARIABLE}: cannot read {error}") from None


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where} holds no token: give 22 to 128 letters, digits, '-' and '_', for example {_draw()}")
    return token
