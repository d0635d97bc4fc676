"""The one hint for a misspelt name. Knows names alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# How much of two names must agree (0 to 1): "cnn" still means "cnn-lstm"; what has less in common is a guess.
_ALIKE = 0.5


def did_you_mean(given: str, valid: Iterable[str], form: str = "; did you mean {!r}?") -> str:
    """The closest of the valid names, put into `form`; empty if none is close."""
    close = difflib.get_close_matches(given, list(valid), 1, _ALIKE)
    return form.format(close[0]) if close else ""
