"""Make the pictures of README.md and docs/: `make pictures`.

Five devices of this machine train `motion` together. While hops of a round are on their way, the live view of `mdl up`
becomes docs/live-view.svg, and the page docs/page.webp. docs/page-*.webp show each view of the page about the mesh of
its tests, which has a device of every kind: silent, refused, paused, revoked.

    python -m benchmarks pictures --rounds 12
    python -m benchmarks pictures --only views
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tool.hosts import load_helper
from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_rounds
from benchmarks.tool.sheet import Failed, Sheet
from mdl.config import MeshSection
from mdl.data import default_cache_dir, load_data
from mdl.peers.launch.processes import Children
from mdl.peers.view.snapshot import Told, take_snapshot
from mdl.peers.view.terminal import PlainConsole, draw_mesh
from mdl.peers.view.watch import Watcher
from mdl.peers.web.opening import PageWanted, page_of
from mdl.peers.web.sources import LiveMesh
from mdl.protocol.status_messages import MeshStatus, RoundSummary
from mdl.transport.trust.keys import Mesh, new_join_code

_DOCS = ROOT / "docs"
_NAMES = ("laptop", "pc", "phone", "pi", "tablet")
# As `make up`, of which this is a picture.
_SETTINGS = ("round.min_peers=5", "round.exchange=chain", "training.rounds_per_epoch=4", "training.planned_rounds=20")
_VIEWS = ("mesh", "round", "learning", "schedule")
_WIDTH, _HEIGHT = 108, 28
_PATIENCE_S = 240.0
_PRODUCT = load_helper("product")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def export_svg(status: MeshStatus, rounds: Sequence[RoundSummary]) -> str:
    """The live view as rich draws it, without the addresses of its fonts: a picture asks no other machine."""
    console = PlainConsole(
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        width=_WIDTH,
        legacy_windows=False,
    )
    snapshot = take_snapshot(Told("home", status=status, rounds=rounds))
    console.print(draw_mesh(snapshot, rounds, height=_HEIGHT))
    return _FONT.sub("", console.export_svg(title="mdl up", unique_id="mdl"))


def picture_mesh(browser: Any, rounds: int, folder: Path) -> None:
    """Run the five devices, and picture them in a round after so many."""
    classes = load_data("motion", default_cache_dir(), seed=0).classes
    code = new_join_code("home")
    section = MeshSection(loopback=True)
    common = ("--loopback", "--json", *(word for each in _SETTINGS for word in ("--set", each)))
    with Children(folder / "logs", code, 1) as children, Watcher(Mesh.from_code(code), section, "up") as watcher:
        for number, name in enumerate(_NAMES, 1):
            own = ("--name", name, "--shard", f"{number}/{len(_NAMES)}", "--out", str(folder / name))
            children.start(name, "peer", *common, "--data", "motion", *own)
        with page_of(LiveMesh(watcher, classes=classes), Mesh.from_code(code), PageWanted(0)) as opened:
            watcher.on_news = opened.notify
            browser.size(1280, 500)
            browser.go(opened.url)
            browser.show("mesh")
            if not _PRODUCT.until(lambda: len(watcher.rounds) >= rounds, _PATIENCE_S):
                raise Failed(f"no {rounds} rounds within {_PATIENCE_S:g} s; see {folder / 'logs'}")
            status = _wait_for_hops(watcher)
            browser.says("holds merged work")
            browser.picture(_DOCS / "page.webp", most=500)
        before = [summary for summary in watcher.rounds if summary.round < status.round_id]
        (_DOCS / "live-view.svg").write_text(export_svg(status, before))


def _wait_for_hops(watcher: Watcher) -> MeshStatus:
    """Return what the mesh says while hops of a round are on their way."""
    shown: list[MeshStatus] = []

    def is_telling() -> bool:
        status = watcher.status
        shown.extend([status] if status and status.hops else [])
        return bool(shown)

    if not _PRODUCT.until(is_telling, _PATIENCE_S):
        raise Failed(f"no hop was seen on its way within {_PATIENCE_S:g} s")
    return shown[-1]


def picture_views(browser: Any) -> None:
    """Picture each view of the page, about the mesh that its tests show."""
    server = load_helper("web_server")
    with server.served(server.Words(server.a_mesh())) as opened:
        browser.size(1280, 850)
        browser.go(opened.url)
        for view in _VIEWS:
            browser.show(view)
            if view == "schedule":
                browser.says("Each hop, and why")
            browser.picture(_DOCS / f"page-{view}.webp", most=850)
        browser.size(360, 740)
        browser.dress("dark")
        browser.show("mesh")
        browser.picture(_DOCS / "page-phone.webp", most=740)


def add_options(parser: Parser) -> None:
    add_rounds(parser, 16, "how many the picture of the live view has at least")
    parser.add_argument("--only", choices=("mesh", "views"))


def run(given: Namespace, sheet: Sheet) -> None:
    """Write all pictures into docs/. Raises Failed."""
    browser = load_helper("browser").open_browser()
    try:
        browser.dress("light")
        with tempfile.TemporaryDirectory() as name:
            for kept in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
                os.environ[kept] = name  # of this user nothing is read or changed
            if given.only != "views":
                picture_mesh(browser, given.rounds, Path(name))
            if given.only != "mesh":
                picture_views(browser)
    finally:
        browser.close()
