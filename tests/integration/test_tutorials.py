"""The tutorials do what they say: their programs and commands are run as they stand on the page."""

import re
import shlex
from pathlib import Path

import pytest

from tests.integration import lan, product
from tests.integration.browser import open_browser
from tests.integration.product import until

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = re.compile(r"^(?:    |```sh\n)((?:mdl|python) .*)$", re.MULTILINE)
PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)


LAN = lan.why_not()
# A host's own name, as each laptop has one; the namespace of its network alone does not give it.
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
PLAYED = "Play with these|segments"
ROUND = re.compile(r"^.*round (\d+)\b.*accuracy", re.MULTILINE)


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    yield home
    home.close()


def take(home, name):
    """Write the page's programs into the folder; returns its commands in their order."""
    page = (DOCS / f"tutorial-{name}.md").read_text()
    for file, text in PROGRAM.findall(page):
        (home.folder / file).write_text(text)
    return [shlex.split(line) for line in COMMAND.findall(page)]


def start(home, words):
    return home.start(*words[1:]) if words[0] == "mdl" else home.start_python(*words[1:], fresh=True)


def run(home, words):
    """One command to its end; all that it says."""
    command = start(home, words)
    assert command.end(4 * product.PATIENCE_S) == 0, command.told[-2000:]
    return command.said + command.told


@pytest.mark.slow
def test_a_csv_file_is_inspected_trained_on_tested_and_used(home):
    said = [run(home, words) for words in take(home, "csv")]
    assert len(said) == 5
    recorded, inspected, trained, tested, predicted = said
    assert recorded == ""
    assert "read 30,000 rows, left out none" in inspected
    assert "6 rounds in" in trained
    accuracy = float(re.search(r"accuracy ([\d.]+)%", tested).group(1))
    assert accuracy > 80
    assert len(re.findall(r"^new\.csv .*%$", predicted, re.MULTILINE)) > 20


@pytest.mark.slow
def test_a_loop_of_ones_own_ends_with_one_model_on_both_devices(home):
    made, *loops = take(home, "own-loop")
    run(home, made)
    assert [words[:2] for words in loops] == [["python", "loop.py"]] * 2
    started = [start(home, words) for words in loops]
    assert [each.end(2 * product.PATIENCE_S) for each in started] == [0, 0], [each.told[-2000:] for each in started]
    assert all("after round 5" in each.said for each in started)
    models = [Path(each.said.split("the model is in ")[1].strip()).read_bytes()[-88:] for each in started]
    assert models[0] == models[1]  # the last bytes of the file are the parameters


@pytest.mark.slow
def test_a_scheduler_is_trained_shown_compared_and_followed_by_a_mesh(home):
    pytest.importorskip("stable_baselines3")
    trained, shown, compared, followed, drawn = (run(home, words) for words in take(home, "scheduler"))
    assert "mean_return" in trained
    assert "three.safetensors: it sees" in shown
    assert re.search(r"^tree +\d", compared, re.MULTILINE)
    assert "1 rounds in" in followed
    assert "policy three.safetensors" in drawn


@pytest.mark.alone
@pytest.mark.skipif(LAN is not None, reason=LAN or "")
def test_two_laptops_of_a_lan_train_together_and_go_on_when_one_is_closed(tmp_path):
    with lan.Lan(2) as net:
        ann, bob = homes = [
            product.Home(tmp_path / name, tmp_path / "cache", ("ip", "netns", "exec", net.names[host], *NAMED, name))
            for host, name in enumerate(("ann", "bob"))
        ]
        try:
            made, invited, joined, first, second, looked, doctored = take(ann, "two-laptops")
            run(ann, made)
            inviting = start(ann, invited)
            assert until(lambda: "--at" in inviting.told), inviting.told
            run(bob, [*joined, *inviting.said.split()])  # a person types the words when it asks
            assert inviting.end() == 0
            peers = [start(ann, first), start(bob, second)]
            assert until(lambda: all(len(ROUND.findall(each.told)) > 3 for each in peers), 120), peers[0].told
            status = run(ann, looked)
            assert re.search(r"^ann .*", status, re.MULTILINE)
            assert re.search(r"^bob .*", status, re.MULTILINE)
            peers[1].interrupt()
            assert "model" in peers[1].told + peers[1].said
            assert until(lambda: re.search(r"(?:without|lost|left).*bob|bob.*(?:left|lost|gone)", peers[0].told)), peers
            back = start(bob, second)
            assert until(lambda: len(ROUND.findall(back.told)) > 1, 120), back.told
            run(ann, doctored)
            for each in (peers[0], back):
                each.interrupt()
                assert each.code == 130
                assert "model" in each.told + each.said
        finally:
            for home in homes:
                home.close()


@pytest.mark.slow
def test_a_round_is_read_on_the_page_and_played_again(home):
    for needed in ("starlette", "uvicorn", "segno", "prometheus_client"):
        pytest.importorskip(needed, reason="the page's extra is not installed: pip install 'mdl[web]'")
    browser = open_browser()
    try:
        up, tried, kept = take(home, "round")
        mesh = start(home, up)
        address = re.compile(r"http://127\.0\.0\.1:\S+")
        assert until(lambda: address.search(mesh.told + mesh.said), 120), mesh.told
        browser.go(address.search(mesh.told + mesh.said)[0])
        assert browser.says("peer-2", ".devices")
        for key, view in (("2", "round"), ("3", "learning"), ("4", "schedule")):
            browser.run("dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0] }))", key)
            assert browser.until(
                lambda view=view: browser.run("return document.documentElement.dataset.ready") == view
            ), view
        # On a slow machine a round goes in segments, which no policy orders.
        assert browser.until(lambda: {"Play with these", "segments"} & set(re.findall(PLAYED, browser.text())))
        assert mesh.end(4 * product.PATIENCE_S) == 0, mesh.told[-2000:]
        assert "peer-2" in run(home, tried)
        page = start(home, kept)
        assert until(lambda: address.search(page.told + page.said)), page.told
        browser.go(address.search(page.told + page.said)[0])
        browser.show("learning")
        assert browser.until(lambda: re.search(r"[1-9]\d*(\.\d)? ?%", browser.text()))
        page.interrupt()
    finally:
        browser.close()
