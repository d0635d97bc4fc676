"""What others say of who is in the mesh: statements, introductions and rosters, true, changed and made up.

Liars have the join code and devices of their own, and no owner's key: whatever they say, nobody is out, nobody owns the
mesh but its founder, and no name goes from one device to another.
"""

from __future__ import annotations

import math
import random
from typing import Any

from mdl.errors import MdlError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import PeersKnown
from mdl.protocol.statements import MAX_STATEMENTS, AnyStatement, CodeChanged, DeviceRevoked, Enrolled, OwnerNamed
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.standing import LinkStanding
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.wire.codec import RosterTold, decode, encode
from tests.fuzz.hostile import Hostile, info_of, revocation
from tests.fuzz.machines import Misbehaved

FOUNDER, ANN, BOB, MALLORY, SYBIL = (DeviceKey.of(bytes([number]) * 32) for number in range(1, 6))
KEYS = MeshKeys.from_code(new_join_code("home", bytes(range(19)), founder_mark(FOUNDER.public)))
_KINDS: tuple[type[Any], ...] = (Enrolled, OwnerNamed, DeviceRevoked, CodeChanged)
_SAYS = Contributor("mallory", 1)


class TrustCase:
    """step() has a device that knows its mesh hear one message of a liar, by its link or at the door."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hostile = Hostile(self.rng)
        self._now = 0.0
        founder = Membership(KEYS, FOUNDER)
        self._members = {name: Membership(KEYS, key) for name, key in (("ann", ANN), ("bob", BOB))}
        self._liars = [Membership(KEYS, key) for key in (MALLORY, SYBIL)]
        me = self._members["bob"]
        me.join("bob")
        for statement in (founder.found(), self._members["ann"].enrol("ann")):
            me.roster.add(statement)
        self._me, self._standing = me, LinkStanding("bob", me, lambda: ["ann", "mallory"], tuple, 0.0)
        self._told: list[AnyStatement] = [*me.roster.statements(), *self._lies()]
        for statement in self._told:
            self.hostile.learn(statement)

    def step(self) -> bool:
        """One message; whether it was refused."""
        rng = self.rng
        self._now += rng.choice((0.0, 0.001, 0.1, 5.0))
        source = rng.choice(("", "mallory", f"x{rng.randrange(3000)}"))
        before = self._me.roster.digest
        try:
            if rng.random() < 0.3:
                self._standing.admits(self._info(), source, self._now)
            else:
                self._standing.hear(source, self._roster(), self._now)
                self._standing.learn_code("home:" + "2" * rng.randrange(40))
        except RemoteProtocolError as error:
            if not str(error).isprintable():
                raise Misbehaved(f"{error!r}") from None
        self._check()
        return self._me.roster.digest == before

    def _lies(self) -> list[AnyStatement]:
        liar, victims = self._liars[0], (FOUNDER, ANN, BOB)
        false: list[AnyStatement] = [liar.found(), liar.change_code(bytes(16))]
        for victim in victims:
            false += [revocation(liar, victim.public, 1, "mine"), liar.name_owner(victim.public)]
        return [*false, *(each.enrol(name) for each in self._liars for name in ("ann", "mallory"))]

    def _roster(self) -> RosterTold:
        rng, hostile = self.rng, self.hostile
        statements: list[AnyStatement] = []
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            chance = rng.random()
            if chance < 0.3:
                statements.append(rng.choice(self._told))
            elif chance < 0.7:
                statements.append(hostile.change(rng.choice(self._told)))
            elif chance < 0.8:
                statements.append(rng.choice(self._liars).enrol(f"x{rng.randrange(5000)}"))
            else:
                statements.append(hostile.make(info_of(rng.choice(_KINDS))))
        told = RosterTold(rng.choice((bytes(16), self._me.roster.digest)), tuple(statements), rng.random() < 0.5)
        return self._sent(told)  # type: ignore[no-any-return]

    def _info(self) -> PeerInfo:
        rng = self.rng
        name = rng.choice(("ann", "bob", "mallory", f"x{rng.randrange(100)}"))
        by = rng.choice((*self._liars, *self._members.values()))
        role, port = rng.choice(list(Role)), rng.randrange(1, 9)
        info = PeerInfo(name, rng.randrange(4), role, "127.0.0.1", port)
        if by in self._liars or rng.random() < 0.2:
            info = by.introduce(info, port, ["127.0.0.1"], rng.randrange(3))
        info = self.hostile.change(info) if rng.random() < 0.5 else info
        return self._sent(PeersKnown((info,))).peers[0]  # type: ignore[no-any-return]

    def _sent(self, said: Any) -> Any:
        try:
            return decode(encode(_SAYS, said)).body
        except RemoteProtocolError:
            raise
        except MdlError as error:
            raise RemoteProtocolError(str(error)) from None

    def _check(self) -> None:
        roster = self._me.roster
        if roster.owners() != {FOUNDER.public} or roster.revocations() or roster.is_code_old:
            raise Misbehaved(f"owned by {len(roster.owners())}, {len(roster.revocations())} out")
        for name, key in (("ann", ANN), ("bob", BOB)):
            enrolled = roster.enrolled(name)
            if enrolled is None or enrolled.device != key.public:
                raise Misbehaved(f"{name} is {enrolled}")
        if len(roster.statements()) > MAX_STATEMENTS or not math.isfinite(self._standing.deadline() or 0.0):
            raise Misbehaved(f"{len(roster.statements())} statements")
        if self.rng.random() < 0.01:
            decode(encode(_SAYS, RosterTold(roster.digest, roster.statements()[:64])))
