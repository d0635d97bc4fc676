"""The page of a running mesh of real processes, whose agent is killed; and of a story of 30 simulated devices."""

import re

import pytest

from mdl.peers.roles.agent.mesh_status import mesh_status
from mdl.peers.trials.run_plan import build_mesh
from mdl.peers.view.snapshot import Told
from mdl.peers.web.sources import POLICIES
from mdl.sim.plans.fault_plan import FaultPlan
from tests.integration import product
from tests.integration.product import read_lines, until
from tests.integration.web_server import Words, served

for needed in ("starlette", "uvicorn", "segno", "prometheus_client"):
    pytest.importorskip(needed, reason="the page's extra is not installed: pip install 'mdl[web]'")

VIEWS = ("mesh", "round", "learning", "schedule", "cloud", "join")
DATA = "motion?people=6&test_people=2&windows=40"


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


@pytest.fixture
def other(tmp_path, tmp_path_factory):
    """Another user's device."""
    home = product.Home(tmp_path / "other", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


def page_of(command):
    """The address that a command has printed; "" as long as it has not."""
    found = re.search(r"the page: (\S+)", command.told)
    return found[1] if found else ""


def number_in(text):
    found = re.search(r"round\n([\d,]+)", text)
    return int(found[1].replace(",", "")) if found else 0


@pytest.mark.slow
def test_a_running_mesh_of_five_processes_whose_agent_is_killed(home, other, browser, tmp_path):
    code = home.run("mesh", "new", "home", "--json").result()["code"]
    common = ("--mesh", "home", "--loopback")
    # Hops are shown, also once a peer leads: by default a round goes in segments where this machine is slow.
    hops = ("--exchange", "chain")
    agent = home.start("agent", *common, *hops, "--min-peers", 4, "--web", 8420, "--out", tmp_path / "agent")
    peers = [
        home.start("peer", *common, *hops, "--name", f"p{number}", "--shard", f"{number}/4", "--data", DATA,
                   *(["--web", 8420] if number == 1 else []))
        for number in (1, 2, 3)
    ]  # fmt: skip
    other.start("peer", "--code", code, "--loopback", "--name", "p4", "--shard", "4/4", "--data", DATA)
    assert until(lambda: page_of(agent) and page_of(peers[0])), (agent.told, peers[0].told)
    assert page_of(agent).partition("?")[0] != page_of(peers[0]).partition("?")[0], "the usual port was taken"
    browser.size(1440, 900)
    browser.go(page_of(agent))
    for view in VIEWS:
        browser.show(view)
        assert browser.until(lambda view=view: browser.run("return document.documentElement.dataset.ready") == view)
    browser.show("mesh")
    for name in ("p1", "p2", "p3", "p4"):
        assert browser.says(name, ".devices")
    # A round can be played under other circumstances once the links of all are known.
    assert browser.until(lambda: browser.text(".devices").count("B/s") >= 4)
    reached = number_in(browser.text(".stats"))
    assert browser.until(lambda: number_in(browser.text(".stats")) >= reached + 2)
    assert browser.faults() == []
    browser.show("learning")
    assert browser.says("0", ".confusion tbody th"), "an agent has no data, and no names for its classes"
    browser.show("schedule")
    assert browser.says("Each hop, and why")
    browser.run("""const knob = document.querySelector("input[aria-label='link of p2']");
        knob.value = -1.5; knob.dispatchEvent(new Event('input'));""")
    assert browser.says("instead of", ".result"), "a real round, rebuilt and played with a slow link"
    assert browser.faults() == []
    assert browser.complaints() == []
    browser.show("mesh")
    revoked = home.run("mesh", "revoke", "home", "p4", "--reason", "sold", "--yes", "--loopback", "--json")
    assert revoked.code == 0, revoked.told
    assert browser.says("revoked: sold", ".devices")
    assert browser.says("3 / 3", ".stats"), "the others go on without it, and nobody looks for it"
    # It has heard of the other page, and was loaded anew: it may ask that one from now on.
    assert browser.until(lambda: browser.run("return document.documentElement.dataset.pages") == "1")

    agent.process.kill()
    assert browser.says("following", "#feed")
    reached = number_in(browser.text(".stats"))
    assert browser.until(lambda: number_in(browser.text(".stats")) > reached), "a peer leads on, and the page shows it"
    for view in VIEWS:
        browser.show(view)
    browser.show("round")
    assert browser.says("Each hop, and why")
    browser.show("learning")
    assert browser.says("walking", ".confusion"), "the other member has data"
    watch, stream = (home.start("status", *common, "--watch", *more) for more in ((), ("--json",)))
    told = home.run("status", *common, "--json").result()
    assert told["mesh"]["devices"]["p4"]["state"] == "revoked"
    assert told["mesh"]["devices"]["p1"]["energy_from"]
    assert told["mesh"]["devices"]["p1"]["energy_j"] >= told["mesh"]["devices"]["p1"]["round_energy_j"] > 0.0
    assert sum(map(sum, told["learning"]["confusion"])) > 0
    assert until(lambda: len(re.findall(r"^home, round \d+, led by p\d: ", watch.said, re.MULTILINE)) > 2), watch.told
    assert until(lambda: len(read_lines(stream.output)) > 2), stream.told
    assert {line["mesh"]["name"] for line in read_lines(stream.output)} == {"home"}
    for each in (watch, stream):
        each.interrupt()
        assert each.code == 130

    web = home.start("web", tmp_path / "agent", "--port", 0)
    assert until(lambda: web.said.startswith("http://127.0.0.1:")), web.told
    browser.complaints()
    browser.go(web.said.strip())
    for view in VIEWS:
        browser.show(view)
    browser.show("schedule")
    assert browser.says("Each hop, and why"), "what the killed agent has left"
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_story_of_thirty_simulated_devices(browser):
    """The agent's words at some moments of it, as an observer would have heard them."""
    plan = FaultPlan(seed=7, peers=30, rounds=3)
    mesh, _ = build_mesh(plan)
    told = Told("story", "simulator", policies=POLICIES)
    words, seen = Words(told), {}
    try:
        with served(words) as opened:
            browser.size(1440, 900)
            browser.go(opened.url)
            for moment in range(1, 25):
                mesh.run(moment * 0.25)
                for node in list(mesh.nodes.values()):
                    agent = getattr(node.machine, "agent", None)
                    if agent is None:
                        continue
                    status = mesh_status(agent, "fifo", 3, agent._records.finished, max(seen, default=0), mesh.now)
                    seen |= {summary.round: summary for summary in status.finished}
                    words.say(status=status, rounds=tuple(seen.values()))
            browser.show("mesh")
            assert browser.until(lambda: browser.run("return document.querySelectorAll('.card').length") >= 30)
            for view in VIEWS:
                browser.show(view)
                assert browser.faults() == [], view
            assert len(seen) >= 2
            browser.show("schedule")
            assert browser.says("Each hop, and why")
            assert browser.run("return document.querySelectorAll('.gantt .row').length") >= 30
            assert browser.complaints() == []
    finally:
        mesh.end()
