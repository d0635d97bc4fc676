"""The answers to requests: the page's files, the snapshot, its changes, rounds played again. Every request is a GET.

Each one passes the guard first. Answers are JSON, text or one of the page's own files; text from another device never
stands in HTML. The page's files are read once: a name that is not in the table is no file, wherever a path might lead.
The join code has forms that another device reads: text, and the dark and light of a QR code.

A finished round is drawn again, or played with another policy or other devices; that reads no file.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from ipaddress import ip_address
from typing import Any

import msgspec
import segno
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mdl.bounds import MAX_ROUND, whole_number
from mdl.errors import ConfigError, DataError, MdlError
from mdl.peers.view.schedule_source import Playable, as_playable, draw_subject
from mdl.peers.view.snapshot import SHOWN, ChartPart, chart_part
from mdl.peers.web.serving import COOKIE, TOKEN_FIELD, VIEWS, Asked, FullError, PageGuard, PageHub
from mdl.peers.web.sources import POLICIES, SnapshotSource
from mdl.protocol.status_messages import RoundSummary
from mdl.scheduler.explain.chart import Delay
from mdl.scheduler.explain.draw_chart import ShownDevice
from mdl.scheduler.explain.recorded_round import RealRound, finished_round
from mdl.scheduler.explain.what_if import apply_changes, parse_changes

# The most plays that wait for the running one: a person at a slider needs no more.
_MOST_PLAYS = 4
_LONGEST_QUERY = 8192
_JSON = "application/json"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class Site:
    """The page's applications and their state. source: of the snapshot. code: the mesh's join code, "" if unknown."""

    def __init__(self, source: SnapshotSource, guard: PageGuard, code: str = "") -> None:
        self.hub, self.guard = PageHub(source), guard
        self._source, self._code = source, code
        self._files = PageFiles()
        self._playing, self._plays = asyncio.Lock(), 0

    def app(self) -> ASGIApp:
        routes = [
            *(Route(f"/{view}", self._page, methods=["GET"]) for view in VIEWS),
            Route("/page/{name}", self._file, methods=["GET"]),
            Route("/api/v1/snapshot", self._snapshot, methods=["GET"]),
            Route("/api/v1/events", _Events(self.hub)),
            Route("/api/v1/rounds/{number}", self._round, methods=["GET"]),
            Route("/api/v1/rounds/{number}/what-if", self._what_if, methods=["GET"]),
            Route("/api/v1/join", self._join, methods=["GET"]),
        ]
        return _Guarded(Starlette(routes=routes), self.guard, self._source)

    async def _page(self, request: Request) -> Response:
        """Return the page. If the address has the token, the browser keeps a pass instead, and the page the token."""
        if TOKEN_FIELD in request.query_params:
            token = request.query_params[TOKEN_FIELD]
            if not self.guard.has_token(Asked("GET", "", {}, token)):
                return Response("the token is not this page's\n", 401)
            answer = RedirectResponse(f"{request.url.path}#{TOKEN_FIELD}={token}", 303)
            answer.set_cookie(COOKIE, self.guard.pass_word, httponly=True, samesite="lax")
            return answer
        return self._files.document(request.state.pages)

    async def _file(self, request: Request) -> Response:
        return self._own(request.path_params["name"], request)

    def _own(self, name: str, request: Request) -> Response:
        headers = request.headers
        return self._files.answer(name, headers.get("if-none-match", ""), headers.get("accept-encoding", ""))

    async def _snapshot(self, _: Request) -> Response:
        return _json(self.hub.snapshot())

    async def _round(self, request: Request) -> Response:
        return await self._play(request, lambda real: replay(real))

    async def _what_if(self, request: Request) -> Response:
        query = request.query_params
        policy, assignments = query.get("policy", POLICIES[0]), query.getlist("set")
        return await self._play(request, lambda real: what_if(real, policy, assignments, POLICIES))

    async def _play(self, request: Request, work: Callable[[Any], msgspec.Struct]) -> Response:
        """Play in a thread beside the server, one play at a time."""
        number = whole_number(request.path_params["number"], MAX_ROUND)
        told = self._source.told()
        policy = told.status.policy if told.status else ""
        if self._plays >= _MOST_PLAYS:
            return _error(503, "too many rounds are being played already; try again")
        self._plays += 1
        try:
            async with self._playing:
                real = find_round(told.rounds, -1 if number is None else number, told.mesh, policy)
                return _json(await asyncio.to_thread(work, real))
        except MdlError as error:
            return _error(404 if "is not known here" in str(error) else 400, str(error))
        finally:
            self._plays -= 1

    async def _join(self, request: Request) -> Response:
        """Return the invitation, to a person at this device only.

        Over the network the code would travel in the clear.
        """
        given = Asked("GET", "", request.headers, request.query_params.get(TOKEN_FIELD, ""))
        if not self._code:
            return _error(404, "this page knows no join code")
        if not _is_local(request.client.host if request.client else ""):
            return _error(
                403, "the join code is shown on the device itself only: mdl mesh show NAME, or its page there"
            )
        if not self.guard.has_token(given) or not self.guard.is_own_origin(given):
            return _error(403, "open the address that mdl printed: only with its token the join code is shown")
        invitation: InvitationShown = await asyncio.to_thread(functools.partial(invite, self._code))
        return _json(invitation)


class _Guarded:
    """Passes every request through the guard first, and adds the same headers to every answer."""

    def __init__(self, app: ASGIApp, guard: PageGuard, source: SnapshotSource) -> None:
        self._app, self._guard, self._source = app, guard, source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        token = request.query_params.get(TOKEN_FIELD, "") if len(scope["query_string"]) <= _LONGEST_QUERY else ""
        asked = Asked(request.method, request.url.path, request.headers, token, (scope["client"] or ("",))[0])
        pages = self._source.told().pages
        # The policy and the document must allow the same pages.
        scope.setdefault("state", {})["pages"] = pages
        extra = self._headers(asked, pages)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        refused = self._guard.check(asked)
        if refused is None and len(scope["query_string"]) > _LONGEST_QUERY:
            await Response("the query is too long\n", 414)(scope, receive, send_with_headers)
        elif refused:
            # Close it, so that an outsider holds no connection.
            await Response(refused.why, refused.code, {"connection": "close"})(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _headers(self, asked: Asked, pages: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
        allowed = " ".join(("'self'", *pages))
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
            f"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; connect-src {allowed}"
        )
        headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }
        if page := self._guard.other_page(asked):
            headers |= {"access-control-allow-origin": page, "vary": "origin"}
            headers["cross-origin-resource-policy"] = "cross-origin"
        if not asked.path.startswith("/page/"):
            headers["cache-control"] = "no-store"
        return [(name.encode(), value.encode()) for name, value in headers.items()]


class _Events:
    """Server-sent events: one snapshot, then changes, until the reader goes or the server ends."""

    def __init__(self, hub: PageHub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            page = self._hub.open()
        except FullError:
            answer = Response("too many pages are open; close one\n", 503, {"retry-after": "10"})
            await answer(scope, receive, send)
            return
        writing = asyncio.create_task(self._write(page, send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.shut(page)
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, page: Any, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self._hub.stream(page):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def metrics_app(scrape: Callable[[], bytes], content_type: str, guard: PageGuard, source: SnapshotSource) -> ASGIApp:
    """Return the application that `--metrics-port` serves."""

    async def metrics(_: Request) -> Response:
        return Response(scrape(), media_type=content_type)

    return _Guarded(Starlette(routes=[Route("/metrics", metrics, methods=["GET"])]), guard, source)


def make_guard(token: str, names: list[str], source: SnapshotSource) -> PageGuard:
    return PageGuard(token, names, lambda: source.told().pages, time.monotonic)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type=_JSON)


def _error(code: int, why: str) -> Response:
    return Response(msgspec.json.encode({"error": why}), code, media_type=_JSON)


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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


class InvitationShown(msgspec.Struct, frozen=True):
    """The invitation for another device.

    code: the join code.
    command: what to type there.
    qr: rows of a QR code of the join code, "1" is dark.
    """

    code: str
    command: str
    qr: tuple[str, ...]


def invite(code: str) -> InvitationShown:
    rows = tuple("".join("1" if dark else "0" for dark in row) for row in segno.make(code, micro=False).matrix)
    return InvitationShown(code, f"mdl peer --mesh {code.partition(':')[0]}", rows)


# A play of so many devices takes a fraction of a second; the member trains meanwhile.
_MOST_DEVICES = 64
_MOST_CHANGES = 64


class ReplayedRound(msgspec.Struct, frozen=True):
    """A round as it was recorded.

    round: its number.
    policy: that made the decisions; "": not known.
    chart: the activities of all devices.
    devices: their properties, as far as they are known.
    delays: each device that waited, for which other one, and why.
    """

    round: int
    policy: str
    chart: ChartPart
    devices: tuple[ShownDevice, ...]
    delays: tuple[Delay, ...]


class WhatIf(msgspec.Struct, frozen=True):
    """A round rebuilt as a scenario and played twice under one policy.

    round: its number.
    policy: that orders it.
    changes: as they were asked for.
    before: as the devices were.
    after: as they were changed.
    devices: after the change.
    estimates: devices that the round went on without, and why; then the assumptions, in words.
    """

    round: int
    policy: str
    changes: tuple[str, ...]
    before: ChartPart
    after: ChartPart
    devices: tuple[ShownDevice, ...]
    estimates: tuple[str, ...]


def find_round(rounds: Sequence[RoundSummary], number: int, where: str, policy: str) -> RealRound:
    """Return the round. Raises DataError if it is not there, or tells no schedule."""
    found = next((summary for summary in rounds if summary.round == number), None)
    if found is None or not found.devices:
        raise DataError(f"round {number} is not known here with its schedule")
    return finished_round(found, where, policy)


def replay(real: RealRound) -> ReplayedRound:
    drawn = draw_subject(real, None, "")
    return ReplayedRound(real.number, drawn.policy, chart_part(drawn.chart), drawn.devices, drawn.chart.delays)


def what_if(real: RealRound, policy: str, assignments: Sequence[str], policies: Sequence[str]) -> WhatIf:
    """Play a round with changed devices.

    assignments: DEVICE.FIELD=VALUE, as `mdl schedule what-if --set` takes them. Raises ConfigError or DataError.
    """
    if policy not in policies:
        raise ConfigError(f"policy {policy[:40]!r}: expected one of {', '.join(policies)}")
    if len(real.devices) > _MOST_DEVICES:
        raise ConfigError(
            f"{len(real.devices)} devices: at most {_MOST_DEVICES} are played here; mdl schedule takes more"
        )
    if len(assignments) > _MOST_CHANGES:
        raise ConfigError(f"{len(assignments)} changes: at most {_MOST_CHANGES}")
    scene = as_playable(real)
    changed = scene
    if assignments:
        changed_scenario = apply_changes(scene.scenario, parse_changes(assignments, scene.names))
        changed = Playable(scene.title, changed_scenario, scene.names, scene.estimates)
    before, after = (draw_subject(each, policy, policy) for each in (scene, changed))
    charts = chart_part(before.chart), chart_part(after.chart)
    left_out = tuple(f"{line}: not played here" for line in scene.lost)
    return WhatIf(real.number, policy, tuple(assignments), *charts, after.devices, (*left_out, *scene.estimates))
