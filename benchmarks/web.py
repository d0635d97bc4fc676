"""What the page costs: first paint, an event's way to it, and what a member that serves it takes more.

    python benchmarks/web.py
    python benchmarks/web.py --rounds 60 --pages 5

The first part opens the page in a headless Chromium, a new tab each time, and changes one word of a mesh of 30 devices:
seconds until the first paint, and until the word stands in the document. The second runs a mesh of an agent and two
peers on this machine twice for each repetition, in turns: as it is, and with the agent serving the page to so many
readers of its events (no browser: it would take processor time from the mesh). Round time is the median of all rounds
but the first five, memory the agent's at the end (PSS).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.integration.browser import open_browser
from tests.integration.web_server import Words, a_mesh, served

_PATIENCE_S = 120.0
_FIRST = 5
_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_DATA = "motion?people=6&test_people=2&windows=400"


def measure_page(repeats: int) -> dict[str, float]:
    words, browser = Words(a_mesh(30)), open_browser()
    paints, ways = [], []
    try:
        with served(words) as opened:
            for number in range(repeats):
                browser.go("about:blank")
                browser.go(opened.url)
                browser.show("mesh")
                browser.until(lambda: browser.run(_PAINT))
                paints.append(browser.run(_PAINT) / 1e3)
                ways.append(_way(browser, words, f"word {number}"))
    finally:
        browser.close()
    return {
        "first_paint_s": round(statistics.median(paints), 3),
        "first_paint_worst_s": round(max(paints), 3),
        "event_s": round(statistics.median(ways), 3),
        "event_worst_s": round(max(ways), 3),
    }


def _way(browser, words, text: str) -> float:  # type: ignore[no-untyped-def]
    """From the source's word to the document, by the wall clock of this machine, which the browser shares."""
    watch = """window.seen = new Promise((done) => {
        const look = new MutationObserver(() => {
            if (!document.querySelector("#mesh").innerText.includes(arguments[0])) return;
            look.disconnect();
            done(Date.now());
        });
        look.observe(document.querySelector("#mesh"), { subtree: true, childList: true, characterData: true });
    })"""
    browser.run(watch, text)
    said = time.time()
    words.say(problem=text)
    seen = browser.driver.execute_async_script("window.seen.then(arguments[0])")
    return float(seen) / 1e3 - said


def run_mesh(rounds: int, pages: int, folder: Path) -> tuple[float, float]:
    """Median seconds of a round, and the agent's MB at its end. pages: readers of its page; -1: it serves none."""
    folder.mkdir(parents=True)
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    mdl = [sys.executable, "-m", "peers"]
    subprocess.run([*mdl, "mesh", "new", "home"], cwd=folder, env=environment, check=True, capture_output=True)
    common = ["--mesh", "home", "--loopback"]
    web = [] if pages < 0 else ["--web", "8420"]
    out = folder / "agent"
    log = (folder / "agent.log").open("wb")
    children = [
        subprocess.Popen(
            [*mdl, "agent", *common, "--min-peers", "2", "--rounds", str(rounds), "--out", str(out), *web],
            cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=log,
        )
    ]  # fmt: skip
    for number in (1, 2):
        words = ["peer", *common, "--name", f"p{number}", "--shard", f"{number}/2", "--data", _DATA]
        children.append(
            subprocess.Popen(
                [*mdl, *words], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
    readers, memory = [], 0.0
    try:
        if pages >= 0:
            address = _wait_for_page(folder / "agent.log")
            readers = [threading.Thread(target=_read, args=(address,), daemon=True) for _ in range(pages)]
            for reader in readers:
                reader.start()
        give_up_at = time.monotonic() + _PATIENCE_S
        agent = psutil.Process(children[0].pid)
        while children[0].poll() is None and time.monotonic() < give_up_at:
            try:
                memory = agent.memory_full_info().pss / 1e6
            except psutil.Error:
                break
            threading.Event().wait(0.5)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(_PATIENCE_S)
        log.close()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["seconds"]["total"] for line in lines[_FIRST:]), memory


def _wait_for_page(log: Path) -> str:
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        if found := re.search(r"the page: (\S+)/\?", log.read_text()):
            return found[1]
        threading.Event().wait(0.1)
    raise SystemExit(f"no page: {log.read_text()}")


def _read(address: str) -> None:
    try:
        with urllib.request.urlopen(f"{address}/api/v1/events") as events:
            while events.readline():
                pass
    except OSError:
        return  # the mesh is over


def measure_member(rounds: int, pages: int, repeats: int) -> dict[str, float]:
    alone, beside = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats):
            alone.append(run_mesh(rounds, -1, Path(folder) / f"{number}-alone"))
            beside.append(run_mesh(rounds, pages, Path(folder) / f"{number}-page"))
    quick, slow = (statistics.median(each[0] for each in runs) for runs in (alone, beside))
    small, large = (statistics.median(each[1] for each in runs) for runs in (alone, beside))
    return {
        "round_s": round(quick, 4),
        "round_with_pages_s": round(slow, 4),
        "slower_percent": round(100 * (slow / quick - 1), 1),
        "agent_mb": round(small, 1),
        "agent_with_page_mb": round(large, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("page", "member"), default=None)
    given = parser.parse_args()
    found: dict[str, float] = {}
    if given.only != "member":
        found |= measure_page(3 * given.repeats)
    if given.only != "page":
        found |= measure_member(given.rounds, given.pages, given.repeats)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
