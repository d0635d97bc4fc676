"""Who is in the mesh: all signed statements that this device knows, and what follows from them.

Merged by union: whatever order statements come in, and however often, the same follows, so that neither a partition
nor a restart brings a device back. What another statement makes void is dropped, and not told on.

- A device is in if the join code admitted it, until an owner revokes it, or changes the code and does not keep it.
- The founder, whom the join code tells, is an owner; owners name others, who stand below them. Who is revoked by an
  owner that stands as high or higher owns nothing, and neither do those that it alone has named; what these state is
  void, for who has stolen an owner's device can sign with it for ever. Nobody revokes the founder.
- A name belongs to the device that had it first here, until that one is out.
- Whoever claims another device's link key as its own only lets that one speak for it.

Pure. Nothing is known of sockets or files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from mdl.bounds import MAX_MEMBERS
from mdl.errors import ForgedError, RemoteProtocolError
from mdl.trust.statements import (
    MAX_STATEMENTS,
    AnyStatement,
    CodeChanged,
    DeviceRevoked,
    Enrolled,
    OwnerNamed,
    claim_of,
)
from transport.trust.device_key import is_signed
from transport.trust.keys import MeshKeys

# Peers that one device may be: `mdl up` has so many on one machine, and nobody becomes a majority by many names.
MAX_NAMES = 64
# How often what is kept is gone through: a statement may stand by one that was heard of after it, and kept behind it.
_PASSES = 8


class Roster:
    """keys: of this mesh, by the code that this device has. statements: kept from earlier; what is void is left out.

    check: whether the secret of a public key has signed a claim.
    """

    def __init__(
        self,
        keys: MeshKeys,
        statements: Iterable[AnyStatement] = (),
        check: Callable[[bytes, bytes, bytes], bool] = is_signed,
    ) -> None:
        self._keys = keys
        self._is_signed = check
        self._enrolled: dict[tuple[bytes, str], Enrolled] = {}  # in the order in which they were heard of
        self._named: dict[tuple[bytes, bytes], OwnerNamed] = {}
        self._revocations: dict[tuple[bytes, bytes], DeviceRevoked] = {}
        self._changes: dict[tuple[int, bytes], CodeChanged] = {}
        # What follows from them.
        self._revoked: dict[bytes, DeviceRevoked] = {}
        self._change: CodeChanged | None = None
        self._owners: frozenset[bytes] = frozenset()
        self._judges: frozenset[bytes] = frozenset()
        self._standing: set[tuple[bytes, bytes]] = set()
        self._digest = b""
        self._by_link: dict[bytes, bytes] = {}
        # Kept, since each statement has all of them looked at: what stands in the digest, and whom the code admits.
        self._hashes: dict[AnyStatement, bytes] = {}
        self._admitted: dict[Enrolled, bool] = {}
        self._holders: dict[str, Enrolled] = {}
        self._conclude()
        kept, before = sorted(statements, key=_rank), None
        for _ in range(_PASSES):
            if self._digest == before:
                break  # nothing more stands
            before = self._digest
            self._add_all(kept)

    def _add_all(self, statements: Iterable[AnyStatement]) -> None:
        """Those that stand by now."""
        for statement in statements:
            if not self.knows(statement):
                with suppress(RemoteProtocolError):  # of a code that was changed since, or of an owner named below
                    self.add(statement)

    # -- what follows -------------------------------------------------------------------------------------------------

    @property
    def digest(self) -> bytes:
        """16 bytes; equal where the same is known."""
        return self._digest

    @property
    def is_code_old(self) -> bool:
        """An owner has changed the join code, and this device has not been told the new one."""
        return self._change is not None and self._change.code_hash != self._keys.code_hash

    def wanted_code(self) -> bytes:
        """What tells the code that the mesh has now; empty if it was never changed."""
        return b"" if self._change is None else self._change.code_hash

    def is_kept(self, device: bytes) -> bool:
        """Whether the last change of the code names this device."""
        return self._change is not None and device in self._change.kept

    def statements(self) -> tuple[AnyStatement, ...]:
        """All that is known, in an order in which each can be checked by those before it."""
        owned = (self._named, self._revocations, self._changes)
        return (*(each for table in owned for each in table.values()), *self._enrolled.values())

    def enrolled(self, peer_id: str) -> Enrolled | None:
        """The device that a name belongs to; None if it is free."""
        return self._holders.get(peer_id)

    def rivals(self, peer_id: str, device: bytes) -> tuple[Enrolled, ...]:
        """Return what other devices that are in say of this name: that it is theirs."""
        return tuple(each for each in self._enrolled.values() if each.peer_id == peer_id and each.device != device)

    def withdraw(self, device: bytes, peer_id: str) -> None:
        """Give a device's name up: the next one that has it here holds it from now on."""
        if self._enrolled.pop((device, peer_id), None) is not None:
            self._conclude()

    def against(self, enrolled: Enrolled) -> tuple[AnyStatement, ...]:
        """Return the statements by which a device is not in under this name, each checkable by those before it."""
        if enrolled.device in self._revoked:
            out = [each for each in self._revocations.values() if each.device == enrolled.device]
            return (*self._named.values(), *out)
        holder = self._holders.get(enrolled.peer_id)
        return () if holder is None or holder.device == enrolled.device else (holder,)

    def members(self) -> tuple[Enrolled, ...]:
        """Everybody who is in, by name."""
        return tuple(self._holders[name] for name in sorted(self._holders))

    def device_of(self, link_key: bytes) -> bytes | None:
        """The device that shows this key; None unless it is in."""
        return self._by_link.get(link_key)

    def is_revoked(self, device: bytes) -> bool:
        return device in self._revoked

    def revocations(self) -> tuple[DeviceRevoked, ...]:
        return tuple(self._revoked.values())

    def owners(self) -> frozenset[bytes]:
        """Devices that own the mesh now."""
        return self._owners

    def next_change(self) -> int:
        """The number of the next change of the code."""
        return max((number for number, _ in self._changes), default=0) + 1

    # -- what is heard ------------------------------------------------------------------------------------------------

    def knows(self, statement: AnyStatement) -> bool:
        """Whether just this was taken in before, and stands."""
        return statement in self._hashes

    def add(self, statement: AnyStatement) -> bool:
        """Take a statement in; whether it says something new. Raises RemoteProtocolError if it cannot stand."""
        match statement:
            case Enrolled():
                is_new = self._add_enrolled(statement)
            case OwnerNamed():
                is_new = self._add_owner(statement)
            case DeviceRevoked():
                is_new = self._add_revoked(statement)
            case CodeChanged():
                is_new = self._add_change(statement)
        before = self._digest
        if is_new:
            self._conclude()
        return self._digest != before  # what is void at once is not told on

    def check(self, enrolled: Enrolled) -> None:
        """Raises RemoteProtocolError unless this device was admitted, and is not out."""
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
        """This device has another join code of the same mesh now."""
        self._keys = keys
        self._admitted.clear()
        self._conclude()

    def _add_enrolled(self, statement: Enrolled) -> bool:
        key = (statement.device, statement.peer_id)
        self.check(statement)
        if key in self._enrolled:
            return False
        if len(self._enrolled) >= MAX_STATEMENTS - MAX_MEMBERS:
            raise RemoteProtocolError("the roster is full: an owner makes room by `mdl mesh rotate-code`")
        if sum(device == statement.device for device, _ in self._enrolled) >= MAX_NAMES:
            raise RemoteProtocolError(f"{statement.peer_id}: its device has {MAX_NAMES} names already")
        self._enrolled[key] = statement
        return True

    def _add_owner(self, statement: OwnerNamed) -> bool:
        key = (statement.owner, statement.by)
        if key in self._named:
            return False
        is_founding = statement.owner == statement.by and self._keys.is_founder(statement.by)
        if not (is_founding or statement.by in self._owners):
            raise RemoteProtocolError("an owner was named by a device that is none")
        self._check_signed(statement, len(self._named))
        self._named[key] = statement
        return True

    def _add_revoked(self, statement: DeviceRevoked) -> bool:
        key = (statement.device, statement.by)
        known = self._revocations.get(key)
        if known is not None and _encoded(statement) >= _encoded(known):
            return False
        if statement.by not in self._judges or self._keys.is_founder(statement.device):
            raise RemoteProtocolError("a device was revoked by one that does not own the mesh, or it is the founder's")
        self._check_signed(statement, len(self._revocations))
        self._revocations[key] = statement
        return True

    def _add_change(self, statement: CodeChanged) -> bool:
        key = (statement.number, statement.code_hash)
        if key in self._changes:
            return False
        if statement.by not in self._owners:
            raise RemoteProtocolError("the join code was changed by a device that does not own the mesh")
        self._check_signed(statement, len(self._changes))
        self._changes[key] = statement
        return True

    def _check_signed(self, statement: OwnerNamed | DeviceRevoked | CodeChanged, many: int) -> None:
        if many >= MAX_MEMBERS:
            raise RemoteProtocolError("the roster holds as many statements of owners as it can")
        if not self._is_signed(statement.by, claim_of(self._keys.mesh_id, statement), statement.signature):
            raise ForgedError("a statement without the signature of the owner that it names")

    # -- what follows -------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        self._judge()
        self._named = {key: each for key, each in self._named.items() if each.by in self._owners}
        self._revocations = {key: each for key, each in self._revocations.items() if key in self._standing}
        self._changes = {key: each for key, each in self._changes.items() if each.by in self._owners}
        self._change = self._changes[max(self._changes)] if self._changes else None
        self._enrolled = {key: each for key, each in self._enrolled.items() if self._is_in(each)}
        self._admitted = {each: self._admitted[each] for each in self._enrolled.values() if each in self._admitted}
        self._by_link = {each.link_key: each.device for each in reversed(self._enrolled.values())}
        self._holders = {}
        for enrolled in self._enrolled.values():
            self._holders.setdefault(enrolled.peer_id, enrolled)
        hashes, self._hashes = self._hashes, {}
        for each in self.statements():
            self._hashes[each] = hashes.get(each) or hashlib.blake2b(_encoded(_blank(each))).digest()
        self._digest = hashlib.blake2b(b"".join(sorted(self._hashes.values())), digest_size=16).digest()

    def _judge(self) -> None:
        """Who owns the mesh and who is out, from the founder downwards; equals revoke each other, whoever is first."""
        level = {each.by for each in self._named.values() if self._keys.is_founder(each.by)}
        owners: set[bytes] = set()
        judges: set[bytes] = set()
        self._standing = set()
        while level:
            judges |= level
            self._standing |= {key for key in self._revocations if key[1] in level and key[0] not in owners}
            out = {device for device, _ in self._standing}
            owners |= level - out
            named = {owner for owner, by in self._named if by in owners}
            level = named - owners - out
        self._owners, self._judges = frozenset(owners), frozenset(judges)
        self._revoked = {key[0]: self._revocations[key] for key in sorted(self._standing, reverse=True)}

    def _is_in(self, enrolled: Enrolled) -> bool:
        return enrolled.device not in self._revoked and (
            self.is_kept(enrolled.device) or self._is_admitted_now(enrolled)
        )

    def _is_admitted_now(self, enrolled: Enrolled) -> bool:
        if self._change is None:
            return True
        if self.is_code_old:
            return False
        if enrolled not in self._admitted:
            claim = claim_of(self._keys.mesh_id, enrolled)
            self._admitted[enrolled] = self._is_signed(self._keys.admitting.public, claim, enrolled.admitted)
        return self._admitted[enrolled]


def is_stated(mesh_id: str, statement: AnyStatement) -> bool:
    """Whether the device that a statement is of has signed it; not whether it counts."""
    by = statement.device if isinstance(statement, Enrolled) else statement.by
    return is_signed(by, claim_of(mesh_id, statement), statement.signature)


def _blank(statement: AnyStatement) -> AnyStatement:
    """What two rosters must agree in: of a device that was admitted by two codes only that it was."""
    return msgspec.structs.replace(statement, admitted=b"") if isinstance(statement, Enrolled) else statement


def _encoded(statement: AnyStatement) -> bytes:
    return msgspec.msgpack.encode(statement)


def _rank(statement: AnyStatement) -> int:
    """Those that others are checked by come first."""
    return (OwnerNamed, DeviceRevoked, CodeChanged, Enrolled).index(type(statement))
