"""Whose a name is at a cloud, which keeps no roster: each belongs to the device that had it first, told by its own key.

Whoever knows the door's key has the join code, and may come; what it says counts as the word of its own names alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from mdl.errors import RemoteProtocolError

# Some 300 bytes of memory each: whoever has the code, and as many keys as it likes, takes no more.
MOST_NAMES = 1 << 20
# Users of one machine, or peers of `mdl up`; a device of a roster has 64, and here it has a user's name besides.
MOST_OF_ONE = 128


class NameTakenError(RemoteProtocolError):
    """name: whose device is another one, which showed another key."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another device had the name {name} first")
        self.name = name


class Names:
    """known: name -> key, from earlier. keep: called with each new one, before anything is heard under it."""

    def __init__(self, known: Mapping[str, bytes] | None = None, keep: Callable[[str, bytes], None] | None = None):
        self._owners = dict(known or {})
        self._counts = Counter(self._owners.values())
        self._keep = keep

    def check(self, names: Iterable[str], key: bytes) -> None:
        """A device that shows this key speaks under these names.

        Raises NameTakenError if one is another device's, RemoteProtocolError if there are too many.
        """
        new = [name for name in dict.fromkeys(names) if self._owners.get(name) != key]
        if taken := [name for name in new if name in self._owners]:
            raise NameTakenError(taken[0])
        if not new:
            return
        if self._counts[key] + len(new) > MOST_OF_ONE:
            raise RemoteProtocolError(f"{new[0]}: its device has {self._counts[key]} names already")
        if len(self._owners) + len(new) > MOST_NAMES:
            raise RemoteProtocolError(f"{new[0]}: this cloud knows {len(self._owners)} names, as many as it keeps")
        for name in new:
            if self._keep is not None:
                self._keep(name, key)
            self._owners[name] = key
            self._counts[key] += 1
