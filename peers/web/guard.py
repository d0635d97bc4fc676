"""Decides about one request from its headers, before anything is looked up. Pure.

The order of checks limits what an outsider may learn. Without the token the answer is 401. The next check is that the
request is meant for this machine (DNS rebinding puts a foreign name into Host), then that no page of a foreign origin
asks.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

import msgspec

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
