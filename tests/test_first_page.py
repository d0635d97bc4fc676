"""README.md is short and whole: its words, its links, its pictures. `tests/integration/test_first_page.py` runs it."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.pictures import export_svg
from tests.integration.web_server import a_mesh

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "README.md").read_text()
MOST_WORDS = 700
LARGEST_SVG_BYTES, LARGEST_PICTURE_BYTES = 60_000, 100_000
PICTURES = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)


def test_the_first_page_has_at_most_700_words() -> None:
    assert len(PAGE.split()) <= MOST_WORDS


def test_every_link_of_the_first_page_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_first_page_leaves_no_blank_to_fill_in() -> None:
    commands = re.findall(r"^    .*$", PAGE, re.MULTILINE) + re.findall(r"`([^`]+)`", PAGE)
    assert [line for line in commands if re.search(r"\b(?:[A-Z]{4,}|x{3,})\b|\.\.\.", line)] == []


def test_the_pictures_of_the_first_page_are_small_and_ask_no_other_machine() -> None:
    assert PICTURES == ["docs/live-view.svg", "docs/page.webp"]
    drawn = (ROOT / PICTURES[0]).read_text()
    assert len(drawn.encode()) < LARGEST_SVG_BYTES
    assert "@font-face" not in drawn
    assert set(re.findall(r"https?://[^\s\"')]+", drawn)) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
    assert (ROOT / PICTURES[1]).stat().st_size < LARGEST_PICTURE_BYTES


def test_the_live_view_becomes_a_picture() -> None:
    told = a_mesh(5)
    drawn = export_svg(told.status, told.rounds)
    assert "@font-face" not in drawn
    assert len(drawn.encode()) < LARGEST_SVG_BYTES
    for words in ("device-01", "silent", "accuracy"):
        assert words in drawn
