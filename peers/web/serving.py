"""The server's thread: sockets, a bound on connections, a clean end, and the hub that feeds open pages.

Nothing that it does reaches the node's loop. A connection without a request is hanging. The oldest of those is closed
when there are many: without this a thousand of them would block the page.

The hub hands one snapshot, and then its changes, to every open page. A change is made and encoded once, however many
pages are open; without pages nothing is. A reader that is too slow loses its changes and gets a snapshot instead: it
does not make the memory grow.

The guard decides about one request from its headers, before anything is looked up.

The order of checks limits what an outsider may learn. Without the token the answer is 401. The next check is that the
request is meant for this machine (DNS rebinding puts a foreign name into Host), then that no page of a foreign origin
asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mdl.errors import ConfigError
from mdl.peers.view.snapshot import Snapshot, SnapshotTaker, merge_patch
from mdl.peers.web.sources import SnapshotSource

# The most pages at the same time: a household, or a laboratory. Each may hold the changes of some seconds.
MOST_PAGES = 32
_MOST_CHANGES = 64
# The shortest time between two changes for a page. An agent is asked every 0.1 s: the pace must not add as much delay
# again.
PACE_S = 0.05
# A page that hears nothing for a while takes its member for gone, so a sign of life comes this often.
_ALIVE_S = 2.0
_ALIVE = b"event: alive\ndata: {}\n\n"


class FullError(Exception):
    """The most pages are open already."""


class Page:
    """One reader, with the chunks that were not sent to it yet."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.has_news = asyncio.Event()

    def offer(self, chunk: bytes, whole: bytes) -> None:
        if len(self.waiting) >= _MOST_CHANGES:
            self.waiting.clear()
            chunk = whole
        self.waiting.append(chunk)
        self.has_news.set()


class PageHub:
    """Serves the open pages. source: of the snapshot; it is hurried while a page is open.

    `run` goes on until it is cancelled; `notify` may be called any time, in this thread.
    """

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._taker = SnapshotTaker()
        self._pages: set[Page] = set()
        self._news = asyncio.Event()
        self._last: Snapshot | None = None
        self._is_over = False
        self._told_at = 0.0

    def notify(self) -> None:
        """Note that something was heard; call it in this thread."""
        self._news.set()

    def snapshot(self) -> Snapshot:
        return self._taker.take(self._source.told())

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _ALIVE_S)
            self._news.clear()
            if self._tell():
                self._told_at = clock()
            elif clock() - self._told_at >= _ALIVE_S:
                self._send(_ALIVE)
                self._told_at = clock()
            await asyncio.sleep(PACE_S)

    def close(self) -> None:
        """End every stream."""
        self._is_over = True
        for page in self._pages:
            page.has_news.set()

    def open(self) -> Page:
        """Return the page of a new reader; a whole snapshot is sent to it first. Raises FullError."""
        if len(self._pages) >= MOST_PAGES:
            raise FullError
        page = Page()
        self._pages.add(page)
        self._source.hurry(True)
        self._tell()
        self._last = self._last or self.snapshot()
        page.offer(_event("snapshot", self._last), b"")
        return page

    def shut(self, page: Page) -> None:
        self._pages.discard(page)
        if not self._pages:
            self._last = None
            self._source.hurry(False)

    async def stream(self, page: Page) -> AsyncIterator[bytes]:
        """Yield the chunks for a page, until the hub is closed."""
        while not self._is_over:
            while page.waiting:
                yield page.waiting.popleft()
            page.has_news.clear()
            if not self._is_over:
                await page.has_news.wait()

    def _tell(self) -> bool:
        """Send the changes since the last time; return True if there were any."""
        if not self._pages:
            return False
        now = self.snapshot()
        change = merge_patch(self._last, now) if self._last is not None else {}
        self._last = now
        if change:
            self._send(_event("change", change))
        return bool(change)

    def _send(self, chunk: bytes) -> None:
        whole = b""
        for page in self._pages:
            if not whole and len(page.waiting) >= _MOST_CHANGES and self._last:
                whole = _event("snapshot", self._last)
            page.offer(chunk, whole or chunk)


def _event(name: str, value: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


# Connections without a request: a browser opens six at once and uses them within milliseconds.
_MOST_HANGING = 32
# Connections in all: open pages, and some requests beside each.
_MOST_CONNECTIONS = 128
# Seconds until the request of a new connection must be there.
_REQUEST_S = 10.0
_LARGEST_HEADERS_BYTES = 16 << 10
# Ports that are tried one after the other, if the user named none.
_TRIED_PORTS = 20
# Connections that the system holds until this process takes them.
_BACKLOG = 64
_START_S, _STOP_S = 20.0, 5.0


class BoundedProtocol(H11Protocol):  # type: ignore[misc]
    """One connection; `hanging` holds all that have not asked for anything yet, oldest first."""

    hanging: OrderedDict[BoundedProtocol, None]
    _given_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS and not self.hanging:
            return transport.abort()
        self.hanging[self] = None
        if len(self.hanging) > _MOST_HANGING:
            oldest, _ = self.hanging.popitem(last=False)
            oldest.transport.abort()
        self._given_up = self.loop.call_later(_REQUEST_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._speaks()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._speaks()

    def _speaks(self) -> None:
        self.hanging.pop(self, None)
        if self._given_up:
            self._given_up.cancel()
            self._given_up = None

    def _give_up(self) -> None:
        if self in self.hanging:
            self.transport.abort()


class Serving:
    """A server of some applications, each on a socket of its own, in one thread. Use as a context manager.

    hub: runs beside them, and ends their streams; its `notify` may be called through `notify`, from any thread.
    """

    def __init__(self, served: Sequence[tuple[ASGIApp, socket.socket]], hub: PageHub) -> None:
        self._served, self._hub = served, hub
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: list[uvicorn.Server] = []
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mdl-web", daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        if not self._ready.wait(_START_S) or self._problem:
            raise ConfigError(f"the page could not be served: {self._problem or 'nothing answers'}")
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop)
        self._thread.join(_STOP_S)

    def notify(self) -> None:
        """Tell the hub that there is news. May be called from any thread, at any time."""
        self._call(self._hub.notify)

    def _call(self, function: Callable[[], None]) -> None:
        loop = self._loop
        if loop and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:
                return  # it was closed at this moment

    def _stop(self) -> None:
        self._hub.close()
        for server in self._servers:
            server.should_exit = True

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._problem = error
        finally:
            self._ready.set()
            for _, listening in self._served:
                listening.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._servers = [_make_server(app) for app, _ in self._served]
        telling = asyncio.create_task(self._hub.run())
        serving = [
            asyncio.create_task(server.serve([listening]))
            for server, (_, listening) in zip(self._servers, self._served, strict=True)
        ]
        self._ready.set()
        try:
            await asyncio.gather(*serving)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


def listen(port: int, lan: bool, or_next: bool = False) -> socket.socket:
    """Return a socket on this machine only, or on all of its addresses. or_next: tries the next ports too.

    Raises ConfigError for a port that is taken, or not allowed.
    """
    host = "0.0.0.0" if lan else "127.0.0.1"
    problem = ""
    for number in range(port, min(port + _TRIED_PORTS, 65536)) if or_next else [port]:
        try:
            return socket.create_server((host, number), backlog=_BACKLOG)  # free again at once if that is safe
        except OSError as error:
            problem = os.strerror(error.errno or 0)
    raise ConfigError(f"port {port} for the page: {problem}; give another one")


def _make_server(app: ASGIApp) -> uvicorn.Server:
    hanging: OrderedDict[BoundedProtocol, None] = OrderedDict()
    protocol: Any = type("Protocol", (BoundedProtocol,), {"hanging": hanging})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_LARGEST_HEADERS_BYTES,
        loop="asyncio",
    )
    return uvicorn.Server(config)


COOKIE = "mdl_page"
TOKEN_FIELD = "token"
# Views of the page, each at an address of its own; the first is the empty one.
VIEWS = ("", "round", "learning", "schedule", "cloud", "join")
# Requests that one address may make at once, and each second after that: a page opens with a dozen files.
_BURST, _EACH_S = 120.0, 20.0
# The most addresses that are counted; the one that was quiet longest is forgotten.
_MOST_ADDRESSES = 256
_LONGEST_HOST = 256


class Asked(msgspec.Struct, frozen=True):
    """The parts of a request that decide. headers: by lower-case name. token: of its query. client: IP address."""

    method: str
    path: str
    headers: Mapping[str, str]
    token: str = ""
    client: str = ""


class Refused(msgspec.Struct, frozen=True):
    """code: of HTTP. why: for people, without anything about the mesh."""

    code: int
    why: str


class PageGuard:
    """token: readers need it, on this machine too, as others use it as well. names: of this machine.

    pages: origins of other members' pages, which may read here. clock: in seconds.
    """

    def __init__(
        self,
        token: str,
        names: Collection[str],
        pages: Callable[[], Collection[str]],
        clock: Callable[[], float],
    ) -> None:
        self.token = token
        # Cookies go to every port of a host, and so to other users' servers. This one opens only the page's own files:
        # they say nothing of the mesh, and do not reveal the token.
        self.pass_word = hashlib.sha256(f"mdl page:{token}".encode()).hexdigest()
        self._names = {name.lower().rstrip(".") for name in names} | {"localhost"}
        self._pages = pages
        self._clock = clock
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, asked: Asked) -> Refused | None:
        """Return why the request is refused; None: it is answered."""
        if not (self.has_token(asked) or (self._is_own_file(asked.path) and self._has_pass(asked))):
            return Refused(401, "this page needs its token: open the address that mdl printed\n")
        if not self._is_meant_for_us(asked.headers.get("host", "")):
            return Refused(421, "Host is not a name of this machine\n")
        if not self.is_own_origin(asked) and not self.other_page(asked):
            return Refused(403, "a page of another origin may not read this\n")
        if asked.method not in ("GET", "HEAD"):
            return Refused(405, "nothing can be changed here\n")
        if not self._has_room(asked.client):
            return Refused(429, "too many requests from this address\n")
        return None

    def has_token(self, asked: Asked) -> bool:
        bearer = asked.headers.get("authorization", "").removeprefix("Bearer ")
        return any(_is_equal(given, self.token) for given in (asked.token, bearer))

    def is_own_origin(self, asked: Asked) -> bool:
        """Return False if a script or an element of another page asks; a person that follows a link is no page."""
        origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site", "")
        if origin is not None:
            return origin == f"http://{asked.headers.get('host', '')}"
        return site in ("", "none", "same-origin") or asked.headers.get("sec-fetch-mode") == "navigate"

    def other_page(self, asked: Asked) -> str:
        """Return the origin of the other member's page that asks; "" if there is none."""
        origin = asked.headers.get("origin", "")
        return origin if origin in self._pages() else ""

    def _is_own_file(self, path: str) -> bool:
        return path.startswith("/page/") or path.removeprefix("/") in VIEWS

    def _has_pass(self, asked: Asked) -> bool:
        pieces = (piece.strip().partition("=") for piece in asked.headers.get("cookie", "").split(";"))
        return any(name == COOKIE and _is_equal(value, self.pass_word) for name, _, value in pieces)

    def _is_meant_for_us(self, host: str) -> bool:
        """Return True if Host is an address or a name of ours: an address cannot be rebound, a foreign name can."""
        if len(host) > _LONGEST_HOST:
            return False
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower().rstrip(".") in self._names
        return True

    def _has_room(self, client: str) -> bool:
        now = self._clock()
        room, at = self._rates.pop(client, (_BURST, now))
        room = min(_BURST, room + (now - at) * _EACH_S)
        self._rates[client] = max(0.0, room - 1.0), now
        if len(self._rates) > _MOST_ADDRESSES:
            self._rates.popitem(last=False)
        return room >= 1.0


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
