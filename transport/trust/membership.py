"""This device's membership of a mesh: it signs the introduction of its peer, and checks those of others.

Observers, which only look, belong to a device of the mesh too, but are in no roster: they are let in for as long as
this process remembers them. Own output is checked against the bounds of its readers before a byte of it leaves. Pure
but for the keys that it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from secrets import token_bytes
from typing import Any, TypeVar

import msgspec
from zmq.utils import z85

from mdl.bounds import UNREADABLE
from mdl.errors import ConfigError, ForgedError, RemoteProtocolError
from mdl.protocol.statements import (
    MAX_CHANGE,
    MAX_ENROLLED,
    MAX_HOSTS,
    MAX_KEPT,
    STATEMENTS_A_MESSAGE,
    AnyStatement,
    CodeChanged,
    DeviceRevoked,
    Enrolled,
    OwnerNamed,
    Proof,
    claim_of,
)
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import DeviceKey, MeshKeys, fingerprint, is_signed, where_claim
from mdl.transport.trust.roster import Check, Roster, Worked


def encode_readable(value: object, kind: Any, what: str) -> bytes:
    """Encode a value as MessagePack that a reader of `kind` accepts. Raises ConfigError naming `what` otherwise."""
    encoded = msgspec.msgpack.encode(value)
    try:
        msgspec.msgpack.decode(encoded, type=kind)
    except UNREADABLE as error:
        raise ConfigError(f"{what} could not be read again ({error}): nothing was changed") from None
    return encoded


# Observers that are remembered: more than the pages and terminals that look at one mesh.
MAX_VISITORS = 64
# Names with a remembered latest introduction, so that nothing older counts: all that a roster has, and visitors.
_MAX_SAID = MAX_ENROLLED + MAX_VISITORS
# Starts remembered of each name; a device with more only forgets its own.
_STARTS = 4
_Owned = TypeVar("_Owned", OwnerNamed, DeviceRevoked, CodeChanged)


class NotLetInError(RemoteProtocolError):
    """A device that introduces itself is not in. statements: the ones by which it can check that."""

    def __init__(self, text: str, statements: tuple[AnyStatement, ...]) -> None:
        super().__init__(text)
        self.statements = statements


class Membership:
    """This device in one mesh.

    keys: of the mesh. device: None for one that is made up for this process. statements: the roster as it was kept.
    worked: devices that were seen to work. are_checked: this device has kept these statements itself. check: verifies a
    signature.
    """

    def __init__(
        self,
        keys: MeshKeys,
        device: DeviceKey | None = None,
        statements: Iterable[AnyStatement] = (),
        worked: Worked | None = None,
        are_checked: bool = False,
        check: Check = is_signed,
    ) -> None:
        self.keys = keys
        self.device = device or DeviceKey.of(token_bytes(32))
        self.worked = worked or Worked()
        own = self.device.public
        self.roster = Roster(keys, statements, check, self.worked, own, are_checked)
        # Called to write a changed roster, and a join code that an owner has changed to.
        self.on_change: Callable[[], None] = lambda: None
        self.on_code: Callable[[str], None] = lambda code: None
        # The name under which this device is in; "" for an observer. is_known: other members have let it in under this
        # name, in an earlier start or by now. A name that nobody has accepted is not kept, since it may be another
        # device's.
        self.name = ""
        self.is_known = False
        self._visitors: OrderedDict[str, Enrolled] = OrderedDict()
        self._visiting: dict[bytes, bytes] = {}  # link key -> device of an observer
        # name -> its last few starts, each with its latest introduction without the chosen host.
        self._said: OrderedDict[str, dict[int, PeerInfo]] = OrderedDict()

    @property
    def door_key(self) -> bytes:
        """The key that holders of the join code show at the door: 32 bytes."""
        return z85.decode(self.keys.client_public)

    def join(self, peer_id: str) -> None:
        """Join the mesh under this name. Raises ConfigError if this device is locked out, or the roster refuses it."""
        if why := self.why_out():
            raise ConfigError(f"mesh {self.keys.shown}: {why}")
        holder = self.roster.enrolled(peer_id)
        self.name = peer_id
        self.is_known = self.is_owner() or (holder is not None and holder.device == self.device.public)
        try:
            self.roster.add(self.enrol(peer_id))
        except RemoteProtocolError as error:
            raise ConfigError(f"mesh {self.keys.shown}: {error}") from None

    def withdraw(self) -> None:
        """Give up this device's name: it belongs to another one."""
        self.is_known = False
        self.roster.withdraw(self.device.public, self.name)

    def statements(self) -> tuple[AnyStatement, ...]:
        """Return the roster to keep: all of it but a name of this device's that nobody has let in yet."""
        own = (self.device.public, "" if self.is_known else self.name)
        return tuple(
            each
            for each in self.roster.statements()
            if not (isinstance(each, Enrolled) and (each.device, each.peer_id) == own)
        )

    # -- about this device --------------------------------------------------------------------------------------------

    def enrol(self, peer_id: str) -> Enrolled:
        """State that this device is in the mesh under this name; any holder of the code can enrol its own device."""
        bare = Enrolled(self.device.public, peer_id, self.device.link_key)
        claim = claim_of(self.keys.mesh_id, bare)
        return msgspec.structs.replace(
            bare, admitted=self.keys.admitting.sign(claim), signature=self.device.signing.sign(claim)
        )

    def introduce(self, me: PeerInfo, link_port: int, hosts: Sequence[str], now_ms: int) -> PeerInfo:
        """Return `me`, signed. hosts: the addresses it listens at, the likeliest first."""
        proof = Proof(self.enrol(me.peer_id), link_port, tuple(hosts[:MAX_HOSTS]), now_ms)
        signature = self.device.signing.sign(where_claim(self.keys.mesh_id, me, proof))
        return msgspec.structs.replace(me, proof=msgspec.structs.replace(proof, signature=signature))

    def found(self) -> OwnerNamed:
        """State that this device founded the mesh."""
        return self.name_owner(self.device.public)

    def name_owner(self, device: bytes) -> OwnerNamed:
        """State that a device owns the mesh; counts if this device does."""
        return self._sign(OwnerNamed(device, self.device.public))

    def revoke(self, device: bytes, now_ms: int, reason: str) -> tuple[DeviceRevoked, ...]:
        """State that a device is out for ever; counts if this one owns the mesh. Raises ConfigError if room is lacking.

        This device repeats revocations that would otherwise become void: those by the device itself, and by owners that
        it alone has named. It repeats only as many as one message has room for: devices that worked here first, then
        the earliest.
        """
        name = next((each.peer_id for each in self.roster.members() if each.device == device), "")
        first = self._sign(DeviceRevoked(device, self.device.public, now_ms, name, reason))
        trial = Roster(self.keys, self.roster.statements(), worked=self.worked, are_checked=True)
        try:
            trial.add(first)
        except RemoteProtocolError as error:
            raise ConfigError(f"mesh {self.keys.shown}: {error}") from None
        void = [each for each in self.roster.revocations() if not trial.is_revoked(each.device)]
        void.sort(key=lambda each: (not self.worked.has(each.device), each.at))
        room = min(STATEMENTS_A_MESSAGE - 1, trial.room_to_revoke(self.device.public))
        again = [msgspec.structs.replace(each, by=self.device.public, signature=b"") for each in void[:room]]
        return (first, *(self._sign(each) for each in again))

    def who_stays(self, named: Iterable[bytes] = (), everybody: bool = False) -> list[bytes]:
        """Return the devices that a changed code keeps: owners, those that its owner names, and those that worked here.

        everybody: also those that have never worked. Raises ConfigError for more than a statement can name.
        """
        roster = self.roster
        members = {each.device for each in roster.members()}
        high = sorted(each for each in roster.owners() if roster.stands_high(each))
        wanted = dict.fromkeys([self.device.public, *named, *high])
        if everybody:
            wanted |= dict.fromkeys(sorted(members))
        if len(wanted) > MAX_KEPT:
            raise ConfigError(
                f"mesh {self.keys.shown}: {len(wanted)} devices are to stay, and a new code can keep {MAX_KEPT}; "
                "name those that matter with --keep"
            )
        worked = (device for device, _ in reversed(tuple(self.worked)) if device in members)
        wanted |= dict.fromkeys([*worked, *sorted(roster.owners())])
        return list(wanted)[:MAX_KEPT]

    def change_code(self, code_hash: bytes, named: Iterable[bytes] = (), everybody: bool = False) -> CodeChanged:
        """State that the mesh has another code; counts if this device owns it. Raises ConfigError; see `who_stays`."""
        number, last = self.roster.next_change(), self.roster.change()
        if number > MAX_CHANGE:
            by = fingerprint(last.by) if last else "an owner"
            raise ConfigError(
                f"mesh {self.keys.shown}: {by} has used up all changes of its code: revoke that one first"
            )
        kept = sorted(self.who_stays(named, everybody))
        return self._sign(CodeChanged(number, code_hash, tuple(kept), self.device.public))

    def why_out(self) -> str:
        """Return the reason why this device is locked out; "" if it is not."""
        for each in self.roster.revocations():
            if each.device == self.device.public:
                return f"an owner of the mesh has revoked this device{': ' if each.reason else ''}{each.reason}"
        return ""

    def is_owner(self) -> bool:
        """Return True if this device owns the mesh."""
        return self.device.public in self.roster.owners()

    def is_kept(self) -> bool:
        """Return True if the last change of the join code kept this device."""
        return self.roster.is_kept(self.device.public)

    def note_worked(self, peer_ids: Iterable[str]) -> bool:
        """Note that the devices of these names have just worked; return True if that is news of one of them."""
        return self.roster.note_worked(peer_ids)

    def _sign(self, bare: _Owned) -> _Owned:
        """Sign a statement. Raises ConfigError if others could not read it."""
        signed = msgspec.structs.replace(bare, signature=self.device.signing.sign(claim_of(self.keys.mesh_id, bare)))
        encode_readable(signed, type(bare), f"mesh {self.keys.shown}: a statement")
        return signed

    # -- about others -------------------------------------------------------------------------------------------------

    def admit(self, info: PeerInfo, spare: Container[str] = ()) -> bool:
        """Check a peer's introduction; return False if a later one is known. Raises RemoteProtocolError.

        spare: names that make no place for it in a full roster.
        """
        proof = info.proof
        if proof is None:
            raise RemoteProtocolError(f"{info.peer_id} shows no proof of its identity")
        enrolled = proof.enrolled
        if enrolled.peer_id != info.peer_id or info.host not in proof.hosts:
            raise RemoteProtocolError(f"{info.peer_id} shows the proof of {enrolled.peer_id} at {proof.hosts[0]}")
        before = self._said.get(info.peer_id, {}).get(info.incarnation)
        if before is not None and before.proof is not None and proof.serial < before.proof.serial:
            return False
        why = ""
        try:
            self.roster.check(enrolled)
        except ForgedError:
            raise
        except RemoteProtocolError as error:
            why = str(error)
        holder = self.roster.enrolled(info.peer_id) or self._visitors.get(info.peer_id)
        is_other = holder is not None and holder.device != enrolled.device
        if not why and holder is not None and is_other and not self.roster.has_given_up(holder.device, info.peer_id):
            why = (
                f"{info.peer_id} is the name of another device: start the new one with --name, "
                f"or have an owner revoke the old one"
            )
        if not is_signed(enrolled.device, where_claim(self.keys.mesh_id, info, proof), proof.signature):
            raise ForgedError(f"{info.peer_id} has not signed where it is said to be")
        if why:
            raise NotLetInError(why, self.roster.against(enrolled))
        self._note(info)
        if info.role is Role.OBSERVER:
            self._visit(enrolled)
        else:
            self.roster.add(enrolled, in_person=True, spare=spare)
        return True

    def knows(self, info: PeerInfo) -> bool:
        """Return True if just this was checked before and still counts: it need not be checked again."""
        said = self._said.get(info.peer_id, {}).get(info.incarnation)
        if info.proof is None or info.host not in info.proof.hosts or said != _anywhere(info):
            return False
        return self.may_speak(info.proof.enrolled.link_key, info.peer_id)

    def is_visitor(self, peer_id: str) -> bool:
        """Return True if a peer is no member: an observer."""
        return self.roster.enrolled(peer_id) is None

    def device_of(self, link_key: bytes) -> bytes | None:
        """Return the device that shows this key, an observer's too; None if it is not in."""
        device = self.roster.device_of(link_key)
        if device is not None:
            return device
        found = self._visiting.get(link_key)
        return None if found is None or self.roster.is_revoked(found) else found

    def device_called(self, peer_id: str) -> bytes | None:
        """Return the device of this name, an observer's too; None if there is none."""
        enrolled = self.roster.enrolled(peer_id) or self._visitors.get(peer_id)
        return None if enrolled is None else enrolled.device

    def may_speak(self, link_key: bytes, peer_id: str) -> bool:
        """Return True if messages from a connection that showed this key count as this peer's."""
        enrolled = self.roster.enrolled(peer_id) or self._visitors.get(peer_id)
        return enrolled is not None and enrolled.link_key == link_key and not self.roster.is_revoked(enrolled.device)

    def is_out(self, info: PeerInfo) -> bool:
        """Return True if the device of this introduction is out, even if another one has its name now."""
        if info.proof is not None and self.roster.is_revoked(info.proof.enrolled.device):
            return True
        return self.roster.enrolled(info.peer_id) is None and info.peer_id not in self._visitors

    def _visit(self, enrolled: Enrolled) -> None:
        self._visitors[enrolled.peer_id] = enrolled
        self._visitors.move_to_end(enrolled.peer_id)
        while len(self._visitors) > MAX_VISITORS:
            self._visitors.popitem(last=False)
        self._visiting = {each.link_key: each.device for each in self._visitors.values()}

    def _note(self, info: PeerInfo) -> None:
        starts = self._said.setdefault(info.peer_id, {})
        self._said.move_to_end(info.peer_id)
        starts.pop(info.incarnation, None)
        starts[info.incarnation] = _anywhere(info)
        if len(starts) > _STARTS:
            del starts[min(starts)]
        if len(self._said) > _MAX_SAID:
            self._said.popitem(last=False)


def _anywhere(info: PeerInfo) -> PeerInfo:
    """Return a peer without the host that was chosen for it."""
    return msgspec.structs.replace(info, host="")
