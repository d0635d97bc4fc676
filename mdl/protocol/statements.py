"""Signed statements about the devices of a mesh, and the proof that travels with a peer's address.

A device is its Ed25519 key; its connections show its link key (CURVE, X25519). Statements are data: checked by
`mdl.transport.trust.roster`, made by `mdl.transport.trust.keys`. The signature of a statement is over its
`claim_of`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import MAX_INCARNATION, MAX_MEMBERS, Host, PeerId, SomePeerId, Text, check_reachable

Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
# A signature, or none yet.
SomeSignature: TypeAlias = Annotated[bytes, Meta(max_length=64)]
Moment: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INCARNATION)]
CodeHash: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
# Addresses of one device: more interfaces than a person's device has in use.
MAX_HOSTS = 8
# Devices that a changed code keeps.
MAX_KEPT = MAX_MEMBERS
# The largest number of a change of the code.
MAX_CHANGE = 1 << 31
# Bounds of a roster, some 250 bytes each: enrolments; the founder's statements; those of all other owners together.
MAX_ENROLLED = 3 * MAX_MEMBERS
MAX_FOUNDERS = 2 * MAX_MEMBERS
MAX_OWNERS = 2 * MAX_MEMBERS
# Revocations that an owner named by the founder may state even if others have used up the room, and of all such owners.
RESERVED_REVOCATIONS = 64
MAX_RESERVED = 3 * MAX_MEMBERS
# Changes of the code, one of each owner, 35 KB each at most: of owners that the founder named, and of all others.
MAX_CHANGES, MAX_LOWER_CHANGES = 64, 8
MAX_STATEMENTS = MAX_ENROLLED + MAX_FOUNDERS + MAX_OWNERS + MAX_RESERVED + MAX_CHANGES + MAX_LOWER_CHANGES + 1
# Names that were seen to work.
MAX_WORKED = MAX_ENROLLED
# Statements in one message: some 16 KB, so that they pass between chunks on any link.
STATEMENTS_A_MESSAGE = 64


class Statement(msgspec.Struct, frozen=True, tag=True):
    """Base of the statements in a roster."""


class Enrolled(Statement, frozen=True):
    """A device is in the mesh, under this name; any holder of the join code can state that of its own device.

    device: its key.
    peer_id: the name.
    link_key: the key that its connections show.
    admitted: signed with the join code's key.
    signature: the device's own.
    """

    device: Key
    peer_id: PeerId
    link_key: Key
    admitted: SomeSignature = b""
    signature: SomeSignature = b""


class OwnerNamed(Statement, frozen=True):
    """A device owns the mesh. The founder names itself: the join code tells its key.

    owner: its key.
    by: the owner that states it.
    signature: of `by`.
    """

    owner: Key
    by: Key
    signature: SomeSignature = b""


class DeviceRevoked(Statement, frozen=True):
    """A device is locked out for ever.

    device: its key.
    by: the owner that states it.
    at: milliseconds since 1970, by the owner's clock; only shown.
    name: the device's name; only shown.
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
    """The mesh has another join code; devices admitted by an earlier one are out, except those named.

    number: one more than the last change's.
    code_hash: identifies the new code for devices that are given it.
    kept: keys of the devices that stay.
    by: the owner that states it.
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
    """A signed proof of a peer's address and description, passed on with them.

    enrolled: its device's enrolment in the mesh, under its name.
    link_port: the port that takes members' messages.
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
    """Return the bytes to sign: the id of the mesh, and the statement without signatures.

    Both signatures of an `Enrolled` are over the same bytes. The device's own states that the name and the link key are
    its.
    """
    blank = (
        msgspec.structs.replace(statement, admitted=b"", signature=b"")
        if isinstance(statement, Enrolled)
        else msgspec.structs.replace(statement, signature=b"")
    )
    return b"mdl statement 1\0" + msgspec.msgpack.encode((mesh_id, blank))
