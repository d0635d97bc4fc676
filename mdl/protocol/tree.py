"""The binomial tree of the broadcast (MDLdroid 3.2.3): position 0 is the root, early positions have most children."""

from __future__ import annotations


def tree_parent(position: int) -> int | None:
    """Return the position that feeds this one; None for the root. In round k 2^k positions have the values."""
    return None if position == 0 else position & ~(1 << (position.bit_length() - 1))


def tree_children(position: int, count: int) -> list[int]:
    """Return the positions that this one feeds among `count` peers, the one with the largest subtree first."""
    reach = 1 << position.bit_length()
    children = []
    while position + reach < count:
        children.append(position + reach)
        reach <<= 1
    return children
