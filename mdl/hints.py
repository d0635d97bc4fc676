"""Hints for what is wrong in a user's input: the closest name for a misspelt one, and what a field takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

# How much of two names must agree (0 to 1): "cnn" still means "cnn-lstm"; what has less in common is a guess.
_ALIKE = 0.5


def did_you_mean(given: str, valid: Iterable[str], form: str = "; did you mean {!r}?") -> str:
    """The closest of the valid names, put into `form`; empty if none is close."""
    close = difflib.get_close_matches(given, list(valid), 1, _ALIKE)
    return form.format(close[0]) if close else ""


def words_of(kind: object) -> list[str]:
    """What a field of this type can be, if that is one of some words, or none."""
    literals = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
    return [word for literal in literals for word in get_args(literal) if isinstance(word, str)]


def explain(error: msgspec.ValidationError, kind: type) -> str:
    """Where in a struct of this kind something is wrong and what; for a field of few words also which are valid."""
    reason, _, place = str(error).partition(" - at `$.")
    place = place.rstrip("`")
    found: object = kind
    for name in place.split("."):
        found = get_type_hints(found).get(name) if isinstance(found, type) else None
    words = words_of(found)
    valid = f" (valid: {', '.join(words)})" if words else ""
    return f"{place or 'configuration'}: {reason}{valid}"
