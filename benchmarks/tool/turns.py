"""Turn-taking: what is compared is measured one after the other, again and again, so that other work hits all alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_turns(runs: int, things: Iterable[T]) -> Iterator[tuple[int, T]]:
    """Yield each thing once in each of so many runs, with the number of the run."""
    kept = list(things)
    for run in range(runs):
        for thing in kept:
            yield run, thing
