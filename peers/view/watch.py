"""An observer of a live mesh: for `mdl status`, the page, the doctor and the view of `mdl up`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import msgspec

from mdl.bounds import printable
from mdl.config import MeshSection
from mdl.errors import MeshNotFoundError
from mdl.files.figures import ROUNDS_KEPT
from mdl.peers.edge.node import drive, start_runtime
from mdl.peers.roles.outsiders import Observer
from mdl.peers.view.snapshot import Told
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, PeerFound, Received
from mdl.protocol.status_messages import MeshStatus, RoundSummary
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.mesh_links import Links
from mdl.transport.links.standing import LinkStanding, Stated
from mdl.transport.runtime import Renewed
from mdl.transport.trust.keys import Mesh

# A loop that takes longer has ended.
_STATED_S = 10.0


class Watcher:
    """An observer node in a thread of its own; `status` and `rounds` grow while it runs. Use as a context manager.

    source: name of this member in snapshots. on_news: called in its thread when something was heard.
    listen_port: 0: any free one.
    """

    def __init__(self, mesh: Mesh, section: MeshSection, source: str = "", listen_port: int = 0) -> None:
        me = Contributor(f"observer-{os.getpid()}-{os.urandom(2).hex()}", 1)
        self.machine = Observer(me)
        self.rounds: list[RoundSummary] = []
        self.heard = threading.Event()
        self.problem: Exception | None = None
        self.on_news: Callable[[], None] = lambda: None
        self._source = source
        self._told: tuple[RoundSummary, ...] = ()
        # An observer never takes the port that the user chose for a peer, unless others are to find it there.
        self._mesh, self._section = mesh, msgspec.structs.replace(section, port=listen_port)
        info = PeerInfo(me.peer_id, me.incarnation, Role.OBSERVER, "", listen_port)
        self._runtime = start_runtime(
            self.machine, info, mesh, self._section, observe=self._look, renew=self._begin_again
        )
        self._thread = threading.Thread(target=self._run, name="mdl-watch", daemon=True)

    def told(self) -> Told:
        """Return everything that is known now. May be called from any thread."""
        machine, now = self.machine, time.monotonic()
        if len(self._told) != len(self.rounds) or (self.rounds and self._told[-1] is not self.rounds[-1]):
            self._told = tuple(self.rounds)
        return Told(
            *(self._mesh.shown, self._source, machine.status, now - machine.heard_at, self._told, dict(machine.peers)),
            pages=machine.pages(now),
            revoked=self._revoked(),
            problem=printable(str(self.problem)) if self.problem else "",
        )

    def _revoked(self) -> dict[str, str]:
        """Return the names of devices that an owner has locked out, with the owner's reason."""
        membership = self.standing.membership
        return {each.name: each.reason for each in membership.roster.revocations() if each.name} if membership else {}

    def introduced(self) -> tuple[list[PeerInfo], list[PeerInfo]]:
        """Return the known peers, and those that have spoken to this node. May be called from any thread."""
        directory, now = self._runtime.links.directory, time.monotonic()
        known = list(directory.everyone())
        return known, [info for info in known if directory.is_heard(info.peer_id, now)]

    def hears_datagrams(self, peer_id: str) -> bool | None:
        """Return True if datagrams got to this peer and back; None if none were exchanged. From any thread."""
        return self._runtime.links.flows.is_heard(peer_id)

    @property
    def standing(self) -> LinkStanding:
        """The standing of the mesh's devices, for reading only."""
        return self._runtime.links.standing

    def state(self, stated: Stated) -> None:
        """Tell the mesh what this device states; return once its own roster has it. May be called from any thread."""
        done = threading.Event()
        self._runtime.state(stated)
        self._runtime.with_links(lambda links, now: done.set())  # in the order of the calls
        done.wait(_STATED_S)

    @property
    def status(self) -> MeshStatus | None:
        return self.machine.status

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(3.0)

    def stop(self) -> None:
        """Begin to leave the network, which takes up to 0.7 s; what was told stays. From any thread."""
        self._runtime.stop()

    def _begin_again(self, links: Links) -> Renewed:
        """Build a new observer, which asks the known peers anew."""
        before = self.machine
        self.machine = Observer(before.me, before.interval_s, before.page_port)
        return Renewed(self.machine, [PeerFound(info) for info in links.directory.everyone()])

    def _run(self) -> None:
        try:
            drive(self._runtime, self._mesh, self._section)
        except MeshNotFoundError as error:
            self.problem = error
            self.heard.set()
            self.on_news()

    def _look(self, now: float, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, Received) and isinstance(event.message, MeshStatus):
            last = self.rounds[-1].round if self.rounds else 0
            self.rounds += [summary for summary in event.message.finished if summary.round > last]
            del self.rounds[:-ROUNDS_KEPT]
            self.heard.set()
            self.on_news()
