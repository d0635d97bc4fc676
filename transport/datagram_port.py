"""The datagrams of one node: a socket, a flow with each peer, and how two peers agree on one.

Of two peers the one with the smaller name begins: FlowOffered goes by the link, which is encrypted, with a key for what
is to come back; FlowAnswered brings the other key. When nothing has been heard by the flow for a while it begins anew:
the other may have forgotten it. Datagrams of no flow are dropped unread, and nobody is answered who has no key.
Never blocks; not thread-safe.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import zmq

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.transport.datagrams.flow import Flow
from mdl.transport.datagrams.packets import FLOW_ID_BYTES, KEY_BYTES, LARGEST_BYTES, Seal, flow_id_of
from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.scopes import socket_address
from mdl.transport.wire.codec import FlowAnswered, FlowOffered

# Flows at a time: of a device's partners in a round, as the links that are made ready (outbox.READY_LINKS).
MOST_FLOWS = 32
# A flow by which nothing comes begins anew, at first soon: the offer or the answer may have been lost with its link.
ANEW_S, ANEW_MOST_S = 5.0, 60.0
# One that was heard before: longer than a link is away that only flaps, and than its probes rest.
GIVEN_UP_S = 25.0
# Datagrams handled in one turn of the loop; the others wait in the system's buffer, or are lost and sent again.
TURN = 256
BUFFER_BYTES = 1 << 20

# No process has so many.
_NO_DESCRIPTOR = 1 << 30


class DatagramFrame(zmq.Frame):
    """A frame that came by a flow, and says of itself what one of a connection does: which key its peer has shown."""

    _key = b""

    def __init__(self, data: bytes, key: bytes) -> None:
        super().__init__(data)
        self._key = key

    def get(self, option: Any) -> Any:
        return self._key.hex() if option == "User-Id" else _NO_DESCRIPTOR


@dataclass
class _Partner:
    """peer: with whom. key: that its link has shown. number: its UDP port, 0 before it is known. tries: flows before
    this one that were not heard.
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
        """When it begins anew, unless it is heard."""
        if self.was_heard():
            return self.flow.heard_at + GIVEN_UP_S
        return self.flow.begun_at + min(ANEW_S * (1 << min(self.tries, 8)), ANEW_MOST_S)


class DatagramPort:
    """host, port: where the node's links listen; UDP takes the same number if it is free, else any.

    draw: so many random bytes. Raises OSError without a socket.
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
        """Listen at another address of this machine: by another socket, at the same number if it is free there.

        Raises OSError if that cannot be; then everything stays as it is.
        """
        if host == self._host:
            return
        found = _open_socket(host, self.number)
        self.socket.close()
        self.socket, self._host = found, host
        if (number := int(found.getsockname()[1])) != self.number:
            self.number = number
            for peer_id in list(self._partners):  # they have been told the old one
                self.forget(peer_id)

    def begin(self, peer: Contributor, now: float) -> FlowOffered | None:
        """What to say to a peer that is heard, so that a flow begins, or begins anew; None if nothing is to be said."""
        known = self._partners.get(peer.peer_id)
        if self._me > peer.peer_id or (known is None and len(self._partners) >= MOST_FLOWS):
            return None
        if known is not None and known.peer == peer and now < known.ends_at():
            return None
        partner, key = self._open(peer, now)
        partner.tries = known.tries + 1 if known is not None and not known.was_heard() else 0
        return FlowOffered(self.number, partner.flow.own.flow_id, key)

    def take_offer(self, peer: Contributor, offered: FlowOffered, key: bytes, now: float) -> FlowAnswered | None:
        """The answer; the peer seals with our key from now on, and we with its. key: that its link has shown."""
        if peer.peer_id not in self._partners and len(self._partners) >= MOST_FLOWS:
            return None
        partner, ours = self._open(peer, now)
        partner.number, partner.key = offered.port, key
        partner.flow.connect(Seal(offered.flow_id, offered.key), now)
        return FlowAnswered(self.number, partner.flow.own.flow_id, ours, offered.flow_id)

    def take_answer(self, peer: Contributor, answered: FlowAnswered, key: bytes, now: float) -> None:
        """Nothing happens unless it answers the offer that was made last."""
        partner = self._partners.get(peer.peer_id)
        if partner is None or partner.peer != peer or partner.flow.is_connected:
            return
        if partner.flow.own.flow_id == answered.offered_id:
            partner.number, partner.key = answered.port, key
            partner.flow.connect(Seal(answered.flow_id, answered.key), now)

    def flow_with(self, peer_id: str) -> Flow | None:
        """The flow that is the better way to this peer, None if its link is good enough."""
        partner = self._partners.get(peer_id)
        return partner.flow if partner is not None and partner.flow.is_wanted else None

    def is_heard(self, peer_id: str) -> bool | None:
        """Whether datagrams have got to this peer and back; None before they are agreed on."""
        partner = self._partners.get(peer_id)
        return None if partner is None or not partner.flow.is_connected else partner.was_heard()

    def silent_for(self, seconds: float, now: float) -> list[str]:
        """Peers that were heard by datagrams, and are not since so many seconds."""
        return [
            name for name, each in self._partners.items() if each.was_heard() and now - each.flow.heard_at > seconds
        ]

    def ways_s(self) -> dict[str, float]:
        """Peer id -> its flow's round trip, as far as it is known."""
        return {peer_id: way_s for peer_id, each in self._partners.items() if (way_s := each.flow.way_s) < inf}

    def forget(self, peer_id: str) -> None:
        if partner := self._partners.pop(peer_id, None):
            del self._by_flow[partner.flow.own.flow_id]

    def receive(
        self, now: float, on_bug: Callable[[str, float], None] = lambda peer_id, now: None
    ) -> tuple[list[list[zmq.Frame]], list[RemoteProtocolError]]:
        """Whole messages, as a ROUTER would give them, and what was wrong with what else came.

        on_bug: told, where it is handled, whose datagram met a bug here; its flow is forgotten.
        """
        messages: list[list[zmq.Frame]] = []
        problems: list[RemoteProtocolError] = []
        for _ in range(TURN):
            try:
                datagram = self.socket.recv(LARGEST_BYTES + 1)
            except OSError:  # nothing more; or a word that somebody is not there, which his silence tells as well
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
        """Let out whatever is to leave by now; the bytes of it. where: a peer is, None if nobody knows."""
        sent_bytes = 0
        for peer_id, partner in self._partners.items():
            for datagram in partner.flow.packets(now):
                if (address := where(peer_id)) is not None:
                    with contextlib.suppress(OSError):  # no way, no room: as if the network had lost it
                        to = socket_address(self.socket.family, address.host, partner.number)
                        sent_bytes += self.socket.sendto(datagram, to)
        return sent_bytes

    def deadline(self, now: float) -> float:
        return min((partner.flow.deadline(now) for partner in self._partners.values()), default=inf)

    def _open(self, peer: Contributor, now: float) -> tuple[_Partner, bytes]:
        """A new flow, in the place of an earlier one, and the key that the peer is to seal with."""
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
        except OSError:  # somebody else has that one
            found.bind(socket_address(family, host, 0))
    except OSError:
        found.close()
        raise
    return found
