"""Real processes killed in the middle of a round in segments: the sums are exact, and the round ends."""

import pytest

from tests.integration import lan
from tests.integration.test_faults import MBIT, SLOW_VALUES, Mesh, needs_lan, speed_up

# To each device the other processes of this machine are somebody's work: that must make nobody a leaf.
EXCHANGE = {"round__min_peers": 3, "round__exchange": "shares", "busy__cpu_percent": 100}


@pytest.fixture
def slow_net():
    with lan.Lan(4, mbit=MBIT) as net:
        yield net


@pytest.mark.alone
@needs_lan
@pytest.mark.parametrize("victim", ["an owner", "the agent", "a device that leads", "an owner, and all train ahead"])
def test_whoever_is_killed_in_the_middle_of_an_exchange_the_round_ends_and_counts_each_once(tmp_path, slow_net, victim):
    """Each device owns a share; of 8 MB a quarter has come when one dies."""
    overlap = "true" if victim.endswith("ahead") else "false"
    with Mesh(tmp_path, slow_net, SLOW_VALUES, training__overlap=overlap, **EXCHANGE) as mesh:
        mesh.start(*(["agent"] if victim != "a device that leads" else []), "p1", "p2", "p3")
        _, owner, line = mesh.wait_for(lambda name, line: "exchanges" in line and not line["whole"])
        killed = owner if victim.startswith("an owner") else mesh.nodes[mesh.leader()[0]]
        killed.kill()
        speed_up(slow_net)
        closed = mesh.closes(line["exchanges"])
        assert [name for name, _ in closed["contributors"]] == sorted({"p1", "p2", "p3"} - {killed.name})
        assert list(closed["partly"]) == ([] if victim == "the agent" else [killed.name])  # what it gave counts
        here = mesh.here()
        mesh.start(killed.name)
        later = line["exchanges"] + 1
        mesh.wait_for(lambda _, told: told.get("global", 0) >= later and len(told["contributors"]) == 3, here)
        mesh.check()


@pytest.mark.alone
@needs_lan
def test_a_leaf_that_is_killed_in_the_middle_counts_with_what_it_gave_and_nobody_waits_for_it(tmp_path, slow_net):
    """Somebody uses p3, so that it owns no segment: it gives its 8 MB and gets them."""
    used = tmp_path / "used"
    used.touch()
    with Mesh(tmp_path, slow_net, SLOW_VALUES, **EXCHANGE) as mesh:
        mesh.start("agent", "p1", "p2")
        mesh.options.append(f"device.in_use_file={used}")
        mesh.start("p3")
        _, _, line = mesh.wait_for(lambda _, told: told.get("owns", {}).get("p3") == 0 and not told["whole"])
        mesh.nodes["p3"].kill()
        speed_up(slow_net)
        closed = mesh.closes(line["exchanges"])
        assert [name for name, _ in closed["contributors"]] == ["p1", "p2"]
        assert list(closed["partly"]) == ["p3"]
        here, later = mesh.here(), line["exchanges"] + 1
        mesh.start("p3")
        mesh.wait_for(lambda _, told: told.get("global", 0) >= later and len(told["contributors"]) == 3, here)
        mesh.check()
