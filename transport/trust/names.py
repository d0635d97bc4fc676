"""The owners of names at a cloud, which keeps no roster: each name belongs to the device that had it first, by its key.

Every device that knows the door's key has the join code, and may connect; its messages count for its own names alone.
Keys cost nothing, so room goes by rank. Each address may bring so many new names a second. In a full table the oldest
names that never gave the cloud anything make place. Pure: `now` is an argument.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from mdl.errors import RemoteProtocolError
from mdl.transport.limits import TokenBucket

# Some 300 bytes of memory each: a holder of the code takes no more, with as many keys as it likes.
MOST_NAMES = 1 << 20
# Names of one device: users of one machine, or peers of `mdl up`. A roster allows it 64 names; here each peer has a
# user's name besides.
MOST_OF_ONE = 128
# New names of one address at once and a second: a laboratory behind one router that starts all its devices.
NEW_AT_ONCE, NEW_A_SECOND = 1024, 1.0
_ADDRESSES = 4096
# A full table drops this share of its newcomers at a time, since its file is written anew.
_SHARE_THAT_GOES = 8


class NameTakenError(RemoteProtocolError):
    """A name belongs to another device, which showed another key."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another device had the name {name} first")
        self.name = name


class Names:
    """The names and their keys.

    known: name -> key, from earlier. worked: those of them that gave something the cloud kept.
    keep: called with each new name, before any message counts under it. keep_worked: called with a name that gave
    something for the first time. keep_all: called with all that is left, when some have made place.
    """

    def __init__(
        self,
        known: Mapping[str, bytes] | None = None,
        keep: Callable[[str, bytes], None] | None = None,
        worked: Iterable[str] = (),
        keep_worked: Callable[[str, bytes], None] = lambda name, key: None,
        keep_all: Callable[[Mapping[str, bytes], frozenset[str]], None] = lambda names, worked: None,
    ):
        self._owners = dict(known or {})
        self._counts = Counter(self._owners.values())
        self._worked = {name for name in worked if name in self._owners}
        self._keep, self._keep_worked, self._keep_all = keep, keep_worked, keep_all
        self._budgets: dict[str, TokenBucket] = {}

    def check(self, names: Iterable[str], key: bytes, host: str = "", now: float = 0.0) -> None:
        """Check that a device with this key may use these names from this address; new names become its own.

        Raises NameTakenError if one belongs to another device, RemoteProtocolError if there are too many.
        """
        new = [name for name in dict.fromkeys(names) if self._owners.get(name) != key]
        if taken := [name for name in new if name in self._owners]:
            raise NameTakenError(taken[0])
        if not new:
            return
        if self._counts[key] + len(new) > MOST_OF_ONE:
            raise RemoteProtocolError(f"{new[0]}: its device has {self._counts[key]} names already")
        budget = self._budget(host)
        if not all(budget.take(now) for _ in new):
            raise RemoteProtocolError(f"{new[0]}: too many new names come from {host or 'there'}; again in a moment")
        if len(self._owners) + len(new) > MOST_NAMES:
            self._make_place(len(new), new[0])
        for name in new:
            if self._keep is not None:
                self._keep(name, key)
            self._owners[name] = key
            self._counts[key] += 1

    def note_worked(self, name: str) -> None:
        """Note that something under this name was kept: the name stays when newcomers make place."""
        key = self._owners.get(name)
        if key is not None and name not in self._worked:
            self._worked.add(name)
            self._keep_worked(name, key)

    def _budget(self, host: str) -> TokenBucket:
        where = _network_of(host)
        budget = self._budgets.pop(where, None) or TokenBucket(NEW_AT_ONCE, NEW_A_SECOND)
        self._budgets[where] = budget
        if len(self._budgets) > _ADDRESSES:
            del self._budgets[next(iter(self._budgets))]
        return budget

    def _make_place(self, many: int, name: str) -> None:
        """Drop newcomers. Raises RemoteProtocolError if too few names are left that have never worked."""
        newcomers = [each for each in self._owners if each not in self._worked]
        if len(newcomers) < many:
            raise RemoteProtocolError(f"{name}: this cloud knows {len(self._owners)} names, as many as it keeps")
        for each in newcomers[: max(many, len(newcomers) // _SHARE_THAT_GOES)]:
            key = self._owners.pop(each)
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        self._keep_all(self._owners, frozenset(self._worked))


def _network_of(host: str) -> str:
    """Return the part of an address that one customer has: of IPv6 the first half, as devices choose the rest."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
