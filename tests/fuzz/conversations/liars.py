"""What a liar says next, by its role: true messages at the wrong moment, changed ones, and made-up ones.

It hears what honest processes say to one another (`Scene.heard`), knows where each victim stands, and says all of it
under its own keys: what it signs is signed. Everything follows from the generator that is passed in.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, get_args

import msgspec

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import CARRIERS, PACKED, PROTOCOL_VERSION, SEGMENTS, Hello, PeersKnown, Said
from mdl.protocol.round_messages import AgentPresent
from mdl.protocol.statements import MAX_HOSTS, AnyStatement, CodeChanged, DeviceRevoked, Enrolled, Proof, claim_of
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import code_hash, new_join_code, where_claim
from mdl.transport.trust.membership import Membership
from mdl.transport.wire.codec import (
    SMALLEST_CHUNK_BYTES,
    Body,
    ChunkSent,
    ChunksWanted,
    CodeTold,
    Envelope,
    FlowAnswered,
    FlowOffered,
    RosterTold,
    TransferDropped,
    TransferEnded,
    TransferOffered,
    decode,
)
from tests.fuzz.conversations.process import Process
from tests.fuzz.conversations.scenes import (
    CODE_HOLDER,
    LIAR_ID,
    LIARS,
    MEMBER,
    OWNER,
    THE_CLOUD,
    MeshScene,
    Move,
    Scene,
    _OnLinks,
)
from tests.fuzz.hostile import Hostile, damage, forced, info_of

KINDS: tuple[type[Any], ...] = tuple(kind for kind in get_args(Said) if kind not in (Hello, PeersKnown))
_TALK = (ChunksWanted, ChunkSent, TransferEnded, TransferDropped)
_ORDERS = tuple(kind for kind in KINDS if "term" in kind.__struct_fields__)
_OF_CLOUD = tuple(kind for kind in KINDS if "pupil" in kind.__struct_fields__)
_OF_SHARING = tuple(kind for kind in KINDS if kind.__module__.startswith("mdl.protocol.sharing"))
_OF_MESH = tuple(kind for kind in KINDS if kind not in _OF_CLOUD and kind not in _OF_SHARING)
_STATEMENTS = get_args(AnyStatement)
# Virtual seconds between two messages: mostly none, so that they meet the same state.
_WAITS = (0.0,) * 40 + (0.001,) * 10 + (0.005,) * 6 + (0.02,) * 4 + (0.1,)
_LONG_WAITS = (1.0, 2.5, 6.0)
_encode = msgspec.msgpack.Encoder().encode
# Codes that an owner changes to.
_CODES = 3
# Enrolments of made-up names that are kept, signed.
_SIGNED = 4_000


def _signed(membership: Membership, statement: Any) -> Any:
    """A statement of this device's, whether or not it may say so."""
    signature = membership.device.signing.sign(claim_of(membership.keys.mesh_id, statement))
    return msgspec.structs.replace(statement, signature=signature)


class Liar:
    """draw() gives its next message. scene: its victims, and what it hears."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.role = scene, scene.role
        self.rng = random.Random(f"{seed} liar {scene.role}")
        self.hostile = Hostile(self.rng)
        self._plan: deque[Move] = deque()
        self._bodies: deque[Any] = deque(maxlen=300)
        self._learned = 0
        self._transfers: deque[tuple[int, int]] = deque([(1, 64)], maxlen=8)
        self._serial = 0
        self._enrolled: dict[tuple[bytes, bytes, str], Enrolled] = {}
        self._dense = self.rng.choice((0.0, 0.5, 0.8))
        self._memberships: list[Membership] = []
        if isinstance(scene, _OnLinks):
            self._memberships = [Membership(scene.keys, device, scene.statements) for device in LIARS]
            revoked = DeviceRevoked(LIARS[1].public, LIARS[0].public, 3, "", "gone")
            for statement in (*scene.statements, _signed(self._memberships[0], revoked)):
                self.hostile.learn(statement)
            self._codes = [
                new_join_code("home", bytes([number]) * 19, scene.keys.mark) for number in range(1, _CODES + 1)
            ]
        for peer in ("p0", "p1", LIAR_ID, "ann", "bob", "cloud", "giver", "taker"):
            self.hostile.seen.setdefault("peer_id", deque(maxlen=64)).append(peer)

    def draw(self) -> Move | None:
        """None if there is nobody to lie to."""
        if self._plan:
            return self._plan.popleft()
        victims = self.scene.victims()
        if not victims:
            return None
        self._listen()
        target = self.rng.choice(victims)
        while True:
            try:
                if move := self._draw(target):
                    return move
            except (LocalProtocolError, RemoteProtocolError, OverflowError, ValueError, msgspec.MsgspecError):
                continue  # made up beyond what can be written

    def _more(self) -> bool:
        """Whether what comes next comes in the same moment: a loop takes up to 64 messages at once."""
        return self.rng.random() < self._dense

    def _wait(self) -> float:
        rng = self.rng
        return rng.choice(_LONG_WAITS) if rng.random() < 0.0005 else rng.choice(_WAITS)

    def _listen(self) -> None:
        heard = self.scene.heard
        while heard and self._learned < len(heard) + 50 and self.rng.random() < 0.3:
            frame = self.rng.choice(heard)
            try:
                body = decode(frame).body
            except RemoteProtocolError:
                break
            self._bodies.append(body)
            self.hostile.learn(body)
            break

    def _draw(self, target: Process) -> Move | None:
        if self.role == THE_CLOUD:
            return self._from_cloud(target)
        if not isinstance(self.scene, _OnLinks):
            return self._to_hub(target)
        if self.role == CODE_HOLDER or self.rng.random() < 0.07:
            return self._at_door(target)
        return self._by_link(target)

    # -- to a mesh ----------------------------------------------------------------------------------------------------

    def _at_door(self, target: Process) -> Move:
        rng = self.rng
        number = rng.randrange(len(LIARS)) if self.role == CODE_HOLDER else 0
        chance = rng.random()
        if chance < 0.6:
            info = self._introduction(number, target)
            sender = Contributor(info.peer_id, info.incarnation) if rng.random() < 0.95 else self._sender(target)
            nonce = b"" if rng.random() < 0.8 else rng.randbytes(16)
            body: Any = Hello(info, nonce, b"" if rng.random() < 0.9 else rng.randbytes(16))
            if rng.random() < 0.1:
                body = self.hostile.change(body)
        elif chance < 0.85:
            sender, body = self._sender(target), self._roster(number, target)
        elif chance < 0.95:
            sender, body = self._sender(target), self._any(target)
        else:
            return self._damaged(target, "door")
        return self._move(target, "door", -1, sender, body)

    def _by_link(self, target: Process) -> Move | None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.12 and (move := self._overtake(target)):
            return move
        sender = self._sender(target)
        if chance < 0.14:
            return self._lead(target)
        if chance < 0.24:
            return self._bulk(target, sender)
        if chance < 0.29:
            return self._move(target, "link", 0, sender, self._roster(0, target))
        if chance < 0.34:
            infos = tuple(
                self._introduction(rng.randrange(len(LIARS)), target) for _ in range(rng.choice((1, 1, 2, 9)))
            )
            body: Any = PeersKnown(infos) if rng.random() < 0.6 else Hello(infos[0])
            return self._move(target, "link", 0, sender, body)
        if chance < 0.36:
            body = self.hostile.make(info_of(rng.choice((FlowOffered, FlowAnswered))))
            return self._move(target, "link", 0, sender, body)
        if chance < 0.38:
            return self._damaged(target, "link")
        if chance < 0.39:
            return self._datagram(target)
        return self._move(target, "link", 0, sender, self._any(target))

    def _any(self, target: Process) -> Any:
        """Something that a machine hears: heard before, changed, or made up; mostly as if it was about this moment."""
        rng, hostile = self.rng, self.hostile
        chance = rng.random()
        if self._bodies and chance < 0.7:
            body = rng.choice(self._bodies)
            if chance > 0.15:
                body = hostile.change(body)
        else:
            body = hostile.make(info_of(rng.choice(self._kinds())))
        return self._as_now(body, target) if rng.random() < 0.7 else body

    def _kinds(self) -> tuple[type[Any], ...]:
        if self.rng.random() < 0.05:
            return KINDS
        return _OF_MESH if isinstance(self.scene, MeshScene) else _OF_SHARING

    def _as_now(self, body: Any, target: Process) -> Any:
        """About the round, the term and the model that this victim has now."""
        machine: Any = target.machine.machine
        trainer, succession = getattr(machine, "trainer", None), getattr(machine, "succession", None)
        if succession is None:
            return body
        rng, names = self.rng, body.__struct_fields__
        now: dict[str, Any] = {"term": succession.term}
        if trainer is not None:
            attempt = trainer.attempt()
            now |= {
                "open_term": attempt[1],
                "attempt": attempt[1],
                "round_id": trainer.round_id + rng.choice((0, 1, 1, 1)),
                "lineage": trainer.lineage,
                "base": trainer.base,
                "base_digest": trainer.digest,
                "digest": trainer.digest,
                "size": trainer.parameters.size,
                "receiver": target.me,
            }
            part = trainer.part
            if part is not None and part.given:
                now["hop_id"] = part.given[0]
        changes = {name: value for name, value in now.items() if name in names and rng.random() < 0.9}
        changes = {name: value for name, value in changes.items() if isinstance(value, type(getattr(body, name)))}
        return msgspec.structs.replace(body, **changes)

    def _sender(self, target: Process) -> Contributor:
        rng = self.rng
        if rng.random() < 0.95:
            liar = self.scene.process(LIAR_ID)
            return liar.me if liar is not None else Contributor(LIAR_ID, 1)
        others = [each.me for each in self.scene.world.processes]
        return rng.choice((*others, Contributor(LIAR_ID, rng.randrange(4)), Contributor(f"x{rng.randrange(3000)}", 1)))

    def _introduction(self, number: int, target: Process) -> PeerInfo:
        """Signed by a device of the liar's: its hosts are what it likes."""
        rng = self.rng
        membership = self._memberships[number]
        name = LIAR_ID if number == 0 else f"x{number}"
        if rng.random() < 0.1:
            name = rng.choice(("p0", "p1", "agent", f"x{rng.randrange(3000)}"))
        hosts = [self.hostile.host() for _ in range(rng.choice((1, 1, 2, 3, MAX_HOSTS)))]
        if rng.random() < 0.6:
            hosts[0] = target.host
        self._serial += 1
        incarnation = rng.choice((1, 1, 2, self._serial, 1 << 62))
        port = rng.choice((9, 9, 1, 65535, 20001, target.links.me.port))
        role = rng.choice((Role.TRAINER, Role.TRAINER, Role.OBSERVER, Role.AGENT))
        schema = rng.choice(("schema", "", "s"))
        info = forced(PeerInfo(name, incarnation, role, "127.0.0.1", port, schema), {"host": hosts[0]})
        serial = rng.choice((self._serial, int(1e12), 1 << 62, 0))
        proof = Proof(self._enrol(membership, name), rng.choice((9, port, 65535)), ("127.0.0.1",), serial)
        proof = forced(proof, {"hosts": tuple(hosts)})
        signature = membership.device.signing.sign(where_claim(membership.keys.mesh_id, info, proof))
        signed = forced(info, {"proof": forced(proof, {"signature": signature})})
        if rng.random() < 0.15:
            signed = self.hostile.change(signed)
        return signed

    def _enrol(self, membership: Membership, name: str) -> Enrolled:
        """As it was signed first: to sign takes as long as all else here."""
        key = membership.device.public, membership.keys.code_hash, name
        if key not in self._enrolled:
            if len(self._enrolled) >= _SIGNED:
                self._enrolled.clear()
            self._enrolled[key] = membership.enrol(name)
        return self._enrolled[key]

    def _roster(self, number: int, target: Process) -> Any:
        """Statements of the liar's: enrolments of devices that it makes up, and what only an owner may say."""
        rng, hostile = self.rng, self.hostile
        membership = self._memberships[number]
        roster = target.links.standing.membership.roster
        if self.role == OWNER and rng.random() < 0.02:
            return CodeTold(rng.choice(self._codes))
        statements: list[Any] = []
        for _ in range(rng.choice((0, 1, 1, 2, 6))):
            match rng.randrange(8):
                case 0 | 1:
                    statements.append(self._enrol(rng.choice(self._memberships), f"x{rng.randrange(3000)}"))
                case 2:
                    statements.append(membership.name_owner(rng.choice(self._memberships).device.public))
                case 3:
                    # An owner mostly locks out what it made up itself: whoever is out is not there to be lied to.
                    victim = rng.randbytes(32)
                    if rng.random() < 0.01 or self.role != OWNER:
                        victim = rng.choice([each.device for each in roster.members()] or [victim])
                    revoked = DeviceRevoked(victim, membership.device.public, rng.randrange(1 << 40), "", "lost")
                    statements.append(_signed(membership, revoked))
                case 4 if rng.random() < (0.03 if self.role == OWNER else 1.0):
                    wanted = code_hash(rng.choice(self._codes))
                    kept = tuple(sorted(each.device for each in roster.members()))
                    kept = kept if rng.random() < 0.9 else kept[:1]
                    changed = CodeChanged(roster.next_change(), wanted, kept, membership.device.public)
                    statements.append(_signed(membership, changed))
                case 5:
                    known = roster.statements()
                    statements.append(rng.choice(known))
                case 6:
                    statements.append(hostile.make(info_of(rng.choice(_STATEMENTS))))
                case _:
                    statements.append(hostile.change(rng.choice(roster.statements())))
        digest = roster.digest if rng.random() < 0.4 else rng.randbytes(16)
        return RosterTold(digest, tuple(statements[:64]), rng.random() < 0.5)

    def _overtake(self, target: Process) -> Move | None:
        """What the liar's own honest process has just said, changed, before it is heard."""
        rng = self.rng
        for router in target.routers()[:1]:
            for connection, parts in getattr(router, "incoming", ()):
                if connection.key == LIARS[0].link_key and rng.random() < 0.5:
                    envelope = decode(parts[0])
                    body = self.hostile.change(envelope.body) if envelope.body.__struct_fields__ else envelope.body
                    payload = parts[1:]
                    if payload and rng.random() < 0.5:
                        body, payload = envelope.body, [self._payload(len(payload[0]))]
                    frames = (self._frame(envelope.sender, body), *payload)
                    return Move(0.0, target.me.peer_id, "link", 0, frames, first=True)
        return None

    def _lead(self, target: Process) -> Move:
        """Claim the office, before some or all of the others, and give orders."""
        rng = self.rng
        succession = getattr(target.machine.machine, "succession", None)
        if succession is None:
            return self._move(target, "link", 0, self._sender(target), self._any(target))
        sender = self._sender(target)
        term = succession.term + rng.choice((0, 1, 1, 7, 65_536, 1 << 20))
        trainer = getattr(target.machine.machine, "trainer", None)
        round_id = trainer.round_id + 1 if trainer is not None else 1
        lineage = trainer.lineage if trainer is not None else ()
        claim = AgentPresent(term, round_id, lineage, rng.random() < 0.7, tuple(rng.sample(("p0", "p1", LIAR_ID), 2)))
        listeners = self.scene.victims() if rng.random() < 0.3 else [target]
        for each in listeners:
            self._plan.append(self._move(each, "link", 0, sender, claim))
        orders = [body for body in self._bodies if type(body) in _ORDERS]
        for _ in range(rng.randrange(8)):
            order = (
                rng.choice(orders) if orders and rng.random() < 0.7 else self.hostile.make(info_of(rng.choice(_ORDERS)))
            )
            order = self.hostile.change(order) if rng.random() < 0.6 else order
            order = self._as_now(order, target)
            if "term" in order.__struct_fields__:
                order = msgspec.structs.replace(order, term=term)
            for each in listeners:
                try:
                    self._plan.append(self._move(each, "link", 0, sender, order))
                except (OverflowError, msgspec.MsgspecError, LocalProtocolError):
                    continue
        return self._plan.popleft()

    def _bulk(self, target: Process, sender: Contributor) -> Move:
        """Offers, chunks of them and of what was never offered, credit for what is not being sent."""
        rng, hostile = self.rng, self.hostile
        chance = rng.random()
        if chance < 0.3:
            kinds = [kind for kind in CARRIERS if (kind in PACKED) is (self.role == THE_CLOUD)] or list(CARRIERS)
            carried = [body for body in self._bodies if isinstance(body, TransferOffered)]
            message = (
                rng.choice(carried).message
                if carried and rng.random() < 0.6
                else hostile.make(info_of(rng.choice(kinds)))
            )
            message = self._as_now(hostile.change(message) if rng.random() < 0.5 else message, target)
            size = rng.choice((64, 64, 64, 32, 68, 63, 1, 1 << 14, 1 << 20, 1 << 33))
            transfer_id = rng.choice((1, 2, 3, rng.randrange(1 << 53)))
            self._transfers.append((transfer_id, size))
            body: Any = TransferOffered(transfer_id, size, message, rng.choice((1, 1, 2, 8)))
            for start in range(0, min(size, 2 * SMALLEST_CHUNK_BYTES), SMALLEST_CHUNK_BYTES):
                if rng.random() < 0.8:
                    chunk = ChunkSent(transfer_id, start)
                    payload = self._payload(min(size - start, SMALLEST_CHUNK_BYTES))
                    self._plan.append(self._move(target, "link", 0, sender, chunk, payload))
            return self._move(target, "link", 0, sender, body)
        if chance < 0.6:
            kind = rng.choice(SEGMENTS)
            seen = [body for body in self._bodies if isinstance(body, kind)]
            body = rng.choice(seen) if seen else hostile.make(info_of(kind))
            body = self._as_now(hostile.change(body) if rng.random() < 0.7 else body, target)
            return self._move(target, "link", 0, sender, body, self._payload(rng.choice((16, 16, 32, 64, 4, 1, 0, 17))))
        body = hostile.make(info_of(rng.choice(_TALK)))
        transfer_id, size = rng.choice(self._transfers)
        changes: dict[str, Any] = {"transfer_id": transfer_id} if rng.random() < 0.7 else {}
        if hasattr(body, "offset_bytes") and rng.random() < 0.7:
            changes["offset_bytes"] = rng.choice((0, 0, SMALLEST_CHUNK_BYTES, size, 4))
        body = msgspec.structs.replace(body, **changes)
        payload = self._payload(rng.choice((64, 64, 4, 1 << 14, 1, 0))) if isinstance(body, ChunkSent) else None
        return self._move(target, "link", 0, sender, body, payload)

    def _payload(self, size: int) -> bytes:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                return b"\0\0\xc0\x7f" * (size // 4) + bytes(size % 4)  # not a number
            case 1:
                return b"\0\0\x80\x7f" * (size // 4) + bytes(size % 4)  # without end
            case 2:
                return b"\xff\xff\x73\x49" * (size // 4) + bytes(size % 4)  # near 1e6
            case _:
                return rng.randbytes(min(size, 64)) + bytes(max(0, size - 64))

    def _damaged(self, target: Process, door: str) -> Move:
        rng, heard = self.rng, self.scene.heard
        frame = damage(rng.choice(heard), rng) if heard else rng.randbytes(20)
        frames = (frame,) if rng.random() < 0.9 else (frame, rng.randbytes(16), *((b"",) * rng.randrange(3)))
        return Move(self._wait(), target.me.peer_id, door, -1 if door == "door" else 0, frames)

    def _datagram(self, target: Process) -> Move | None:
        port = target.links.flows._port
        if port is None or not port.socket.incoming:
            return None
        data = self.rng.choice(port.socket.incoming)
        data = damage(data, self.rng) if self.rng.random() < 0.8 else data
        return Move(0.0, target.me.peer_id, "datagram", 0, (data,))

    # -- to a cloud, and as one ---------------------------------------------------------------------------------------

    def _to_hub(self, target: Process) -> Move:
        rng = self.rng
        number = rng.randrange(len(LIARS))
        name = rng.choice((f"x{number}", f"x{number}", "ann", "bob", f"y{rng.randrange(3000)}"))
        sender = Contributor(name, rng.choice((1, 1, 2, rng.randrange(1 << 62))))
        if (chance := rng.random()) < 0.05:
            heard = self.scene.heard
            frame = damage(rng.choice(heard), rng) if heard else rng.randbytes(20)
            return Move(self._wait(), target.me.peer_id, "link", number, (frame,))
        if chance < 0.25:
            move = self._bulk(target, sender)
            self._plan = deque(msgspec.structs.replace(each, key=number) for each in self._plan)
            return msgspec.structs.replace(move, key=number)
        return self._move(target, "link", number, sender, self._of_cloud())

    def _from_cloud(self, target: Process) -> Move:
        rng = self.rng
        sender = Contributor("cloud", rng.choice((1, 1, 2, 1 << 62)))
        if (chance := rng.random()) < 0.05:
            heard = self.scene.heard
            frame = damage(rng.choice(heard), rng) if heard else rng.randbytes(20)
            return Move(self._wait(), target.me.peer_id, "cloud", 0, (frame,))
        if chance < 0.25:
            move = self._bulk(target, sender)
            self._plan = deque(msgspec.structs.replace(each, door="cloud") for each in self._plan)
            return msgspec.structs.replace(move, door="cloud")
        return self._move(target, "cloud", 0, sender, self._of_cloud())

    def _of_cloud(self) -> Any:
        rng, hostile = self.rng, self.hostile
        chance = rng.random()
        if self._bodies and chance < 0.6:
            body = rng.choice(self._bodies)
            body = body if chance < 0.1 else hostile.change(body)
        else:
            body = hostile.make(info_of(rng.choice(_OF_CLOUD if chance < 0.95 else KINDS)))
        names = body.__struct_fields__
        if "pupil" in names and rng.random() < 0.6:
            body = msgspec.structs.replace(body, pupil=rng.choice(("ann", "bob", f"x{rng.randrange(300)}")))
        if "schema_hash" in names and rng.random() < 0.6:
            body = msgspec.structs.replace(body, schema_hash=rng.choice(("s", "recommend-1")))
        if "version" in names and rng.random() < 0.6:
            body = msgspec.structs.replace(body, version=rng.randrange(6))
        return body

    # -- as frames ----------------------------------------------------------------------------------------------------

    def _frame(self, sender: Contributor, body: Body) -> bytes:
        return _encode(Envelope(PROTOCOL_VERSION, sender, body))

    def _move(
        self, target: Process, door: str, key: int, sender: Contributor, body: Any, payload: bytes | None = None
    ) -> Move:
        if payload is None and isinstance(body, (*SEGMENTS, ChunkSent)) and self.rng.random() < 0.95:
            payload = self._payload(64)
        frames = (self._frame(sender, body),) if payload is None else (self._frame(sender, body), payload)
        return Move(self._wait(), target.me.peer_id, door, key, frames, more=self._more())


__all__ = ["CODE_HOLDER", "MEMBER", "OWNER", "THE_CLOUD", "Liar"]
