"""The links between a cloud and its learners: learners dial, so that neither NAT nor a home's firewall matters.

All that the cloud says goes back over the connection that the learner opened. The envelopes and bulk transfers are the
same as between peers (`mdl.transport.links.mesh_links`), on one socket: `CloudHub` is the cloud's end, a `Spoke` a
learner's. Each learner shows its device's own key, and a name belongs to the device that had it first (`Names`). The
cloud has a route back to each learner that spoke lately, and knows nothing else of it here.

The owners of names at a cloud, which keeps no roster: each name belongs to the device that had it first, by its key.

Every device that knows the door's key has the join code, and may connect; its messages count for its own names alone.
Keys cost nothing, so room goes by rank. Each address may bring so many new names a second. In a full table the oldest
names that never gave the cloud anything make place. That part is pure: `now` is an argument.
"""

from __future__ import annotations

import ipaddress
import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from secrets import token_bytes

import zmq

from mdl.bounds import MAX_MEMBERS
from mdl.descriptors import claim_share
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.cloud_messages import PupilRefused
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event
from mdl.protocol.messages import Said
from mdl.protocol.vocabulary import Bulk, PeerInfo
from mdl.transport.discovery.directory import Address, parse_address
from mdl.transport.limits import MET_BUG, MET_BUG_AT_DOOR, Barrier, LogLimit, TokenBucket
from mdl.transport.links.doors import DOOR, TOO_MANY, Doorkeeper, ZapGate, admit_devices, host_of, shown_key
from mdl.transport.links.sockets import (
    TURN,
    Curve,
    LinkCounts,
    check_security,
    is_passing,
    open_router,
    open_spoke,
    take_frames,
)
from mdl.transport.links.standing import Stated
from mdl.transport.links.transfers import Transfers, check_frames
from mdl.transport.trust.keys import SECRET_BYTES, DeviceKey, MeshKeys
from mdl.transport.wire.bulk import Outgoing, Step
from mdl.transport.wire.codec import Envelope, decode, encode

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


logger = logging.getLogger(__name__)

# Bytes of the identity that libzmq gives a connection; at a learner, the start of a header from its only cloud.
_IDENTITY_BYTES = 5


class _End(ABC):
    """The part that both ends share. One thread owns it."""

    def __init__(self, me: Contributor, keys: MeshKeys | None, max_bytes: int) -> None:
        self.me = me
        self.keys = keys
        self.counts = LinkCounts()
        self.barrier = Barrier()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._lines = LogLimit(logger)
        self._transfers = Transfers(max_bytes, self._lines, is_ahead=False)  # few transfers fit at a time
        self._endpoint: zmq.Socket[bytes]

    def learn(self, info: PeerInfo) -> list[Event]:
        """Do nothing: learners dial, so no peer is introduced here."""
        return []

    def move(self, kept: frozenset[str]) -> list[Event]:
        """Do nothing: a learner dials again when its connection is seen to be broken (UNACKNOWLEDGED_MS)."""
        return []

    def state(self, stated: Stated) -> list[Event]:
        """Do nothing: a cloud keeps no roster."""
        return []

    def send(self, receiver: str, message: Said, values: Bulk | None, now: float) -> None:
        """Send a message, best effort, without blocking.

        values: with a carrier or a segment only, and never changed again by anyone.
        """
        self._carry_out(self._transfers.send(receiver, message, values, now))

    def receive(self, now: float) -> list[Event]:
        """Handle a bounded number of messages that have come, and whatever is due by now."""
        events: list[Event] = []
        for _ in range(TURN):
            frames = take_frames(self._endpoint, self.counts)
            if frames is None:
                break
            try:
                events += self._handle(frames, now)
            except RemoteProtocolError as error:
                self.counts.refused += 1
                self._lines.warning(now, frames[0].bytes[:_IDENTITY_BYTES], "message refused: %s", error)
            except Exception:  # noqa: BLE001 (a bug that this message met: it costs its sender, and nobody else)
                self._meet_bug(frames, now)
        self._lines.on_time(now)
        if self.counts.unheard:
            self.counts.unheard = self.barrier.unheard(now)
        return events + self._carry_out(self._transfers.on_time(now))

    def deadline(self) -> float | None:
        return self._transfers.deadline()

    def is_sending(self) -> bool:
        return len(self._transfers) > 0

    def pollable(self) -> list[zmq.Socket[bytes]]:
        return [self._endpoint]

    def close(self, linger_ms: int = 0) -> None:
        self._endpoint.close(linger=linger_ms)
        self._transfers.close()
        self.context.destroy(linger=linger_ms)

    @abstractmethod
    def _handle(self, frames: list[zmq.Frame], now: float) -> list[Event]:
        """Handle a message as it came. Raises RemoteProtocolError."""

    @abstractmethod
    def _route(self, receiver: str) -> list[bytes] | None:
        """Return the frames before a header to this receiver; None if it cannot be reached."""

    def put_out(self, peer_id: str, now: float) -> float:
        """Ignore this peer's device for a while, and drop its transfers; return the seconds."""
        for_s = self.barrier.put_out(self._device_of(peer_id), peer_id, now)
        self.counts.bugs, self.counts.unheard = self.barrier.met, self.barrier.unheard(now)
        self._transfers.forget_all_of(peer_id)
        return for_s

    def is_out(self, peer_id: str, now: float) -> bool:
        """Return True while this peer's device is ignored, since its message met a bug."""
        return self.barrier.is_out(self._device_of(peer_id), now)

    def _device_of(self, peer_id: str) -> Hashable:
        return peer_id

    def _meet_bug(self, frames: Sequence[zmq.Frame], now: float) -> None:
        for frame in frames[:2]:  # the header comes first, or behind the connection's identity
            try:
                sender = decode(frame.buffer).sender.peer_id
            except RemoteProtocolError:
                continue
            self._lines.bug(now, sender, MET_BUG, sender, self.put_out(sender, now))
            return
        self.counts.bugs = self.barrier.note_unknown()
        self._lines.bug(now, "", MET_BUG_AT_DOOR)

    def _take(self, envelope: Envelope, frames: Sequence[zmq.Frame], now: float) -> list[Event]:
        return self._carry_out(self._transfers.take(envelope, frames, now))

    def _carry_out(self, steps: list[Step]) -> list[Event]:
        events: list[Event] = []
        for step in steps:
            if isinstance(step, Outgoing):
                self._put(step)
            else:
                events.append(step)
        return events

    def _put(self, outgoing: Outgoing) -> None:
        route = self._route(outgoing.receiver)
        if route is None:
            self.counts.dropped += 1
            return
        header = encode(self.me, outgoing.body)
        frames: list[bytes | memoryview] = [*route, header]
        if outgoing.payload is not None:
            frames.append(outgoing.payload)
        try:
            self._endpoint.send_multipart(frames, zmq.NOBLOCK, copy=outgoing.payload is None)
        except zmq.ZMQError as error:
            if not is_passing(error):
                raise
            self.counts.dropped += 1
            return
        self.counts.sent_bytes += len(header) + (0 if outgoing.payload is None else len(outgoing.payload))


class CloudHub(_End):
    """The cloud's end: listens at HOST:PORT, port 0 a free one. Raises ConfigError if it cannot, as `Links` does.

    names: the owners of names, kept from earlier. owns_pupils: a pupil belongs to one device; otherwise all members of
    a mesh speak for it.
    """

    def __init__(
        self,
        me: Contributor,
        keys: MeshKeys | None,
        *,
        max_bytes: int,
        listen_host: str = "0.0.0.0",
        port: int = 0,
        insecure: bool = False,
        names: Names | None = None,
        owns_pupils: bool = False,
    ) -> None:
        check_security(keys, insecure, [listen_host])
        share = claim_share()
        super().__init__(me, keys, max_bytes)
        self._gate = ZapGate(self.context, admit_devices(keys), self._lines) if keys is not None else None
        try:
            secret = None if keys is None else keys.server_secret
            self._endpoint = open_router(self.context, secret, DOOR, Address(listen_host, port))
        except ConfigError:
            self.context.destroy(linger=0)
            raise
        self._door = Doorkeeper(self.context, self._endpoint, share.half_open)
        self.port = int(self._endpoint.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        # Each learner's incarnation and last connection; the learner that has been silent longest goes first.
        self._routes: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._devices: OrderedDict[str, bytes] = OrderedDict()  # peer id -> the key that it showed last
        self._names, self._owns_pupils = names or Names(), owns_pupils

    def receive(self, now: float) -> list[Event]:
        events = super().receive(now)
        if ended := self._door.look(now):
            self._lines.warning(now, "", TOO_MANY, ended)
        for _, host in self._gate.serve(now) if self._gate is not None else ():
            self._door.admitted(host)
        return events

    def deadline(self) -> float | None:
        times = [super().deadline(), self._door.deadline()]
        return min((time for time in times if time is not None), default=None)

    def pollable(self) -> list[zmq.Socket[bytes]]:
        doors = [self._endpoint, *self._door.pollable()]
        return doors if self._gate is None else [*doors, self._gate.socket]

    def _handle(self, frames: list[zmq.Frame], now: float) -> list[Event]:
        """Handle the frames of a message: the connection's identity, a header, and the bytes of a chunk or segment."""
        self._door.hear(frames[-1])
        identity, rest = frames[0].bytes, frames[1:] or [zmq.Frame(b"")]
        envelope = decode(rest[0].buffer)
        check_frames(envelope, rest)
        peer_id, incarnation = envelope.sender.peer_id, envelope.sender.incarnation
        try:
            self._check_names(envelope, frames[-1], now)
        except NameTakenError as error:
            self._refuse(identity, envelope, error.name)
            raise
        self._devices[peer_id] = shown_key(frames[-1])
        self._devices.move_to_end(peer_id)
        if len(self._devices) > MAX_MEMBERS:
            self._devices.popitem(last=False)
        if self.is_out(peer_id, now):
            return []
        known = self._routes.get(peer_id)
        if known is not None and known[0] > incarnation:
            return []  # it was restarted since (docs/protocol-hops.md, fault rule 4)
        if known is not None and known[0] < incarnation:
            self._transfers.forget(peer_id)
        self._routes[peer_id] = incarnation, identity
        self._routes.move_to_end(peer_id)
        while len(self._routes) > MAX_MEMBERS:
            self._routes.popitem(last=False)
        return self._take(envelope, rest, now)

    def note_worked(self, peer_id: str, pupil: str = "") -> None:
        """Note that the cloud has kept something from this peer. pupil: its user, if pupils belong to one device."""
        for name in (peer_id, *([_pupil_name(pupil)] if self._owns_pupils and pupil else [])):
            self._names.note_worked(name)

    def _device_of(self, peer_id: str) -> Hashable:
        """Return the key of a device, the same under all its names; without encryption its name."""
        return self._devices.get(peer_id) or peer_id

    def _check_names(self, envelope: Envelope, frame: zmq.Frame, now: float) -> None:
        """Raise RemoteProtocolError if the device that this frame comes from speaks for another one."""
        if self._gate is None:
            return
        names, pupil = [envelope.sender.peer_id], getattr(envelope.body, "pupil", "")
        if self._owns_pupils and pupil:
            names.append(_pupil_name(pupil))
        self._names.check(names, shown_key(frame), host_of(frame), now)

    def _refuse(self, identity: bytes, envelope: Envelope, name: str) -> None:
        """Tell a device that it speaks under another one's name, by its own connection: no route leads to it."""
        pupil = getattr(envelope.body, "pupil", "")
        if not pupil:
            return
        what = f"user {pupil}" if name == _pupil_name(pupil) else f"the name {name}"
        hint = "give this device another --name, or " if what != f"user {pupil}" else ""
        reason = f"{what} belongs to another device here, which had it first; {hint}have its line removed from the "
        refused = PupilRefused(pupil, f"{reason}cloud's devices.txt", getattr(envelope.body, "digest", b""))
        try:
            self._endpoint.send_multipart([identity, encode(self.me, refused)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if not is_passing(error):
                raise
            self.counts.dropped += 1

    def _route(self, receiver: str) -> list[bytes] | None:
        route = self._routes.get(receiver)
        return None if route is None else [route[1]]


def _pupil_name(pupil: str) -> str:
    return f"pupil {pupil}"  # no peer's name has a space


class Spoke(_End):
    """A learner's end: dials `address`, HOST:PORT, and again whenever the connection breaks. Raises ConfigError.

    device: the device that shows its key; None makes a new one each time.
    """

    def __init__(
        self,
        me: Contributor,
        keys: MeshKeys | None,
        address: str,
        *,
        max_bytes: int,
        insecure: bool = False,
        device: DeviceKey | None = None,
    ) -> None:
        where = parse_address(address, "cloud")
        check_security(keys, insecure, [where.host])
        super().__init__(me, keys, max_bytes)
        shown = device or DeviceKey.of(token_bytes(SECRET_BYTES))
        curve = None if keys is None else Curve(keys.server_public, shown.curve_public, shown.curve_secret)
        self._endpoint = open_spoke(self.context, curve, where)

    def _handle(self, frames: list[zmq.Frame], now: float) -> list[Event]:
        self.counts.received_bytes += len(frames[0])
        envelope = decode(frames[0].buffer)
        check_frames(envelope, frames)
        return [] if self.is_out(envelope.sender.peer_id, now) else self._take(envelope, frames, now)

    def _route(self, receiver: str) -> list[bytes] | None:
        return []
