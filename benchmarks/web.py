"""What the page costs: first paint, an event's way to it, and what a member that serves it takes more.

    python -m benchmarks web
    python -m benchmarks web --only member --seconds 600 --pages 5

The first part opens the page in a headless Chromium, a new tab each time, and changes one word of a mesh of 30 devices:
seconds until the first paint, and until the word stands in the document; the words come from a process of their own.
Then it looks at the page of one device of a real mesh: seconds from a round's beginning on another device to the page.

The second runs one mesh of an agent and two peers, of which one serves the page, and opens and closes so many readers
of its events in turns (no browser: it would take processor time from the mesh), in pairs of blocks whose order
alternates: what else the machine does hits both alike. Of each block the median round is taken, without the first two
rounds, which began before it. The difference is the median over the pairs, with its 95 % interval (bootstrap); likewise
the processor time of all the member's threads but the busiest, which trains.

Memory is the member's PSS with the page and its readers and without `--web`, of meshes in turns.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_runs
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show
from tests.integration.browser import open_browser
from tests.integration.speaking_page import Speaking

_PATIENCE_S = 120.0
# Rounds of a block that do not count: the one that is under way, and the one whose line is to come.
_BETWEEN = 2
_WARM = 5
_DRAWS = 4000
_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
# When the page showed each round first.
_NOTE_ROUNDS = """window.rounds = {};
    new MutationObserver(() => {
        const round = document.querySelector(".stats").innerText.match(/round\\s+([\\d,.]+)/);
        if (round) window.rounds[round[1].replace(/\\D/g, "")] ??= Date.now();
    }).observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true })"""
_DATA = "motion?people=6&test_people=2&windows=400"


def measure_page(repeats: int) -> dict[str, float]:
    browser, paints, ways = open_browser(), [], []
    try:
        with Speaking() as speaking:
            for number in range(repeats):
                browser.go("about:blank")
                browser.go(speaking.url)
                browser.show("mesh")
                browser.until(lambda: browser.run(_PAINT))
                paints.append(browser.run(_PAINT) / 1e3)
                ways.append(speaking.say_and_see(f"word {number}", browser))
    finally:
        browser.close()
    return {
        "first_paint_s": median(paints),
        "first_paint_worst_s": round(max(paints), 3),
        "event_s": median(ways),
        "event_worst_s": round(max(ways), 3),
    }


def measure_mesh_events(folder: Path, count: int) -> dict[str, float]:
    """From a round's opening, as the log of the device that serves no page has it, to the other one's page."""
    browser = open_browser()
    try:
        with Mesh(folder, serves=True) as mesh:
            host, port = mesh.address()
            mesh.go_on_to(_WARM)
            browser.go(f"http://{host}:{port}/")
            browser.show("mesh")
            browser.run(_NOTE_ROUNDS)
            mesh.go_on_to(_WARM + count)
            seen = browser.run("return window.rounds")
            ways = [seen[number] / 1e3 - at for number, at in mesh.opened_rounds().items() if number in seen]
    finally:
        browser.close()
    ways = sorted(ways[1:])  # the first was there before anybody looked
    return {
        "rounds_seen": len(ways),
        "mesh_event_s": median(ways),
        "mesh_event_95_percent_s": round(ways[len(ways) * 95 // 100], 3),
        "mesh_event_worst_s": round(ways[-1], 3),
    }


class Mesh:
    """An agent and two peers of this machine; the first serves the page if `serves`. Use as a context manager."""

    def __init__(self, folder: Path, serves: bool) -> None:
        self._folder, self._serves = folder, serves
        self._children: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    def __enter__(self) -> Mesh:
        own = {
            "HOME": str(self._folder),
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        mdl = [sys.executable, "-m", "mdl"]
        given = {"cwd": self._folder, "env": own}
        subprocess.run([*mdl, "mesh", "new", "home"], check=True, capture_output=True, **given)  # type: ignore[call-overload]
        common = ["--mesh", "home", "--loopback"]
        words = [["agent", *common, "--min-peers", "2", "--out", str(self._folder / "agent")]]
        for number in (1, 2):
            web = ["--web", "8420"] if self._serves and number == 1 else []
            words.append(["peer", *common, "--name", f"p{number}", "--shard", f"{number}/2", "--data", _DATA, *web])
        for at, each in enumerate(words):
            with (self._folder / f"{at}.log").open("wb") as log:
                child = subprocess.Popen([*mdl, *each], stdout=subprocess.DEVNULL, stderr=log, **given)  # type: ignore[call-overload]
                self._children.append(child)
        self.member = psutil.Process(self._children[1].pid)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait(_PATIENCE_S)

    def address(self) -> tuple[str, int]:
        """Of the page."""
        log = self._folder / "1.log"
        found = _until(lambda: re.search(r"the page: (http\S+)", log.read_text()), log)
        parts = urlsplit(found[1])
        return str(parts.hostname), int(parts.port or 0)

    def opened_rounds(self) -> dict[str, float]:
        """When the second device has begun to train for each, by the wall clock."""
        lines = re.findall(
            r"^(\S+ \S+) (?:.* )?round (\d+): training with", (self._folder / "2.log").read_text(), re.MULTILINE
        )
        return {number: datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp() for at, number in lines}

    def rounds(self) -> list[float]:
        """Seconds of each so far."""
        path = self._folder / "agent" / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line)["seconds"]["total"] for line in path.read_text().split("\n")[:-1]]

    def go_on_to(self, count: int) -> list[float]:
        _until(lambda: len(self.rounds()) >= count, self._folder / "0.log")
        return self.rounds()


@contextlib.contextmanager
def readers(address: tuple[str, int], count: int) -> Iterator[None]:
    """So many connections that take all events and look at none."""
    over, reader = threading.Event(), selectors.DefaultSelector()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address, _PATIENCE_S))
            host = f"{address[0]}:{address[1]}"
            connection.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            reader.register(connection, selectors.EVENT_READ)

        def take() -> None:
            while not over.is_set():
                for key, _ in reader.select(0.2):
                    if not key.fileobj.recv(1 << 18):  # type: ignore[union-attr]
                        raise Failed("a reader was sent away")

        thread = threading.Thread(target=take)
        thread.start()
        yield
        over.set()
        thread.join()


def measure_rounds(folder: Path, longest_s: float, length: int, pages: int) -> dict[str, object]:
    """Pairs of blocks without and with readers; what these make slower, in percent."""
    slower: list[float] = []
    busier: list[float] = []
    with Mesh(folder, serves=True) as mesh:
        address, done = mesh.address(), _WARM
        mesh.go_on_to(done)
        over_at = time.monotonic() + longest_s
        while time.monotonic() < over_at:
            found: dict[bool, tuple[float, float]] = {}
            for is_read in (False, True) if len(slower) % 2 else (True, False):
                with readers(address, pages) if is_read else contextlib.nullcontext():
                    mesh.go_on_to(done + _BETWEEN)
                    before, started = _busy_s(mesh.member), time.monotonic()
                    seconds = mesh.go_on_to(done + _BETWEEN + length)
                    share = (_busy_s(mesh.member) - before) / (time.monotonic() - started)
                found[is_read] = statistics.median(seconds[done + _BETWEEN :]), share
                done = len(seconds)
            slower.append(100 * (found[True][0] / found[False][0] - 1))
            busier.append(100 * (found[True][1] - found[False][1]))
    return {
        "pairs": len(slower),
        "rounds_a_block": length,
        "slower_percent": _median_with_interval(slower),
        "more_of_a_core_percent": _median_with_interval(busier),
    }


def measure_memory(folder: Path, repeats: int, pages: int) -> dict[str, object]:
    """MB of the member that its page and readers take more, each time of two meshes one after the other."""
    more = []
    for number in range(repeats):
        found = []
        for serves in (False, True):
            with Mesh(folder / f"{number}-{serves}", serves) as mesh, contextlib.ExitStack() as stack:
                if serves:
                    stack.enter_context(readers(mesh.address(), pages))
                mesh.go_on_to(10 * _WARM)
                found.append(mesh.member.memory_full_info().pss / 1e6)
        more.append(found[1] - found[0])
    return {"more_mb": [round(each, 1) for each in more]}


def _until(claim, log: Path):  # type: ignore[no-untyped-def]
    give_up_at, pause = time.monotonic() + _PATIENCE_S, threading.Event()
    while not (found := claim()):
        if time.monotonic() > give_up_at:
            raise Failed(f"nothing happens: {log.read_text()}")
        pause.wait(0.05)
    return found


def _busy_s(process: psutil.Process) -> float:
    """Of all threads but the busiest."""
    threads = [each.user_time + each.system_time for each in process.threads()]
    return float(sum(threads) - max(threads))


def _median_with_interval(values: Sequence[float]) -> list[float]:
    """[median, lower, upper] with a bootstrap of whole pairs."""
    generator = random.Random(0)
    drawn = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(_DRAWS))
    return [round(each, 2) for each in (statistics.median(values), drawn[_DRAWS // 40], drawn[-_DRAWS // 40])]


def add_options(parser: Parser) -> None:
    parser.add_argument("--seconds", type=float, default=300.0, help="of pairs of blocks of rounds")
    parser.add_argument("--length", type=int, default=5, help="rounds of a block that count")
    parser.add_argument("--pages", type=int, default=5)
    add_runs(parser, 3, "of memory; three times as many paints")
    parser.add_argument("--only", choices=("page", "events", "member", "memory"), default=None)


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure all parts, or one. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        if given.only in (None, "page"):
            sheet.tell(measure_page(3 * given.runs))
        if given.only in (None, "events"):
            sheet.tell(measure_mesh_events(Path(folder) / "events", 20 * given.runs))
        if given.only in (None, "member"):
            sheet.tell(measure_rounds(Path(folder) / "rounds", given.seconds, given.length, given.pages))
        if given.only in (None, "memory"):
            sheet.tell(measure_memory(Path(folder) / "memory", given.runs, given.pages))
    show(("", ""), sheet.figures.items())
