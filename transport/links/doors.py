"""Where a node listens: the door, whose keys follow from the join code, and beside it where members' words are taken.

Both are ROUTERs that only receive, watched for connections that show no key. Without encryption there is one of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import zmq

from mdl.errors import ConfigError
from mdl.transport.discovery.directory import EVERY_HOST, Address
from mdl.transport.discovery.interfaces import hosts_on, name_of
from mdl.transport.discovery.scopes import bare
from mdl.transport.links.gate import DOOR, LINKS, Admit, Gate
from mdl.transport.links.halfopen import TOO_MANY, Doorkeeper
from mdl.transport.links.sockets import (
    TURN,
    TURN_BYTES,
    LinkCounts,
    open_router,
    take_frames,
)
from mdl.transport.loglimit import LogLimit
from mdl.transport.trust.membership import Membership

logger = logging.getLogger(__name__)


class Doors:
    """port: of the door; 0 takes a free one, any other has words taken at the next port, if that is free.

    admit: whom to let in where. half_open: connections without a handshake that are borne. Raises ConfigError for a
    port that is taken, or an address that is none.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        membership: Membership | None,
        address: Address,
        half_open: int,
        admit: Admit,
        counts: LinkCounts,
        lines: LogLimit,
    ) -> None:
        self._context, self._membership, self._half_open = context, membership, half_open // 2
        self._counts, self._lines = counts, lines
        self._host = address.host
        self._interface = None if address.host in EVERY_HOST else name_of(address.host)
        self._gate = Gate(context, admit, lines) if membership is not None else None
        self._door: tuple[zmq.Socket[bytes], Doorkeeper] | None = None
        self._is_shut = False  # while its port is not free
        if membership is None:
            self._links = self._watched(open_router(context, None, LINKS, address))
            self.port = self.link_port = _port_of(self._links[0])
            return
        self._door = self._watched(open_router(context, membership.keys.server_secret, DOOR, address))
        self.port = _port_of(self._door[0])
        self._links = self._watched(self._open_links(address.port and min(address.port + 1, 65535)))
        self.link_port = _port_of(self._links[0])

    def take(self, now: float, budget: int = TURN) -> Iterator[tuple[list[zmq.Frame], bool]]:
        """At most `budget` messages of each, or TURN_BYTES of them, and whether they came by the door."""
        enough = self._counts.received_bytes + TURN_BYTES
        for router, keeper in self._both():
            at_door = self._door is not None and router is self._door[0]
            for _ in range(budget):
                frames = take_frames(router, self._counts) if self._counts.received_bytes < enough else None
                if frames is None:
                    break
                keeper.hear(frames[-1])
                yield frames, at_door
            if ended := keeper.look(now):
                self._lines.warning(now, "", TOO_MANY, ended)
        for domain, host in self._gate.serve(now) if self._gate is not None else ():
            for router, keeper in self._both():
                if (router is self._links[0]) == (domain == LINKS):
                    keeper.admitted(host)
        if self._is_shut:
            self._open_door()

    def pollable(self) -> list[zmq.Socket[bytes]]:
        """Of what there is to wait for now; another time it may be more or less."""
        sockets = [each for router, keeper in self._both() for each in (router, *keeper.pollable())]
        return sockets if self._gate is None else [*sockets, self._gate.socket]

    def deadline(self) -> float | None:
        """When somebody who waits is to be answered, or who came and went is to be looked at."""
        times = [keeper.deadline() for _, keeper in self._both()]
        times += [] if self._gate is None else [self._gate.deadline()]
        return min((time for time in times if time is not None), default=None)

    def reopen(self) -> None:
        """The mesh has another join code: the door opens to that one as soon as its port is free."""
        assert self._membership is not None
        assert self._door is not None
        self._door[0].setsockopt(zmq.CURVE_SECRETKEY, self._membership.keys.server_secret)
        with contextlib.suppress(zmq.ZMQError):  # it was not bound yet after the change before
            self._door[0].unbind(Address(self._host, self.port).endpoint())
        self._is_shut = True
        self._open_door()

    def follow(self, kept: frozenset[str]) -> str:
        """Who listens at one address only listens at its interface's new one if it is gone; where this node listens.

        kept: addresses of this machine that were there all along, without links.
        """
        if self._interface and bare(self._host) not in kept:
            found = hosts_on(self._interface)
            if found and self._host not in found:
                self._move(found[0])
        return self._host

    def _both(self) -> list[tuple[zmq.Socket[bytes], Doorkeeper]]:
        return [self._links] if self._door is None else [self._links, self._door]

    def _move(self, host: str) -> None:
        """Listen at another address from now on, if that can be."""
        for router, port in zip((each for each, _ in self._both()), (self.link_port, self.port), strict=False):
            try:
                router.bind(Address(host, port).endpoint())
            except zmq.ZMQError as error:
                logger.warning("cannot listen at %s port %d: %s", host, port, error)
                return
            with contextlib.suppress(zmq.ZMQError):  # it went with its address
                router.unbind(Address(self._host, port).endpoint())
        logger.warning("listening at %s now, no more at %s", host, self._host)
        self._host = host

    def _open_links(self, port: int) -> zmq.Socket[bytes]:
        assert self._membership is not None
        secret = self._membership.device.curve_secret
        try:
            return open_router(self._context, secret, LINKS, Address(self._host, port))
        except ConfigError:
            return open_router(self._context, secret, LINKS, Address(self._host, 0))

    def _open_door(self) -> None:
        assert self._door is not None
        with contextlib.suppress(zmq.ZMQError):  # libzmq still closes it
            self._door[0].bind(Address(self._host, self.port).endpoint())
            self._is_shut = False

    def _watched(self, router: zmq.Socket[bytes]) -> tuple[zmq.Socket[bytes], Doorkeeper]:
        return router, Doorkeeper(self._context, router, self._half_open)


def _port_of(router: zmq.Socket[bytes]) -> int:
    return int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
