"""How many files a process may have open, and how they are shared out."""

import subprocess
import sys

import pytest

from mdl.bounds import MAX_MEMBERS
from mdl.descriptors import LEAST, MOST_HALF_OPEN, NEEDED, OF_A_PEER, RESERVED, SPARE, WANTED, share_out


@pytest.mark.parametrize("limit", [0, 64, LEAST, 128, 256, 1024, 4096, WANTED, 1 << 20])
def test_a_share_leaves_some_in_reserve(limit):
    share = share_out(limit)
    assert 2 <= share.peers <= MAX_MEMBERS
    assert 16 <= share.half_open <= MOST_HALF_OPEN
    if limit >= LEAST:
        assert share.peers * OF_A_PEER + share.half_open + RESERVED <= limit


def test_a_usual_limit_carries_a_hundred_peers_and_a_raised_one_all_members():
    assert share_out(1024).peers >= 100
    assert share_out(WANTED).peers == MAX_MEMBERS


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(200, 300, 300 - SPARE), (200, 200, 200 - SPARE), (40, 40, 20), (128, WANTED + SPARE, WANTED)],
    ids=str,
)
def test_the_soft_limit_is_raised_as_far_as_need_goes_and_stays_below_the_hard_one(soft, hard, expected):
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < hard:
        pytest.skip(f"this machine's hard limit is {allowed}")
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from mdl.descriptors import raise_limit
print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(expected)] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@pytest.mark.parametrize("opened", ["Links", "Hub"])
@pytest.mark.parametrize(("limit", "is_refused"), [(64, True), (NEEDED - 1, True), (NEEDED, False)])
def test_a_node_with_too_few_descriptors_refuses_to_start_and_says_how_many_it_needs(opened, limit, is_refused):
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
from mdl.errors import ConfigError
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.hub import CloudHub
from mdl.transport.links.mesh_links import Links
try:
    if "{opened}" == "Links":
        info = PeerInfo("phone", 1, Role.TRAINER, "", 0, "")
        Links(info, None, max_values=0, now=0.0, listen_host="127.0.0.1", insecure=True).close()
    else:
        CloudHub(Contributor("cloud", 1), None, max_bytes=0, listen_host="127.0.0.1", insecure=True).close()
except ConfigError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    refusal = f"only {limit} files may be open at a time, mdl needs {NEEDED}; raise the limit: ulimit -n 1024"
    assert said.startswith(refusal) if is_refused else not said
