"""Who may read the page: decided from one request's headers."""

from __future__ import annotations

import pytest

from mdl.peers.web.serving import COOKIE, Asked, PageGuard

TOKEN = "t" * 32
OTHER_PAGE = "http://10.0.0.7:8420"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _guard(clock: Clock | None = None) -> PageGuard:
    return PageGuard(TOKEN, ["workshop", "workshop.local"], lambda: (OTHER_PAGE,), clock or Clock())


def _asked(token: str = "", method: str = "GET", client: str = "10.0.0.9", **headers: str) -> Asked:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Asked(method, "/", {"host": "10.0.0.1:8420"} | given, token, client)


def _code(guard: PageGuard, asked: Asked) -> int:
    refused = guard.check(asked)
    return refused.code if refused else 200


@pytest.mark.parametrize(
    "asked",
    [
        _asked(),
        _asked("x" * 32),
        _asked(TOKEN[:-1]),
        _asked(authorization="Bearer nothing"),
        _asked(cookie=f"{COOKIE}={TOKEN}"),
        _asked(cookie=f"other={'a' * 64}"),
        _asked(host="evil.example"),
        _asked(origin="http://evil.example"),
        _asked(method="POST"),
        _asked(method="OPTIONS"),
        _asked("ü"),
    ],
)
def test_an_outsider_without_the_token_gets_nothing_but_401(asked: Asked) -> None:
    assert _code(_guard(), asked) == 401


def test_the_token_opens_by_query_by_header_and_by_the_pass_that_a_browser_keeps() -> None:
    guard = _guard()
    assert _code(guard, _asked(TOKEN)) == 200
    assert _code(guard, _asked(authorization=f"Bearer {TOKEN}")) == 200
    kept = {"host": "10.0.0.1:8420", "cookie": f"a=b; {COOKIE}={guard.pass_word}"}
    paths = ("/", "/round", "/page/app.js", "/api/v1/snapshot", "/api/v1/events", "/metrics", "/page")
    codes = [_code(guard, Asked("GET", path, kept)) for path in paths]
    assert codes == [200, 200, 200, 401, 401, 401, 401], "the cookie goes to other users' servers of the machine, too"
    assert guard.pass_word != TOKEN
    assert not guard.has_token(_asked(cookie=f"{COOKIE}={guard.pass_word}")), "a pass is no token: it shows no code"


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1.evil.example", "", "x" * 300, "127.0.0.1.nip.io:8420"])
def test_a_foreign_name_in_host_is_refused(host: str) -> None:
    assert _code(_guard(), _asked(TOKEN, host=host)) == 421


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8420", "localhost", "LOCALHOST:1", "[::1]:8420", "workshop:8420", "Workshop.local.", "10.0.0.1"]
)
def test_addresses_and_own_names_are_hosts(host: str) -> None:
    assert _code(_guard(), _asked(TOKEN, host=host)) == 200


def test_a_page_of_another_origin_may_not_read() -> None:
    guard = _guard()
    assert _code(guard, _asked(TOKEN, origin="http://evil.example")) == 403
    assert _code(guard, _asked(TOKEN, origin="null")) == 403
    assert _code(guard, _asked(TOKEN, origin="http://10.0.0.1:9999")) == 403
    assert _code(guard, _asked(TOKEN, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")) == 403
    assert _code(guard, _asked(TOKEN, sec_fetch_site="same-site", sec_fetch_mode="cors")) == 403


def test_the_own_page_may_and_a_person_who_follows_a_link() -> None:
    guard = _guard()
    assert _code(guard, _asked(TOKEN, origin="http://10.0.0.1:8420")) == 200
    assert _code(guard, _asked(TOKEN, sec_fetch_site="same-origin", sec_fetch_mode="cors")) == 200
    assert _code(guard, _asked(TOKEN, sec_fetch_site="cross-site", sec_fetch_mode="navigate")) == 200


def test_the_page_of_another_member_may_read_with_the_token() -> None:
    asked = _asked(TOKEN, origin=OTHER_PAGE, sec_fetch_site="cross-site", sec_fetch_mode="cors")
    assert _code(_guard(), asked) == 200
    assert _guard().other_page(asked) == OTHER_PAGE
    assert _code(_guard(), _asked(origin=OTHER_PAGE)) == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_request_can_change_anything(method: str) -> None:
    assert _code(_guard(), _asked(TOKEN, method)) == 405


def test_an_address_that_asks_too_often_waits_and_others_do_not() -> None:
    clock = Clock()
    guard = _guard(clock=clock)
    codes = [_code(guard, _asked(TOKEN)) for _ in range(200)]
    assert (codes[0], codes[-1]) == (200, 429)
    assert _code(guard, _asked(TOKEN, client="10.0.0.10")) == 200
    clock.now = 1.0
    assert [_code(guard, _asked(TOKEN)) for _ in range(30)].count(200) == 20


def test_many_addresses_are_forgotten_again() -> None:
    guard = _guard()
    for number in range(2000):
        guard.check(_asked(TOKEN, client=f"10.1.{number // 256}.{number % 256}"))
    assert len(guard._rates) <= 256
