"""The site of `make docs` is built without a warning, and its reference is the code's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mdl import config
from mdl.peers.cli.main import whole

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.mark.slow
def test_every_command_is_on_the_page_of_commands(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text()
    for name, command in whole().commands.items():
        assert command.hidden or f"mdl {name}<" in page, name


@pytest.mark.slow
def test_every_key_is_on_the_page_of_the_configuration(site: Path) -> None:
    page = (site / "reference" / "configuration.html").read_text()
    for section in msgspec.structs.fields(config.Config):
        for field in msgspec.structs.fields(section.type) if hasattr(section.type, "__struct_fields__") else ():
            assert field.name in page, (section.name, field.name)


@pytest.mark.slow
def test_the_search_works_without_a_network(site: Path) -> None:
    assert "ballot" in (site / "searchindex.js").read_text()
    assert "https://cdn" not in (site / "search.html").read_text()


GENERATED = {f"{name}.md" for name in ("choices", "commands", "configuration", "messages", "metrics", "snapshot")}
PAGES = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if not (path.parent.name == "reference" and path.name in GENERATED)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_is_short(page: Path) -> None:
    """Commands, which are indented, are not counted."""
    most = 600 if page.name.startswith("tutorial-") else 1200
    text = [line for line in page.read_text().splitlines() if not line.startswith("    ")]
    assert len(" ".join(text).split()) <= most
