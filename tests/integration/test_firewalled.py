"""A device that is back behind the usual firewall of a desktop, which lets nobody in, costs the mesh nothing."""

import re
import shutil
import subprocess

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import lan, product

REASON = lan.why_not() or (None if shutil.which("nft") else "nft is not there")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

CODE = new_join_code("field")
# What the machine itself has asked for comes in, and mDNS.
RULES = """
add table inet mdl
add chain inet mdl inbound { type filter hook input priority 0; policy accept; }
add rule inet mdl inbound iif != lo ct state new udp dport != 5353 drop
add rule inet mdl inbound iif != lo tcp flags & (syn | ack) == syn drop
"""


@pytest.fixture
def homes(tmp_path):
    with lan.Lan(4) as net:
        homes = [
            product.Home(tmp_path / name, tmp_path / "cache", ("ip", "netns", "exec", name)) for name in net.names[:4]
        ]
        yield homes
        for home in homes:
            home.close()


def start(homes, number):
    options = "--code", CODE, "--data", product.SMALL, "--shard", f"{number + 1}/4", "--name", f"p{number}"
    return homes[number].start("peer", *options)


def shut(home):
    subprocess.run([*home.before, "nft", "-f", "-"], input=RULES, text=True, check=True)


def last_round(peer):
    return max(map(int, re.findall(r"round (\d+)", peer.told)), default=0)


def test_the_others_go_on_while_it_trains_by_itself(homes):
    peers = [start(homes, number) for number in range(4)]
    assert product.until(lambda: min(map(last_round, peers)) >= 5), [peer.complaint for peer in peers]
    peers[3].kill_all()
    shut(homes[3])
    peers[3] = start(homes, 3)
    assert product.until(lambda: "begins lineage" in peers[3].told), peers[3].told
    alone = last_round(peers[3])
    assert product.until(lambda: last_round(peers[3]) >= alone + 150), peers[3].told
    before = [last_round(peer) for peer in peers[:3]]
    assert product.until(lambda: all(last_round(peer) >= was + 10 for peer, was in zip(peers, before, strict=False)))
