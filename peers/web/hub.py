"""Hands one snapshot, and then its changes, to every open page. All of it runs in the server's one thread.

A change is made and encoded once, however many pages are open; without pages nothing is. A reader that is too slow
loses its changes and gets a snapshot instead: it does not make the memory grow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec

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
