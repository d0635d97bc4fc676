"""Hints for mistakes in a user's input: the closest valid name for a misspelt one, and the valid words of a field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

# The least similarity of two names (0 to 1): "cnn" still means "cnn-lstm"; a lower one would be a guess.
_ALIKE = 0.5


def did_you_mean(given: str, valid: Iterable[str], form: str = "; did you mean {!r}?") -> str:
    """Return the closest of the valid names, put into `form`; empty if none is close."""
    close = difflib.get_close_matches(given, list(valid), 1, _ALIKE)
    return form.format(close[0]) if close else ""


def words_of(kind: object) -> list[str]:
    """Return the words that a field of this type can be; [] if it has no such words."""
    literals = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
    return [word for literal in literals for word in get_args(literal) if isinstance(word, str)]


def explain(error: msgspec.ValidationError, kind: type) -> str:
    """Return the wrong place in a struct of this kind and the reason; for a field of few words also the valid ones."""
    reason, _, place = str(error).partition(" - at `$.")
    place = place.rstrip("`")
    found: object = kind
    for name in place.split("."):
        found = get_type_hints(found).get(name) if isinstance(found, type) else None
    words = words_of(found)
    valid = f" (valid: {', '.join(words)})" if words else ""
    return f"{place or 'configuration'}: {reason}{valid}"
