"""The messages of a node that go as datagrams (`mdl.transport.wire.datagrams`), and the start of its flows by links.

Without encryption, on loopback alone, there are no flows. `DatagramPort` is one socket with a flow for each peer. The
peer with the smaller name begins. It sends FlowOffered by the link, which is encrypted, with a key for what is to come
back; FlowAnswered brings the other key. A flow that nothing arrives by for a while begins anew: the other peer may have
forgotten it. Datagrams of unknown flows are dropped unread, and a sender without a key gets no answer. Never blocks;
not thread-safe.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from secrets import token_bytes
from typing import Any, TypeAlias

import zmq

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event
from mdl.transport.discovery.directory import Address, Directory, is_loopback, socket_address
from mdl.transport.limits import LogLimit
from mdl.transport.links.introducer import Introducer
from mdl.transport.links.sockets import LinkCounts, Pollable
from mdl.transport.wire.bulk import Outgoing
from mdl.transport.wire.codec import CodeTold, FlowAnswered, FlowOffered, RosterTold
from mdl.transport.wire.datagrams import FLOW_ID_BYTES, KEY_BYTES, LARGEST_BYTES, Flow, Seal, flow_id_of

# A message as the doors give it, and True if it came by the door.
Come: TypeAlias = tuple[list[zmq.Frame], bool]
# These go by the link, too: a peer that one of them locks out has no flow any more.
_BOTH_WAYS = (RosterTold, CodeTold)
# Flows at a time, for a device's partners in a round: as many as links that are made ready (outbox.READY_LINKS).
MOST_FLOWS = 32
# A flow that nothing arrives by begins anew, at first soon: its offer or answer may have been lost with the link.
ANEW_S, ANEW_MOST_S = 5.0, 60.0
# A flow that worked before: longer than a flapping link is away, and longer than its probes rest.
GIVEN_UP_S = 25.0
# Datagrams handled in one turn of the loop. The others wait in the system's buffer, or are lost and sent again.
TURN = 256
BUFFER_BYTES = 1 << 20

# No process has so many descriptors.
_NO_DESCRIPTOR = 1 << 30


class Flows:
    """The flows of a node. introducer: says where it listens; datagrams take the door's port number if they can."""

    def __init__(self, introducer: Introducer, directory: Directory, counts: LinkCounts, lines: LogLimit) -> None:
        self._directory, self._counts, self._lines = directory, counts, lines
        self._introducer = introducer
        self._port = None if introducer.door is None else self._open()
        self._answers: list[tuple[str, FlowAnswered]] = []
        # Called with the peer that sent a datagram which met a bug here, while the exception is handled.
        self.on_bug: Callable[[str, float], None] = lambda peer_id, now: None
        self._now = 0.0

    def is_way_to(self, peer_id: str) -> bool:
        """Return True if datagrams are the better way to this peer now."""
        return self._port is not None and self._port.flow_with(peer_id) is not None

    def is_heard(self, peer_id: str) -> bool | None:
        """Return True if datagrams have reached this peer and come back; None if none were exchanged."""
        return None if self._port is None else self._port.is_heard(peer_id)

    def silent_for(self, seconds: float, now: float) -> list[str]:
        """Return the peers that acknowledged datagrams before, but none for more than so many seconds."""
        return [] if self._port is None else self._port.silent_for(seconds, now)

    def put(self, outgoing: Outgoing, header: bytes, now: float) -> bool:
        """Send a message by datagrams if its receiver has a flow; return False if the link has to carry it (too)."""
        flow = self._port.flow_with(outgoing.receiver) if self._port is not None else None
        if flow is None:
            return False
        is_sure, has_values = flow.is_sure(now), outgoing.stream is not None
        if has_values and not is_sure:
            return False
        if not flow.put(header, outgoing.payload, has_values):
            self._counts.dropped += is_sure
        return is_sure and not isinstance(outgoing.body, _BOTH_WAYS)

    def begin(self, linked: Collection[str], now: float) -> list[tuple[str, FlowOffered | FlowAnswered]]:
        """Return the messages to send by these links, so that flows begin with the peers that speak."""
        if self._port is None:
            return []
        said: list[tuple[str, FlowOffered | FlowAnswered]] = [each for each in self._answers if each[0] in linked]
        self._answers.clear()
        for peer_id in linked:
            info = self._directory.get(peer_id)
            if info is not None and self._directory.is_heard(peer_id, now) and not is_loopback(info.host):
                offer = self._port.begin(Contributor(peer_id, info.incarnation), now)
                said += [] if offer is None else [(peer_id, offer)]
        return said

    def agree(self, peer: Contributor, said: FlowOffered | FlowAnswered, key: bytes, now: float) -> list[Event]:
        """Handle a peer's offer of a flow, or its answer. key: that its link has shown. No event results."""
        if self._port is None:
            return []
        if isinstance(said, FlowAnswered):
            self._port.take_answer(peer, said, key, now)
        elif answer := self._port.take_offer(peer, said, key, now):
            self._answers.append((peer.peer_id, answer))
        return []

    def beside(self, messages: Iterable[Come], now: float) -> Iterator[Come]:
        """Yield these messages and then those that came by datagrams; none of the latter came by the door."""
        yield from messages
        self._now = now
        if self._port is None:
            return
        come, problems = self._port.receive(now, self.on_bug)
        for problem in problems:
            self._counts.refused += 1
            self._lines.warning(now, "datagrams", "datagram refused: %s", problem)
        for frames in come:
            self._counts.received_bytes += sum(len(frame) for frame in frames[2:])
            yield frames, False

    def let_out(self, now: float) -> None:
        """Send every packet that is due by now."""
        if self._port is not None and (sent_bytes := self._port.send(self._address, now)):
            self._counts.sent_bytes += sent_bytes
            self._counts.ways_s = self._port.ways_s()

    def deadline(self) -> float | None:
        return None if self._port is None else self._port.deadline(self._now)

    def pollable(self) -> list[Pollable]:
        return [] if self._port is None else [self._port.socket]

    def forget(self, peer_id: str) -> None:
        """Drop the flow of a peer that is out or has no link any more: nothing more is taken from it."""
        if self._port is not None:
            self._port.forget(peer_id)

    def close(self) -> None:
        if self._port is not None:
            self._port.close()

    def move(self) -> None:
        """Follow this node to its current address. Pollers must ask `pollable` again."""
        host = self._introducer.scopes.dial(self._introducer.me.host)
        try:
            if self._port is not None:
                self._port.move(host)
        except OSError as error:  # links go on by TCP alone
            self._lines.warning(self._now, "", "no datagrams at %s: %s", host, error)

    def _address(self, peer_id: str) -> Address | None:
        info = self._directory.get(peer_id)
        return None if info is None else Address(self._introducer.scopes.dial(info.host), info.port)

    def _open(self) -> DatagramPort | None:
        me = self._introducer.me
        try:
            return DatagramPort(me.peer_id, self._introducer.scopes.dial(me.host), me.port, token_bytes)
        except OSError as error:  # links go on by TCP alone
            self._lines.warning(0.0, "", "no datagrams at port %d: %s", me.port, error)
            return None


class DatagramFrame(zmq.Frame):
    """A frame that came by a flow; like a frame of a connection, it tells which key its peer has shown."""

    _key = b""

    def __init__(self, data: bytes, key: bytes) -> None:
        super().__init__(data)
        self._key = key

    def get(self, option: Any) -> Any:
        return self._key.hex() if option == "User-Id" else _NO_DESCRIPTOR


@dataclass
class _Partner:
    """The flow with one peer.

    key: the key that the peer's link has shown.
    number: the peer's UDP port, 0 before it is known.
    tries: the flows before this one that nothing arrived by.
    """

    peer: Contributor
    flow: Flow
    key: bytes = b""
    number: int = 0
    tries: int = 0

    def frames(self, parts: list[bytes]) -> list[zmq.Frame]:
        return [DatagramFrame(part, self.key) for part in (self.peer.peer_id.encode(), *parts)]

    def was_heard(self) -> bool:
        return self.flow.heard_at > -inf

    def ends_at(self) -> float:
        """Return the time at which the flow begins anew unless something arrives by it."""
        if self.was_heard():
            return self.flow.heard_at + GIVEN_UP_S
        return self.flow.begun_at + min(ANEW_S * (1 << min(self.tries, 8)), ANEW_MOST_S)


class DatagramPort:
    """The UDP socket of a node and its flows.

    host, port: where the node's links listen; UDP takes the same number if it is free, else any.
    draw: returns that many random bytes. Raises OSError if no socket can be opened.
    """

    def __init__(self, me: str, host: str, port: int, draw: Callable[[int], bytes]) -> None:
        self._me, self._draw, self._host = me, draw, host
        self.socket = _open_socket(host, port)
        self.number = int(self.socket.getsockname()[1])
        self._partners: dict[str, _Partner] = {}
        self._by_flow: dict[bytes, _Partner] = {}

    def close(self) -> None:
        self.socket.close()

    def move(self, host: str) -> None:
        """Listen at another address of this machine: with a new socket, at the same number if it is free there.

        Raises OSError if that is impossible; everything stays unchanged then.
        """
        if host == self._host:
            return
        found = _open_socket(host, self.number)
        self.socket.close()
        self.socket, self._host = found, host
        if (number := int(found.getsockname()[1])) != self.number:
            self.number = number
            for peer_id in list(self._partners):  # the peers know the old number
                self.forget(peer_id)

    def begin(self, peer: Contributor, now: float) -> FlowOffered | None:
        """Return the offer that begins a flow with this peer, or begins it anew; None if there is none to make."""
        known = self._partners.get(peer.peer_id)
        if self._me > peer.peer_id or (known is None and len(self._partners) >= MOST_FLOWS):
            return None
        if known is not None and known.peer == peer and now < known.ends_at():
            return None
        partner, key = self._open(peer, now)
        partner.tries = known.tries + 1 if known is not None and not known.was_heard() else 0
        return FlowOffered(self.number, partner.flow.own.flow_id, key)

    def take_offer(self, peer: Contributor, offered: FlowOffered, key: bytes, now: float) -> FlowAnswered | None:
        """Return the answer to an offer; from now on the peer seals with our key, and we seal with its key.

        key: the key that the peer's link has shown. Returns None with MOST_FLOWS flows to others.
        """
        if peer.peer_id not in self._partners and len(self._partners) >= MOST_FLOWS:
            return None
        partner, ours = self._open(peer, now)
        partner.number, partner.key = offered.port, key
        partner.flow.connect(Seal(offered.flow_id, offered.key), now)
        return FlowAnswered(self.number, partner.flow.own.flow_id, ours, offered.flow_id)

    def take_answer(self, peer: Contributor, answered: FlowAnswered, key: bytes, now: float) -> None:
        """Connect the flow if this answers the latest offer; otherwise do nothing."""
        partner = self._partners.get(peer.peer_id)
        if partner is None or partner.peer != peer or partner.flow.is_connected:
            return
        if partner.flow.own.flow_id == answered.offered_id:
            partner.number, partner.key = answered.port, key
            partner.flow.connect(Seal(answered.flow_id, answered.key), now)

    def flow_with(self, peer_id: str) -> Flow | None:
        """Return the flow if it is the better way to this peer; None if the peer's link is good enough."""
        partner = self._partners.get(peer_id)
        return partner.flow if partner is not None and partner.flow.is_wanted else None

    def is_heard(self, peer_id: str) -> bool | None:
        """Return True if datagrams have reached this peer and come back; None before a flow is agreed on."""
        partner = self._partners.get(peer_id)
        return None if partner is None or not partner.flow.is_connected else partner.was_heard()

    def silent_for(self, seconds: float, now: float) -> list[str]:
        """Return the peers that acknowledged datagrams before, but none for more than so many seconds."""
        return [
            name for name, each in self._partners.items() if each.was_heard() and now - each.flow.heard_at > seconds
        ]

    def ways_s(self) -> dict[str, float]:
        """Return the round trip in seconds of each peer's flow, by peer id, as far as it is known."""
        return {peer_id: way_s for peer_id, each in self._partners.items() if (way_s := each.flow.way_s) < inf}

    def forget(self, peer_id: str) -> None:
        if partner := self._partners.pop(peer_id, None):
            del self._by_flow[partner.flow.own.flow_id]

    def receive(
        self, now: float, on_bug: Callable[[str, float], None] = lambda peer_id, now: None
    ) -> tuple[list[list[zmq.Frame]], list[RemoteProtocolError]]:
        """Return whole messages, as a ROUTER would give them, and what was wrong with other datagrams.

        on_bug: called in the exception handler with the sender of a datagram that met a bug here; that flow is
        forgotten.
        """
        messages: list[list[zmq.Frame]] = []
        problems: list[RemoteProtocolError] = []
        for _ in range(TURN):
            try:
                datagram = self.socket.recv(LARGEST_BYTES + 1)
            except OSError:  # nothing more, or an error that a peer is not there: its silence tells that as well
                break
            flow_id = flow_id_of(datagram)
            partner = None if flow_id is None else self._by_flow.get(flow_id)
            if partner is None:
                continue
            try:
                messages += [partner.frames(parts) for parts in partner.flow.take(datagram, now)]
            except RemoteProtocolError as error:
                problems.append(error)
            except Exception:  # noqa: BLE001 (a bug that this datagram met: it costs its sender, and nobody else)
                self.forget(partner.peer.peer_id)
                on_bug(partner.peer.peer_id, now)
        return messages, problems

    def send(self, where: Callable[[str], Address | None], now: float) -> int:
        """Send every packet that is due by now; return the number of bytes sent.

        `where` returns the address of a peer, None if it is unknown.
        """
        sent_bytes = 0
        for peer_id, partner in self._partners.items():
            for datagram in partner.flow.packets(now):
                if (address := where(peer_id)) is not None:
                    with contextlib.suppress(OSError):  # no route or no room: as if the network had lost it
                        to = socket_address(self.socket.family, address.host, partner.number)
                        sent_bytes += self.socket.sendto(datagram, to)
        return sent_bytes

    def deadline(self, now: float) -> float:
        return min((partner.flow.deadline(now) for partner in self._partners.values()), default=inf)

    def _open(self, peer: Contributor, now: float) -> tuple[_Partner, bytes]:
        """Open a flow in place of an earlier one; return it with the key that the peer is to seal with."""
        self.forget(peer.peer_id)
        key = self._draw(KEY_BYTES)
        partner = _Partner(peer, Flow(Seal(self._draw(FLOW_ID_BYTES), key), now))
        self._partners[peer.peer_id] = self._by_flow[partner.flow.own.flow_id] = partner
        return partner, key


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_DGRAM)
    try:
        found.setblocking(False)
        if family == socket.AF_INET6:  # IPv4, too
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            found.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        try:
            found.bind(socket_address(family, host, port))
        except OSError:  # the number is taken
            found.bind(socket_address(family, host, 0))
    except OSError:
        found.close()
        raise
    return found
