"""The page's server over real sockets: what it answers, and what outsiders and hanging connections change: nothing."""

import contextlib
import json
import re
import socket
import time
from pathlib import Path

import pytest

from mdl.peers.web.prometheus import METRICS
from mdl.protocol.vocabulary import PeerInfo, Role
from tests.integration.product import until
from tests.integration.web_server import CODE, Reader, Words, a_mesh, ask, port_of, served

for needed in ("starlette", "uvicorn", "segno", "prometheus_client"):
    pytest.importorskip(needed, reason="the page's extra is not installed: pip install 'mdl[web]'")

VIEWS = ["/", "/round", "/learning", "/schedule", "/cloud", "/join"]


@pytest.fixture
def words():
    return Words(a_mesh())


def test_every_view_has_an_address_and_the_interface_is_json(words):
    with served(words) as opened:
        for view in VIEWS:
            code, headers, body = ask(opened, view)
            assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert b"<!doctype html>" in body.lower()
        code, headers, body = ask(opened, "/api/v1/snapshot")
        assert (code, headers["content-type"]) == (200, "application/json")
        shown = json.loads(body)
        assert (shown["schema"], shown["mesh"]["name"], len(shown["learning"]["rounds"])) == (1, "home", 40)
        assert ask(opened, "/nothing")[0] == 404
        assert ask(opened, "/page/../app.py")[0] == 404
        assert ask(opened, "/page/%2e%2e%2fapp.py")[0] == 404


def test_a_reader_gets_a_snapshot_and_then_what_changes(words):
    with served(words) as opened:
        reader = Reader(opened)
        with contextlib.closing(reader):
            assert reader.next()[0] == "snapshot"
            assert words.is_watched
            peers = {
                "boss": PeerInfo("boss", 1, Role.AGENT, "192.0.2.1", 1),
                "new": PeerInfo("new", 1, Role.TRAINER, "192.0.2.1", 1),
            }
            started = time.monotonic()
            words.say(peers=peers)
            name, change = reader.next()
            took_s = time.monotonic() - started
            assert (name, list(change), set(change["mesh"]["devices"])) == ("change", ["mesh"], {"boss", "new"})
            assert took_s < 5.0  # 0.1 s where nothing else runs; `python -m benchmarks web` has the figure
            assert reader.shown["mesh"]["devices"]["new"]["state"] == "found"
        assert until(lambda: not words.is_watched), "nobody reads any more"


def test_rounds_are_played_again_and_under_other_circumstances(words):
    with served(words) as opened:
        code, _, body = ask(opened, "/api/v1/rounds/41")
        told = json.loads(body)
        assert (code, told["round"], len(told["chart"]["hops"])) == (200, 41, 6)
        query = "policy=greedy&set=device-02.link=0.05"
        code, _, body = ask(opened, f"/api/v1/rounds/41/what-if?{query}")
        told = json.loads(body)
        assert (code, told["policy"]) == (200, "greedy"), told
        assert told["after"]["makespan_s"] > told["before"]["makespan_s"]
        for path, complaint in (
            ("/api/v1/rounds/7777", "not known"),
            ("/api/v1/rounds/first", "not known"),
            ("/api/v1/rounds/41/what-if?policy=mine:make", "expected one of"),
            ("/api/v1/rounds/41/what-if?set=device-02.speed=1", "unknown field"),
        ):
            code, _, body = ask(opened, path)
            assert (code in (400, 404), complaint in json.loads(body)["error"]) == (True, True), body
        assert ask(opened, "/api/v1/rounds/41/what-if?" + "x" * 9000)[0] == 414


@pytest.mark.parametrize("lan", [False, True])
def test_an_outsider_and_another_user_of_this_machine_get_nothing_but_401(words, lan):
    with served(words, lan=lan) as opened:
        for path in [
            *VIEWS,
            "/page/app.js",
            "/api/v1/snapshot",
            "/api/v1/events",
            "/api/v1/join",
            "/nothing",
            "/metrics",
        ]:
            for headers in ({}, {"Authorization": "Bearer no"}, {"Host": "evil.example"}, {"Origin": "http://evil"}):
                code, told, body = ask(opened, path, is_stranger=True, **headers)
                assert code == 401, path
                assert b"home" not in body
                assert b"device" not in body
                assert told["connection"] == "close"
        assert ask(opened, "/", method="POST", is_stranger=True)[0] == 401
        assert ask(opened, "/?token=" + "0" * 32, is_stranger=True)[0] == 401

        code, headers, _ = ask(opened, opened.url.partition("/?")[2].join(("/round?", "")), is_stranger=True)
        assert (code, headers["location"]) == (303, f"/round#token={opened.token}")
        cookie = headers["set-cookie"]
        assert opened.token not in cookie
        assert re.search("HttpOnly", cookie, re.IGNORECASE)
        kept = {"Cookie": cookie.partition(";")[0], "is_stranger": True}
        assert ask(opened, "/round", **kept)[0] == ask(opened, "/page/app.js", **kept)[0] == 200
        assert ask(opened, "/api/v1/snapshot", **kept)[0] == 401, "a cookie goes to other users' servers here too"
        assert ask(opened, f"/api/v1/snapshot?token={opened.token}", is_stranger=True)[0] == 200
        assert ask(opened, "/api/v1/snapshot", Authorization=f"Bearer {opened.token}")[0] == 200


def test_another_origin_and_a_foreign_host_get_nothing(words):
    with served(words) as opened:
        assert ask(opened, "/api/v1/snapshot", Host="rebound.example")[0] == 421
        assert ask(opened, "/api/v1/snapshot", Origin="http://evil.example")[0] == 403
        assert ask(opened, "/api/v1/events", Origin="http://evil.example")[0] == 403
        assert "access-control-allow-origin" not in ask(opened, "/api/v1/snapshot")[1]
        words.say(pages=("http://10.0.0.7:8420",))
        code, headers, _ = ask(opened, "/api/v1/snapshot", Origin="http://10.0.0.7:8420")
        assert (code, headers["access-control-allow-origin"]) == (200, "http://10.0.0.7:8420")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert policy.endswith("connect-src 'self' http://10.0.0.7:8420")
        assert b'name="pages" content="http://10.0.0.7:8420"' in ask(opened, "/")[2]


def test_the_page_is_small(words):
    with served(words) as opened:
        names = ["index.html", *(path.name for path in Path("peers/web/page").iterdir() if path.suffix != ".LICENSE")]
        sent = {name: ask(opened, f"/page/{name}", Accept_Encoding="gzip") for name in set(names)}
        assert {code for code, _, _ in sent.values()} == {200}
        assert all(headers["content-encoding"] == "gzip" for _, headers, _ in sent.values())
        assert sum(len(body) for _, _, body in sent.values()) < 50_000
        headers = sent["app.js"][1]
        assert ask(opened, "/page/app.js", If_None_Match=headers["etag"])[0] == 304
    served_files = [path for path in Path("peers/web/page").iterdir() if path.suffix != ".LICENSE"]
    assert sum(path.stat().st_size for path in served_files) <= 100_000


def test_no_method_changes_anything(words):
    with served(words) as opened:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(opened, "/api/v1/snapshot", method=method)[0] == 405


def test_the_join_code_is_shown_on_this_device_with_the_token_alone(words):
    with served(words, code=CODE) as opened:
        code, _, body = ask(opened, "/api/v1/join", is_stranger=True)
        assert (code, CODE.encode() in body) == (401, False)
        assert ask(opened, f"/api/v1/join?token={opened.token}", Origin="http://evil.example")[0] == 403
        code, _, body = ask(opened, f"/api/v1/join?token={opened.token}")
        told = json.loads(body)
        assert (code, told["code"]) == (200, CODE)
        assert {len(row) for row in told["qr"]} == {len(told["qr"])}
        words.say(pages=("http://127.0.0.1:9",))
        code, _, body = ask(opened, f"/api/v1/join?token={opened.token}", Origin="http://127.0.0.1:9")
        assert (code, CODE.encode() in body) == (403, False), "another member's page shows data, not the code"


def test_a_thousand_hanging_connections_change_nothing(words):
    with served(words) as opened:
        reader = Reader(opened)
        reader.next()
        hanging = []
        try:
            for number in range(1000):
                hanging.append(socket.create_connection(("127.0.0.1", port_of(opened)), 10.0))
                if number % 3 == 0:
                    hanging[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
                if number % 100 == 99:
                    assert ask(opened, "/api/v1/snapshot")[0] == 200
            words.say(problem="all is well")
            assert reader.next()[0] == "change", "an open page hears on"
            dropped = sum(_is_closed(each) for each in hanging[:900])
            assert dropped >= 850
        finally:
            for each in hanging:
                each.close()
            reader.close()


def _is_closed(connection):
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        try:
            return connection.recv(1) == b""
        except ConnectionError:
            return True
    return False


def test_pages_are_bounded_and_places_come_back(words):
    with served(words) as opened, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(contextlib.closing(Reader(opened))) for _ in range(32)]
        assert {reader.code for reader in readers} == {200}
        with contextlib.closing(Reader(opened)) as one_more:
            assert one_more.code == 503
        readers[0].close()

        def is_free():
            with contextlib.closing(Reader(opened)) as again:
                return again.code == 200

        assert until(is_free)


def test_a_reader_that_does_not_read_is_given_a_snapshot_later(words):
    with served(words) as opened, contextlib.closing(Reader(opened)) as slow:
        slow.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for number in range(200):
            words.say(problem=f"{number}" * 100)
        words.say(problem="last")
        slow.next()
        assert until(lambda: slow.next() and slow.shown["mesh"]["told"] == "last")


# Of models that give numbers or labels; the mesh here tells classes apart (tests/peers/web/test_prometheus.py).
OF_OTHER_TARGETS = {"mdl_round_micro_f1_ratio", "mdl_round_rmse", "mdl_round_mae", "mdl_round_r2"}


def test_metrics_have_documented_names(words):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with served(words, metrics_port=port) as opened:
        assert ask(opened, "/metrics", port=port, is_stranger=True)[0] == 401
        code, headers, body = ask(opened, opened.metrics_url.rpartition(str(port))[2], port=port, is_stranger=True)
        assert (code, headers["content-type"].partition(";")[0]) == (200, "text/plain")
        names = set(re.findall(r"^(mdl_\w+)", body.decode(), re.MULTILINE))
        documented = {known.name for known in METRICS}
        assert names == documented - OF_OTHER_TARGETS
        assert 'mdl_device_up{device="device-12"} 0.0' in body.decode()
        assert ask(opened, "/api/v1/snapshot", port=port)[0] == 404


def test_the_dashboard_asks_for_what_there_is():
    dashboard = json.loads(Path("deploy/grafana.json").read_text())
    asked = set(
        re.findall(r"mdl_\w+", " ".join(each["expr"] for panel in dashboard["panels"] for each in panel["targets"]))
    )
    documented = {known.name for known in METRICS}
    assert len(asked) > 10
    assert asked <= documented


def test_names_of_devices_are_json_text_wherever_they_stand(words):
    words.say(problem="<script>alert(1)</script>\u2028")
    with served(words) as opened:
        code, headers, body = ask(opened, "/api/v1/snapshot")
        assert (code, headers["x-content-type-options"]) == (200, "nosniff")
        assert json.loads(body)["mesh"]["told"].startswith("<script>")
        assert b"<script>alert" not in ask(opened, "/")[2]


def test_a_port_that_is_taken_is_one_clear_line(words):
    from mdl.errors import ConfigError
    from mdl.peers.web.opening import PageWanted, page_of

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} for the page"), page_of(words, None, PageWanted(port)):
            pass
