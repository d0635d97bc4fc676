"""Two devices of a LAN whose kernel has no IPv6, one of them with a home that cannot be written: they train."""

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import lan
from tests.integration.product import SMALL, Home


@pytest.mark.slow
@pytest.mark.skipif(bool(lan.why_not()), reason=lan.why_not() or "")
def test_without_ipv6_and_with_a_home_that_is_read_only_devices_train(tmp_path):
    code = new_join_code("home")
    peer = ("peer", "--data", SMALL, "--rounds", 2, "--json")
    with lan.Lan(2) as net:
        homes = [
            Home(tmp_path / str(host), tmp_path / str(host) / "cache", ("ip", "netns", "exec", net.names[host]))
            for host in range(2)
        ]
        # Nothing can be made below a file, not even by root.
        (tmp_path / "file").write_bytes(b"")
        closed = {name: str(tmp_path / "file") for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
        try:
            for host in range(2):
                net.sysctl(host, "net.ipv6.conf.all.disable_ipv6=1")
            refused = homes[1].run(*peer, "--name", "bob", MDL_CODE=code, **closed)
            assert (refused.code, "--out, or XDG_STATE_HOME" in refused.complaint) == (2, True), refused.told
            out = tmp_path / "out"
            running = [
                homes[0].start(*peer, "--name", "ann", "--shard", "1/2", MDL_CODE=code),
                homes[1].start(*peer, "--name", "bob", "--shard", "2/2", "--out", out, MDL_CODE=code, **closed),
            ]
            assert [command.end(120) for command in running] == [0, 0], [command.told for command in running]
            assert [command.result()["round_id"] for command in running] == [2, 2]
            assert "windows not cached" in running[1].told
            assert (out / "global.safetensors").exists()
        finally:
            for home in homes:
                home.close()
