"""Sphinx: the site of `make docs`. The reference pages are written from the code, each time, by `reference.py`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402 (beside this file)

project, author, release = "mdl", "the authors of mdl", importlib.metadata.version("mdl")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"mdl {release}"
html_show_copyright = False
# Headings down to this depth can be linked to, by the names that code forges give them.
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# The states in protocol-agent.md and protocol-hops.md are drawn by code forges; here they are text.
suppress_warnings = ["misc.highlighting_failure"]

reference.write(HERE / "reference")
