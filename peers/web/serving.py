"""The server's thread: sockets, a bound on connections, and a clean end. Nothing that it does reaches the node's loop.

A connection without a request is hanging. The oldest of those is closed when there are many: without this a thousand of
them would block the page.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mdl.errors import ConfigError
from mdl.peers.web.hub import PageHub

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
