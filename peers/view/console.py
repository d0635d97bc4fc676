"""A console on which strings are plain text: no markup, no emoji codes, no escape sequences from others."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.text import Text

from mdl.peers.view.plain import plain_lines

# A file or another program takes lines of any length, and nothing of a table is cut.
_PIPE_COLUMNS = 10_000


class PlainConsole(Console):
    """A plain console; see the module. Coloured output is a `Text`, or has a style.

    If the output is no terminal, nothing is cut or broken into lines, unless COLUMNS sets the width.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _PIPE_COLUMNS

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(plain_lines(text), **settings)
