"""The introduction of this node to others, and the keys that lead to another node: with encryption, and without.

A device signs what it says of itself, with all the addresses that it listens at. Others pass on no other address than
these. Without encryption, on loopback alone, nothing is signed, and there is one socket instead of two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from zmq.utils import z85

from mdl.errors import RemoteProtocolError
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.discovery.directory import EVERY_HOST, Address, Interface, Scopes, address_of, is_loopback
from mdl.transport.discovery.interfaces import choose_host, near_hosts, networks_near, own_hosts
from mdl.transport.links.roster_talk import RosterTalk
from mdl.transport.links.sockets import Curve, local_host_towards
from mdl.transport.trust.membership import Membership
from mdl.transport.wire.codec import Body


class Introducer:
    """Introduces this node, and finds the ways to others.

    me: this node, with the port of its door and the host that it listens on, with a link if it needs one.
    link_port: the port that takes members' messages. membership: None without encryption.
    clock: milliseconds since 1970.
    """

    def __init__(
        self,
        me: PeerInfo,
        link_port: int,
        membership: Membership | None,
        talk: RosterTalk | None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.me = me
        self._link_port = link_port
        self._membership = membership
        self._talk = talk
        self.scopes = Scopes()
        self._clock = clock
        self._last_ms = 0
        self._signed: dict[str, PeerInfo] = {}
        self._hosts: tuple[str, ...] = ()
        self._own: Sequence[Interface] = ()
        self.move(me.host)

    @property
    def door(self) -> Curve | None:
        """The keys of any member's door."""
        return None if self._membership is None else Curve.of_door(self._membership.keys)

    def move(self, host: str) -> None:
        """Note that this node listens on `host` from now on, and look up the machine's addresses again."""
        self.me = msgspec.structs.replace(self.me, host=self.scopes.note(host))
        self._hosts, self._own = own_hosts(host), networks_near(host)
        self.scopes.move(self._own)
        self._signed.clear()

    def start_anew(self, incarnation: int) -> None:
        """Note that this node is another start of its process from now on."""
        self.me = msgspec.structs.replace(self.me, incarnation=incarnation)
        self._signed.clear()

    def sign_anew(self) -> None:
        """Sign again with the mesh's new join code, which says anew that this device is admitted."""
        self._signed.clear()

    def first_words(self, peer_id: str) -> list[Body]:
        return [] if self._talk is None else [*self._talk.open(peer_id)]

    def seen_from(self, host: str, info: PeerInfo, anew: bool = False) -> PeerInfo:
        """Return a peer as it is introduced to a node at `host`; this node appears with its address on the way there.

        anew: signed now, so that the other node can compare the clocks.

        Without encryption a neighbour on this machine, known by its loopback address, gets this machine's address too.
        """
        is_me = info.peer_id == self.me.peer_id and info.incarnation == self.me.incarnation
        if self._membership is None:
            everywhere = is_me and info.host in EVERY_HOST
            if everywhere or (is_loopback(info.host) and not is_loopback(host)):
                return msgspec.structs.replace(info, host=self.own_host_towards(host))
            return info
        if not is_me:
            return info
        own = self.me.host if self.me.host not in EVERY_HOST else self.own_host_towards(host)
        if anew:
            self._signed.clear()  # the later of two introductions counts everywhere
        if own not in self._signed:
            hosts = (own, *(other for other in self._hosts if other != own))
            told = msgspec.structs.replace(self.me, host=own)
            self._signed[own] = self._membership.introduce(told, self._link_port, hosts, self._next_ms())
        return self._signed[own]

    def own_host_towards(self, host: str) -> str:
        """Return this machine's own address on the way to `host`."""
        return local_host_towards(self.scopes.dial(host))

    def nearest(self, info: PeerInfo, by: PeerInfo | None = None, is_on_link: bool = False) -> PeerInfo:
        """Return a peer with the nearest of its addresses.

        by: the peer that told of it. is_on_link: the peer told so itself, on a link of this machine.
        """
        if info.proof is None:
            return info
        host = choose_host(info.proof.hosts, self._own, is_on_link) or info.host
        if by is not None:
            self.scopes.follow(host, by.host)
        return msgspec.structs.replace(info, host=host)

    def other_hosts(self, info: PeerInfo, host: str) -> list[str]:
        """Return the other addresses that a peer listens at, in networks of this machine's own."""
        return [] if info.proof is None else near_hosts([each for each in info.proof.hosts if each != host], self._own)

    def announced(self, hosts: Sequence[str]) -> PeerInfo:
        """Return this node as it is announced at these addresses."""
        if self._membership is None or not hosts:
            return self.me
        told = msgspec.structs.replace(self.me, host=hosts[0])
        return self._membership.introduce(told, self._link_port, hosts, self._next_ms())

    def _next_ms(self) -> int:
        """Return the time, but always later than the last signature, even if the clock was set back."""
        self._last_ms = max(self._clock(), self._last_ms + 1)
        return self._last_ms

    def way_to(self, info: PeerInfo) -> tuple[Address, Curve | None]:
        """Return the address and keys for messages to a peer. Raises RemoteProtocolError if it has not told them."""
        if self._membership is None:
            return address_of(info), None
        if info.proof is None:
            raise RemoteProtocolError(f"{info.peer_id} has not told where it takes words")
        device = self._membership.device
        curve = Curve(z85.encode(info.proof.enrolled.link_key), device.curve_public, device.curve_secret)
        return Address(address_of(info).host, info.proof.link_port), curve
