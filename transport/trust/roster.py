"""The members of a mesh: all signed statements that this device knows, and what follows from them.

Statements are merged by union: their order and repetition change nothing, so that neither a partition nor a restart
brings a device back. A statement that another one makes void is dropped, and not passed on.

- A device is in if the join code admitted it, until an owner revokes it, or changes the code and does not keep it.
- The founder, which the join code tells, is an owner. Owners name others, which stand below them. A device revoked by
  an owner that stands as high or higher owns nothing, and neither do those that it alone has named. Their statements
  are void: a thief of an owner's device can sign with it for ever. Nobody revokes the founder. A device that an owner
  has revoked stays out even if an equal revokes that owner, or a thief could let everybody in again: the founder
  decides.
- A name belongs to the device that had it first here, until that one is out, or until another device comes with it and
  that one has taken a name of its own in its place (`mdl.transport.trust.keys.own_names`).
- A device that claims another device's link key as its own only lets that one speak for it.

Room is kept by rank, so that nobody uses up the room of a higher device:
- The founder's statements have room of their own. Each owner that the founder named can always revoke some devices,
  however much other owners have stated. A revocation in the roster stays until its owner is out; then all of that
  owner's go.
- Each owner's last change of the code stays; earlier ones go.
- In a full roster of enrolments newcomers make place: first for devices of the founder and its owners and for those
  that have worked, then for newcomers that introduce themselves. Full rosters may differ in newcomers. Nothing is lost
  by it, since an enrolment proves itself and comes again with its device.

`Worked` is local knowledge, not a statement: the devices that this device has seen work, since their deltas are in a
round that it has closed. It decides which enrolments stay in a full roster, and which devices a changed code keeps. Two
devices may differ in it. Their rosters then differ in newcomers alone, which introduce themselves again.

Pure. Knows no sockets or files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import TypeVar

import msgspec

from mdl.bounds import MAX_MEMBERS
from mdl.errors import ForgedError, RemoteProtocolError
from mdl.protocol.statements import (
    MAX_CHANGES,
    MAX_ENROLLED,
    MAX_LOWER_CHANGES,
    MAX_RESERVED,
    MAX_WORKED,
    RESERVED_REVOCATIONS,
    AnyStatement,
    CodeChanged,
    DeviceRevoked,
    Enrolled,
    OwnerNamed,
    claim_of,
)
from mdl.transport.trust.keys import MeshKeys, is_signed, own_names

# Peers that one device may be: `mdl up` has so many on one machine, and nobody becomes a majority by many names.
MAX_NAMES = 64
# Passes over kept statements: one may depend on another that was heard of later, and is kept behind it.
_PASSES = 8

Check = Callable[[bytes, bytes, bytes], bool]
_Outer = TypeVar("_Outer")
_Inner = TypeVar("_Inner")
_Value = TypeVar("_Value")


class Rank(IntEnum):
    """Rank of an enrolment in a full roster; the lowest makes place first."""

    NEWCOMER = 0
    WORKED = 1
    OWNER = 2


class Roster:
    """The roster of a mesh.

    keys: of this mesh, by the code that this device has. statements: kept from earlier; void ones are left out.
    check: returns True if the secret of a public key has signed a claim. worked: devices that were seen to work.
    own: this device's key. are_checked: this device has kept the statements itself, so their signatures need no check.
    """

    def __init__(
        self,
        keys: MeshKeys,
        statements: Iterable[AnyStatement] = (),
        check: Check = is_signed,
        worked: Worked | None = None,
        own: bytes = b"",
        are_checked: bool = False,
    ) -> None:
        self._keys = keys
        self._is_signed = check if not are_checked else _was_signed
        self._worked = worked if worked is not None else Worked()
        self._own = own
        self._enrolled: dict[tuple[bytes, str], Enrolled] = {}  # in the order in which they were heard of
        self._newcomers: dict[tuple[bytes, str], None] = {}
        self._admitted: set[tuple[bytes, str]] = set()  # checked to be admitted by the code that this device has
        # The same by device, name and link key; the first device of a name and of a link key has it.
        self._of_device: dict[bytes, dict[str, Enrolled]] = {}
        self._of_name: dict[str, dict[bytes, Enrolled]] = {}
        self._of_link: dict[bytes, dict[tuple[bytes, str], bytes]] = {}
        self._named: dict[tuple[bytes, bytes], OwnerNamed] = {}
        self._named_by: dict[bytes, dict[bytes, None]] = {}
        self._revocations: dict[tuple[bytes, bytes], DeviceRevoked] = {}
        self._revokers: dict[bytes, dict[bytes, DeviceRevoked]] = {}
        self._revoked_by: Counter[bytes] = Counter()
        self._changes: dict[bytes, CodeChanged] = {}
        # The consequences of the statements.
        self._revoked: dict[bytes, DeviceRevoked] = {}
        self._change: CodeChanged | None = None
        self._kept: frozenset[bytes] = frozenset()
        self._owners: set[bytes] = set()
        self._judges: set[bytes] = set()
        self._founder: bytes = b""
        # statement -> its hash in the digest, and all hashes in order.
        self._hashes: dict[AnyStatement, bytes] = {}
        self._sorted: list[bytes] = []
        self._digest: bytes | None = None
        self.version = 0
        kept, before = sorted(statements, key=_order), -1
        for _ in range(_PASSES):
            if self.version == before:
                break  # nothing more stands
            before = self.version
            self._add_all(kept)
        self._is_signed = check

    def _add_all(self, statements: Iterable[AnyStatement]) -> None:
        """Add those that stand by now."""
        for statement in statements:
            if not self.knows(statement):
                with suppress(RemoteProtocolError):  # admitted by an old code, or stated by an owner named below
                    self.add(statement)

    # -- conclusions --------------------------------------------------------------------------------------------------

    @property
    def digest(self) -> bytes:
        """A digest of the statements, 16 bytes; equal on devices that know the same."""
        if self._digest is None:
            self._digest = hashlib.blake2b(b"".join(self._sorted), digest_size=16).digest()
        return self._digest

    @property
    def is_code_old(self) -> bool:
        """True if an owner has changed the join code and this device does not have the new one."""
        return self._change is not None and self._change.code_hash != self._keys.code_hash

    def wanted_code(self) -> bytes:
        """Return the hash of the mesh's present code; empty if it was never changed."""
        return b"" if self._change is None else self._change.code_hash

    def change(self) -> CodeChanged | None:
        """Return the change of the code that counts; None if there was none."""
        return self._change

    def is_kept(self, device: bytes) -> bool:
        """Return True if the last change of the code names this device."""
        return device in self._kept

    def statements(self) -> tuple[AnyStatement, ...]:
        """Return all known statements, in an order in which each can be checked by those before it."""
        owned = (self._named, self._revocations, self._changes)
        return (*(each for table in owned for each in table.values()), *self._enrolled.values())

    def enrolled(self, peer_id: str) -> Enrolled | None:
        """Return the enrolment of the device that a name belongs to; None if the name is free."""
        holders = self._of_name.get(peer_id)
        return next(iter(holders.values())) if holders else None

    def rivals(self, peer_id: str, device: bytes) -> tuple[Enrolled, ...]:
        """Return the enrolments of other devices under this name."""
        return tuple(each for each in self._of_name.get(peer_id, {}).values() if each.device != device)

    def has_given_up(self, device: bytes, peer_id: str) -> bool:
        """Return True if a device has taken a name of its own in place of this one, which another device had."""
        names = self._of_device.get(device, {})
        return len(names) > 1 and not names.keys().isdisjoint(own_names(peer_id, device))

    def withdraw(self, device: bytes, peer_id: str) -> None:
        """Give up a device's name; the next device in the roster with this name holds it from now on."""
        if (device, peer_id) in self._enrolled:
            self._drop_enrolled((device, peer_id))

    def against(self, enrolled: Enrolled) -> tuple[AnyStatement, ...]:
        """Return the statements by which a device is not in under this name, each checkable by those before it."""
        if enrolled.device in self._revoked:
            out = self._revokers[enrolled.device].values()
            return (*self._named.values(), *out)
        holder = self.enrolled(enrolled.peer_id)
        return () if holder is None or holder.device == enrolled.device else (holder,)

    def members(self) -> tuple[Enrolled, ...]:
        """Return the enrolment of each member, by name."""
        return tuple(next(iter(self._of_name[name].values())) for name in sorted(self._of_name))

    def device_of(self, link_key: bytes) -> bytes | None:
        """Return the device that shows this key; None unless it is in."""
        devices = self._of_link.get(link_key)
        return next(iter(devices.values())) if devices else None

    def is_revoked(self, device: bytes) -> bool:
        return device in self._revoked

    def revocations(self) -> tuple[DeviceRevoked, ...]:
        return tuple(self._revoked[device] for device in sorted(self._revoked, reverse=True))

    def owners(self) -> frozenset[bytes]:
        """Return the devices that own the mesh now."""
        return frozenset(self._owners)

    def stands_high(self, device: bytes) -> bool:
        """Return True for the founder and for the owners that it has named."""
        return device in self._owners and (device == self._founder or (device, self._founder) in self._named)

    def next_change(self) -> int:
        """Return the number of the next change of the code."""
        return max((each.number for each in self._changes.values()), default=0) + 1

    def room_to_revoke(self, by: bytes) -> int:
        """Return how many more devices this owner can revoke."""
        mine = self._revoked_by[by]
        if by == self._founder:
            return MAX_MEMBERS - mine
        others = len(self._revocations) - self._revoked_by[self._founder]
        room = max(0, MAX_MEMBERS - others)
        if (by, self._founder) in self._named:
            room = max(room, min(RESERVED_REVOCATIONS - mine, MAX_MEMBERS + MAX_RESERVED - others))
        return room

    # -- statements that come in --------------------------------------------------------------------------------------

    def knows(self, statement: AnyStatement) -> bool:
        """Return True if just this statement was taken in before, and stands."""
        return statement in self._hashes

    def add(self, statement: AnyStatement, in_person: bool = False, spare: Container[str] = ()) -> bool:
        """Take a statement in; return True if it says something new. Raises RemoteProtocolError if it cannot stand.

        in_person: its device introduces itself now, and may take a newcomer's place. spare: names that keep their place
        then.
        """
        match statement:
            case Enrolled():
                return self._add_enrolled(statement, in_person, spare)
            case OwnerNamed():
                return self._add_owner(statement)
            case DeviceRevoked():
                return self._add_revoked(statement)
            case CodeChanged():
                return self._add_change(statement)

    def note_worked(self, peer_ids: Iterable[str]) -> bool:
        """Note that the devices of these names have just worked; return True if that is news of one of them."""
        pairs = [(holder.device, peer_id) for peer_id in peer_ids if (holder := self.enrolled(peer_id)) is not None]
        for pair in pairs:
            self._newcomers.pop(pair, None)
        return self._worked.note(pairs)

    def check(self, enrolled: Enrolled) -> None:
        """Raise RemoteProtocolError unless this device was admitted, and is not out."""
        if (enrolled.device, enrolled.peer_id) in self._enrolled and (
            self._enrolled[enrolled.device, enrolled.peer_id].link_key == enrolled.link_key
        ):
            return
        if enrolled.device in self._revoked:
            raise RemoteProtocolError(f"{enrolled.peer_id} was revoked")
        claim = claim_of(self._keys.mesh_id, enrolled)
        if not self._is_signed(enrolled.device, claim, enrolled.signature):
            raise ForgedError(f"{enrolled.peer_id} is not what it says: its device has not signed that")
        if self.is_kept(enrolled.device):
            return
        if not self._is_signed(self._keys.admitting.public, claim, enrolled.admitted):
            raise RemoteProtocolError(f"{enrolled.peer_id} was admitted by another join code than this mesh's")
        if self.is_code_old:
            raise RemoteProtocolError(f"{enrolled.peer_id} was admitted by a join code that an owner has changed")

    def adopt(self, keys: MeshKeys) -> None:
        """Use another join code of the same mesh from now on."""
        self._keys = keys
        self._admitted.clear()
        self._drop_outsiders()

    # -- enrolments ---------------------------------------------------------------------------------------------------

    def _add_enrolled(self, statement: Enrolled, in_person: bool, spare: Container[str]) -> bool:
        key = (statement.device, statement.peer_id)
        is_known = key in self._enrolled
        victim = None
        if not is_known:
            if len(self._of_device.get(statement.device, ())) >= MAX_NAMES:
                raise RemoteProtocolError(f"{statement.peer_id}: its device has {MAX_NAMES} names already")
            if len(self._enrolled) >= MAX_ENROLLED:
                victim = self._who_makes_place(self._rank(key), in_person, spare)
        self.check(statement)
        if is_known:
            return False
        if victim is not None:
            self._drop_enrolled(victim)
        self._enrolled[key] = statement
        self._of_device.setdefault(statement.device, {})[statement.peer_id] = statement
        self._of_name.setdefault(statement.peer_id, {})[statement.device] = statement
        self._of_link.setdefault(statement.link_key, {})[key] = statement.device
        for peer_id in self._of_device[statement.device]:
            self._order_holders(peer_id)
        self._place(key)
        self._note(statement)
        return True

    def _order_holders(self, peer_id: str) -> None:
        """Move a device that has given a name up behind those that have not."""
        holders = self._of_name[peer_id]
        if len(holders) > 1:
            ordered = sorted(holders.items(), key=lambda each: self.has_given_up(each[0], peer_id))
            self._of_name[peer_id] = dict(ordered)

    def _place(self, key: tuple[bytes, str]) -> None:
        """Note if this enrolment makes place for others."""
        if self._rank(key) is Rank.NEWCOMER:
            self._newcomers[key] = None
        else:
            self._newcomers.pop(key, None)

    def _rank(self, key: tuple[bytes, str]) -> Rank:
        if key[0] == self._own or self.stands_high(key[0]):
            return Rank.OWNER
        return Rank.WORKED if key in self._worked else Rank.NEWCOMER

    def _who_makes_place(self, rank: Rank, in_person: bool, spare: Container[str]) -> tuple[bytes, str]:
        """Return the enrolment that makes place. Raises RemoteProtocolError if none does."""
        if in_person or rank is not Rank.NEWCOMER:
            for key in self._newcomers:
                if key[1] not in spare:
                    return key
            if rank is not Rank.NEWCOMER and self._newcomers:
                return next(iter(self._newcomers))
        if rank is Rank.OWNER:
            for key in self._enrolled:
                if self._rank(key) is Rank.WORKED:
                    return key
        raise RemoteProtocolError("the roster is full: an owner makes room by `mdl mesh rotate-code`")

    def _drop_enrolled(self, key: tuple[bytes, str]) -> None:
        gone = self._enrolled.pop(key)
        self._newcomers.pop(key, None)
        self._admitted.discard(key)
        _drop(self._of_device, gone.device, gone.peer_id)
        _drop(self._of_name, gone.peer_id, gone.device)
        _drop(self._of_link, gone.link_key, key)
        self._forget(gone)

    def _drop_device(self, device: bytes) -> None:
        for peer_id in list(self._of_device.get(device, ())):
            self._drop_enrolled((device, peer_id))

    def _drop_outsiders(self) -> None:
        """Drop devices that the present code does not let in: it was changed, or this device has received it."""
        for key, enrolled in list(self._enrolled.items()):
            if not (self.is_kept(enrolled.device) or self._is_admitted_now(enrolled)):
                self._drop_enrolled(key)

    def _is_admitted_now(self, enrolled: Enrolled) -> bool:
        if self._change is None:
            return True
        if self.is_code_old:
            return False
        key = (enrolled.device, enrolled.peer_id)
        if key not in self._admitted:
            claim = claim_of(self._keys.mesh_id, enrolled)
            if not self._is_signed(self._keys.admitting.public, claim, enrolled.admitted):
                return False
            self._admitted.add(key)
        return True

    # -- statements of owners -----------------------------------------------------------------------------------------

    def _add_owner(self, statement: OwnerNamed) -> bool:
        key = (statement.owner, statement.by)
        if key in self._named:
            return False
        is_founding = statement.owner == statement.by and self._keys.is_founder(statement.by)
        if not (is_founding or statement.by in self._owners):
            raise RemoteProtocolError("an owner was named by a device that is none")
        by_founder = len(self._named_by.get(self._founder, ()))
        many = by_founder if statement.by == self._founder else len(self._named) - by_founder
        self._check_signed(statement, many < MAX_MEMBERS)
        self._named[key] = statement
        self._named_by.setdefault(statement.by, {})[statement.owner] = None
        self._note(statement)
        if is_founding:
            self._founder = statement.by
        if statement.owner in self._judges or statement.owner in self._revokers:
            self._judge()  # it stands higher now: others may be out by it, or it may be back
        else:
            self._owners.add(statement.owner)
            self._judges.add(statement.owner)
            for peer_id in self._of_device.get(statement.owner, ()):
                self._place((statement.owner, peer_id))
        return True

    def _add_revoked(self, statement: DeviceRevoked) -> bool:
        key = (statement.device, statement.by)
        known = self._revocations.get(key)
        if known is not None and _encoded(statement) >= _encoded(known):
            return False
        if statement.by not in self._judges or self._keys.is_founder(statement.device):
            raise RemoteProtocolError("a device was revoked by one that does not own the mesh, or it is the founder's")
        self._check_signed(statement, known is not None or self.room_to_revoke(statement.by) > 0)
        if known is not None:
            self._drop_revocation(known)
        self._revocations[key] = statement
        self._revokers.setdefault(statement.device, {})[statement.by] = statement
        self._revoked_by[statement.by] += 1
        self._note(statement)
        if statement.device in self._owners:
            self._judge()
        if statement.device in self._owners:
            self._drop_revocation(statement)  # a lower owner cannot revoke a higher one; it is not passed on
            return False
        self._lock_out(statement.device)
        return True

    def _add_change(self, statement: CodeChanged) -> bool:
        by = statement.by
        known = self._changes.get(by)
        if known is not None and (_turn(statement), _encoded(statement)) <= (_turn(known), _encoded(known)):
            return False
        if by not in self._owners:
            raise RemoteProtocolError("the join code was changed by a device that does not own the mesh")
        high = sum(self.stands_high(each) for each in self._changes if each != self._founder)
        has_room = (
            high < MAX_CHANGES
            if self.stands_high(by)
            else sum(not self.stands_high(each) for each in self._changes) < MAX_LOWER_CHANGES
        )
        self._check_signed(statement, known is not None or by == self._founder or has_room)
        if known is not None:
            self._forget(known)
        self._changes[by] = statement
        self._note(statement)
        self._follow_change()
        return True

    def _check_signed(self, statement: OwnerNamed | DeviceRevoked | CodeChanged, has_room: bool) -> None:
        if not has_room:
            raise RemoteProtocolError("the roster holds as many statements of this owner as it can")
        if not self._is_signed(statement.by, claim_of(self._keys.mesh_id, statement), statement.signature):
            raise ForgedError("a statement without the signature of the owner that it names")

    # -- consequences of these ----------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Find the owners, and those that may revoke, from the founder down; equals revoke each other in any order."""
        level = {self._founder} if self._founder else set()
        owners: set[bytes] = set()
        judges: set[bytes] = set()
        while level:
            judges |= level
            stay = {each for each in level if judges.isdisjoint(self._revokers.get(each, ()))}
            owners |= stay
            named = {owner for by in stay for owner in self._named_by.get(by, ())} - owners
            level = {each for each in named if judges.isdisjoint(self._revokers.get(each, ()))}
        was, self._owners, self._judges = (self._owners, self._judges), owners, judges
        if was != (owners, judges):
            self._settle()

    def _settle(self) -> None:
        """Drop statements that are void by a change of owners, and follow those that are left."""
        for named in [each for each in self._named.values() if each.by not in self._owners]:
            del self._named[named.owner, named.by]
            _drop(self._named_by, named.by, named.owner)
            self._forget(named)
        for each in list(self._revocations.values()):
            if each.by not in self._judges or each.device in self._owners:
                self._drop_revocation(each)
        for by in [each for each in self._changes if each not in self._owners]:
            self._forget(self._changes.pop(by))
        self._revoked.clear()
        for device in self._revokers:
            self._lock_out(device)
        for key in self._enrolled:
            self._place(key)
        self._follow_change()

    def _lock_out(self, device: bytes) -> None:
        """Lock out a revoked device that owns nothing."""
        revokers = self._revokers[device]
        self._revoked[device] = revokers[min(revokers)]
        self._drop_device(device)

    def _drop_revocation(self, statement: DeviceRevoked) -> None:
        self._revocations.pop((statement.device, statement.by))
        self._revoked_by[statement.by] -= 1
        _drop(self._revokers, statement.device, statement.by)
        self._forget(statement)

    def _follow_change(self) -> None:
        before, self._change = self._change, max(self._changes.values(), key=_turn, default=None)
        if before != self._change:
            self._kept = frozenset(self._change.kept if self._change else ())
            self._drop_outsiders()

    def _note(self, statement: AnyStatement) -> None:
        mark = hashlib.blake2b(_encoded(_blank(statement))).digest()
        self._hashes[statement] = mark
        insort(self._sorted, mark)
        self._digest = None
        self.version += 1

    def _forget(self, statement: AnyStatement) -> None:
        mark = self._hashes.pop(statement)
        del self._sorted[bisect_left(self._sorted, mark)]
        self._digest = None
        self.version += 1


def is_stated(mesh_id: str, statement: AnyStatement, check: Check = is_signed) -> bool:
    """Return True if the device that makes a statement has signed it; that does not say that it counts."""
    by = statement.device if isinstance(statement, Enrolled) else statement.by
    return check(by, claim_of(mesh_id, statement), statement.signature)


def _blank(statement: AnyStatement) -> AnyStatement:
    """Return the part that two rosters must agree in: not the code that admitted a device, only that one did."""
    return msgspec.structs.replace(statement, admitted=b"") if isinstance(statement, Enrolled) else statement


def _encoded(statement: AnyStatement) -> bytes:
    return msgspec.msgpack.encode(statement)


def _order(statement: AnyStatement) -> int:
    """Return the place of a kind of statement: those that others are checked by come first."""
    return (OwnerNamed, DeviceRevoked, CodeChanged, Enrolled).index(type(statement))


def _turn(change: CodeChanged) -> tuple[int, bytes, bytes]:
    """Return the key to compare changes by: the greater counts, alike on each device."""
    return change.number, change.code_hash, change.by


def _was_signed(public: bytes, claim: bytes, signature: bytes) -> bool:
    return True


def _drop(table: dict[_Outer, dict[_Inner, _Value]], outer: _Outer, inner: _Inner) -> None:
    """Remove an entry, and its table if that is empty then."""
    del table[outer][inner]
    if not table[outer]:
        del table[outer]


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
