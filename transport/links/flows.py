"""Which messages of a node go as datagrams (`mdl.transport.datagrams`), and how its flows begin: beside its links.

Without encryption, on loopback alone, there are none.
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

# A message as the doors give it, and whether it came by the door.
Come: TypeAlias = tuple[list[zmq.Frame], bool]
# Whoever is locked out by one of these has no flow any more.
_BOTH_WAYS = (RosterTold, CodeTold)


class Flows:
    """introducer: says where this node listens; datagrams take the number of its door, if they can."""

    def __init__(self, introducer: Introducer, directory: Directory, counts: LinkCounts, lines: LogLimit) -> None:
        self._directory, self._counts, self._lines = directory, counts, lines
        self._introducer = introducer
        self._port = None if introducer.door is None else self._open()
        self._answers: list[tuple[str, FlowAnswered]] = []
        # Called with a peer whose datagram met a bug here, where that is being handled.
        self.on_bug: Callable[[str, float], None] = lambda peer_id, now: None
        self._now = 0.0

    def is_way_to(self, peer_id: str) -> bool:
        """Whether datagrams are the better way to this peer now."""
        return self._port is not None and self._port.flow_with(peer_id) is not None

    def is_heard(self, peer_id: str) -> bool | None:
        """Whether datagrams have got to this peer and back; None if none were exchanged."""
        return None if self._port is None else self._port.is_heard(peer_id)

    def silent_for(self, seconds: float, now: float) -> list[str]:
        """Return the peers that datagrams came to and back, and do not since so many seconds."""
        return [] if self._port is None else self._port.silent_for(seconds, now)

    def put(self, outgoing: Outgoing, header: bytes, now: float) -> bool:
        """Send a message to such a peer; False if it has to go by its link, too, or only so."""
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
        """What to say by these links, so that flows begin with the peers that are heard."""
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
        """A peer offers a flow, or answers an offer. key: that its link has shown. No event comes of it."""
        if self._port is None:
            return []
        if isinstance(said, FlowAnswered):
            self._port.take_answer(peer, said, key, now)
        elif answer := self._port.take_offer(peer, said, key, now):
            self._answers.append((peer.peer_id, answer))
        return []

    def beside(self, messages: Iterable[Come], now: float) -> Iterator[Come]:
        """These messages, and those that have come by datagrams; none of them comes by the door."""
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
        """Send whatever is to leave by now."""
        if self._port is not None and (sent_bytes := self._port.send(self._address, now)):
            self._counts.sent_bytes += sent_bytes
            self._counts.ways_s = self._port.ways_s()

    def deadline(self) -> float | None:
        return None if self._port is None else self._port.deadline(self._now)

    def pollable(self) -> list[Pollable]:
        return [] if self._port is None else [self._port.socket]

    def forget(self, peer_id: str) -> None:
        """Its link is closed, or it is out: nothing of it is taken any more."""
        if self._port is not None:
            self._port.forget(peer_id)

    def close(self) -> None:
        if self._port is not None:
            self._port.close()

    def move(self) -> None:
        """This node may listen at another address by now. What waits on `pollable` has to ask again."""
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
