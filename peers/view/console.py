"""A console on which strings are text and nothing else: no markup, no emoji codes, no escape sequences of others."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from peers.view.plain import plain_lines


class PlainConsole(Console):
    """See the module. What is to have colour is a `Text`, or has a style."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(plain_lines(text), **settings)
