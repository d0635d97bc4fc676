"""Signed statements about the devices of a mesh, and the proof that travels with where a peer is.

A device is its Ed25519 key; its link key (CURVE, X25519) is what its connections show. Statements are data: checked by
`mdl.transport.trust.roster`, made by `mdl.transport.trust.device_key`. What is signed is `claim_of` a statement.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.addresses import Host, check_reachable
from mdl.bounds import MAX_INCARNATION, MAX_MEMBERS, PeerId, SomePeerId, Text

Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
# One that is yet to be signed.
SomeSignature: TypeAlias = Annotated[bytes, Meta(max_length=64)]
Moment: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INCARNATION)]
CodeHash: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
# Addresses of one device: more interfaces than a person's device has in use.
MAX_HOSTS = 8
# Devices that a changed code keeps.
MAX_KEPT = MAX_MEMBERS
# Changes of the code that are ever numbered.
MAX_CHANGE = 1 << 31
# What a roster holds, some 250 bytes each: enrolments; what the founder states; what all other owners state together.
MAX_ENROLLED = 3 * MAX_MEMBERS
MAX_FOUNDERS = 2 * MAX_MEMBERS
MAX_OWNERS = 2 * MAX_MEMBERS
# Revocations that an owner whom the founder named may state whatever room others have used up, and of all such.
RESERVED_REVOCATIONS = 64
MAX_RESERVED = 3 * MAX_MEMBERS
# Changes of the code, one of each owner, 35 KB each at most: of owners whom the founder named, and of all others.
MAX_CHANGES, MAX_LOWER_CHANGES = 64, 8
MAX_STATEMENTS = MAX_ENROLLED + MAX_FOUNDERS + MAX_OWNERS + MAX_RESERVED + MAX_CHANGES + MAX_LOWER_CHANGES + 1
# Names that were seen to work.
MAX_WORKED = MAX_ENROLLED
# Statements in one message: some 16 KB, so that they pass between chunks on any link.
STATEMENTS_A_MESSAGE = 64


class Statement(msgspec.Struct, frozen=True, tag=True):
    """Base of what a roster holds."""


class Enrolled(Statement, frozen=True):
    """A device is in the mesh, under this name; whoever has the join code can say so of a device of its own.

    device: its key.
    peer_id: the name.
    link_key: what its connections show.
    admitted: signed with the join code's key.
    signature: the device's own.
    """

    device: Key
    peer_id: PeerId
    link_key: Key
    admitted: SomeSignature = b""
    signature: SomeSignature = b""


class OwnerNamed(Statement, frozen=True):
    """A device owns the mesh. The founder, whose key the join code tells, names itself.

    owner: its key.
    by: the owner who says so.
    signature: of `by`.
    """

    owner: Key
    by: Key
    signature: SomeSignature = b""


class DeviceRevoked(Statement, frozen=True):
    """A device is locked out for ever.

    device: its key.
    by: the owner who says so.
    at: milliseconds since 1970, by the owner's clock; only told.
    name: that it had; only told.
    reason: in the owner's words.
    signature: of `by`.
    """

    device: Key
    by: Key
    at: Moment
    name: SomePeerId = ""
    reason: Text = ""
    signature: SomeSignature = b""


class CodeChanged(Statement, frozen=True):
    """The mesh has another join code; devices that were admitted by an earlier one are out, but for those named.

    number: one more than the last change's.
    code_hash: tells the new code to who is given it.
    kept: keys of the devices that stay.
    by: the owner who says so.
    signature: of `by`.
    """

    number: Annotated[int, Meta(ge=1, le=MAX_CHANGE)]
    code_hash: CodeHash
    kept: Annotated[tuple[Key, ...], Meta(max_length=MAX_KEPT)]
    by: Key
    signature: SomeSignature = b""


AnyStatement: TypeAlias = Enrolled | OwnerNamed | DeviceRevoked | CodeChanged
Statements: TypeAlias = Annotated[tuple[AnyStatement, ...], Meta(max_length=STATEMENTS_A_MESSAGE)]


class Proof(msgspec.Struct, frozen=True):
    """That a peer is where and what it says: signed by its device, and passed on with it.

    enrolled: that its device is in the mesh, under its name.
    link_port: where it takes members' words.
    hosts: IP addresses that it listens at, the likeliest first.
    serial: milliseconds since 1970 when it was signed; of two the later counts.
    signature: the device's, over all that is said of the peer but the one host of them that was chosen.
    """

    enrolled: Enrolled
    link_port: Annotated[int, Meta(ge=1, le=65535)]
    hosts: Annotated[tuple[Host, ...], Meta(min_length=1, max_length=MAX_HOSTS)]
    serial: Moment
    signature: SomeSignature = b""

    def __post_init__(self) -> None:
        """Raise ValueError unless all hosts are addresses of machines: a decoder refuses the message then.

        Any of them may be the one that is dialled (`mdl.transport.discovery.interfaces.choose_host`).
        """
        for host in self.hosts:
            check_reachable(host)


def claim_of(mesh_id: str, statement: AnyStatement) -> bytes:
    """What is signed: the statement without signatures, and of which mesh it speaks.

    Of an `Enrolled` both signatures are over the same; a device's own says that the name and the link key are its.
    """
    blank = (
        msgspec.structs.replace(statement, admitted=b"", signature=b"")
        if isinstance(statement, Enrolled)
        else msgspec.structs.replace(statement, signature=b"")
    )
    return b"mdl statement 1\0" + msgspec.msgpack.encode((mesh_id, blank))
