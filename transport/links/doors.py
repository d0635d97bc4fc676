"""The two sockets that a node listens on: the door, with keys from the join code, and one for members' messages.

Both are ROUTERs that only receive, watched for connections that show no key. Without encryption there is only one.
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
    """The listening sockets of a node.

    port: of the door; 0 takes a free one. With any other port, messages are taken at the next port if that is free.
    admit: decides which keys are let in at which socket. half_open: the most connections without a handshake, over
    both. Raises ConfigError if the port is taken or the address is invalid.
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
        """Yield at most `budget` messages, or TURN_BYTES, from each socket, each with True if it came by the door."""
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
        """Return the sockets to wait for now; the next call may return more or fewer."""
        sockets = [each for router, keeper in self._both() for each in (router, *keeper.pollable())]
        return sockets if self._gate is None else [*sockets, self._gate.socket]

    def deadline(self) -> float | None:
        """Return the time at which a waiting client is due an answer, or new and ended connections are due a look."""
        times = [keeper.deadline() for _, keeper in self._both()]
        times += [] if self._gate is None else [self._gate.deadline()]
        return min((time for time in times if time is not None), default=None)

    def reopen(self) -> None:
        """Open the door with the mesh's new join code, as soon as its port is free."""
        assert self._membership is not None
        assert self._door is not None
        self._door[0].setsockopt(zmq.CURVE_SECRETKEY, self._membership.keys.server_secret)
        with contextlib.suppress(zmq.ZMQError):  # it was not bound yet after the change before
            self._door[0].unbind(Address(self._host, self.port).endpoint())
        self._is_shut = True
        self._open_door()

    def follow(self, kept: frozenset[str]) -> str:
        """Move to the interface's new address if this node listens at one address only and that is gone.

        Returns the address that this node listens at. kept: addresses that this machine had all along, without links.
        """
        if self._interface and bare(self._host) not in kept:
            found = hosts_on(self._interface)
            if found and self._host not in found:
                self._move(found[0])
        return self._host

    def _both(self) -> list[tuple[zmq.Socket[bytes], Doorkeeper]]:
        return [self._links] if self._door is None else [self._links, self._door]

    def _move(self, host: str) -> None:
        """Listen at another address from now on, if possible."""
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
        with contextlib.suppress(zmq.ZMQError):  # libzmq is still closing it
            self._door[0].bind(Address(self._host, self.port).endpoint())
            self._is_shut = False

    def _watched(self, router: zmq.Socket[bytes]) -> tuple[zmq.Socket[bytes], Doorkeeper]:
        return router, Doorkeeper(self._context, router, self._half_open)


def _port_of(router: zmq.Socket[bytes]) -> int:
    return int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
