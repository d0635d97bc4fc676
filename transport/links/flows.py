"""The messages of a node that go as datagrams (`mdl.transport.datagrams`), and how its flows begin, beside its links.

Without encryption, on loopback alone, there are no flows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from secrets import token_bytes
from typing import TypeAlias

import zmq

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event
from mdl.transport.datagram_port import DatagramPort
from mdl.transport.discovery.directory import Address, Directory, is_loopback
from mdl.transport.links.introducer import Introducer
from mdl.transport.links.sockets import LinkCounts, Pollable
from mdl.transport.loglimit import LogLimit
from mdl.transport.wire.bulk import Outgoing
from mdl.transport.wire.codec import CodeTold, FlowAnswered, FlowOffered, RosterTold

# A message as the doors give it, and True if it came by the door.
Come: TypeAlias = tuple[list[zmq.Frame], bool]
# These go by the link, too: a peer that one of them locks out has no flow any more.
_BOTH_WAYS = (RosterTold, CodeTold)


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
