"""Where multicast is blocked members meet all the same, without anybody typing an address."""

import json
import threading
import time

import pytest

from mdl.transport.discovery.interfaces import WAIT_S
from mdl.transport.trust.keys import new_join_code
from tests.integration import lan
from tests.integration.test_bad_links import NODE

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]
MEET_S = 60.0


def found_in(tmp_path, settings, patience_s):
    """Whom each of two devices has found by then, without multicast."""
    if reason := lan.why_not():
        pytest.skip(reason)
    code, found, news = new_join_code("home"), [set(), set()], threading.Condition()

    def note(lines, mine):
        for line in lines:
            if peer := json.loads(line).get("found"):
                with news:
                    mine.add(peer)
                    news.notify()

    with lan.Lan(2, deaf=True) as net:
        for host, mine in enumerate(found):
            node = net.start(host, NODE, code, f"d{host}", tmp_path / str(host), "--set", *settings)
            threading.Thread(target=note, args=(node.stdout, mine), daemon=True).start()
        with news:
            news.wait_for(lambda: all(found), patience_s)
    return found


def test_two_devices_meet_without_multicast(tmp_path):
    began = time.monotonic()
    assert found_in(tmp_path, ["round.rounds=0"], MEET_S) == [{"d1"}, {"d0"}]
    assert time.monotonic() - began < MEET_S


def test_whoever_does_not_want_that_looks_for_nobody(tmp_path):
    assert found_in(tmp_path, ["mesh.scan=false"], 2 * WAIT_S) == [set(), set()]
