"""The devices that this device has seen work: their deltas are in a round that it has closed.

Local knowledge, not a statement: it decides which enrolments stay in a full roster, and which devices a changed code
keeps. Two devices may differ in it. Their rosters then differ in newcomers alone, which introduce themselves again.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mdl.trust.statements import MAX_WORKED


class Worked:
    """The devices that worked, with their names.

    pairs: of a device's key and a name that it worked under; the latest comes last.
    """

    def __init__(self, pairs: Iterable[tuple[bytes, str]] = ()) -> None:
        self._pairs: dict[tuple[bytes, str], None] = {}
        self._devices: dict[bytes, int] = {}
        self.note(pairs)

    def __contains__(self, pair: tuple[bytes, str]) -> bool:
        return pair in self._pairs

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        return iter(tuple(self._pairs))

    def __len__(self) -> int:
        return len(self._pairs)

    def has(self, device: bytes) -> bool:
        """Return True if this device worked under any name."""
        return device in self._devices

    def note(self, pairs: Iterable[tuple[bytes, str]]) -> bool:
        """Note that these worked just now; return True if one of them is new."""
        is_new = False
        for pair in pairs:
            if pair in self._pairs:
                del self._pairs[pair]
            else:
                is_new = True
                self._devices[pair[0]] = self._devices.get(pair[0], 0) + 1
            self._pairs[pair] = None
            if len(self._pairs) > MAX_WORKED:
                self._forget(next(iter(self._pairs)))
        return is_new

    def _forget(self, pair: tuple[bytes, str]) -> None:
        del self._pairs[pair]
        self._devices[pair[0]] -= 1
        if not self._devices[pair[0]]:
            del self._devices[pair[0]]
