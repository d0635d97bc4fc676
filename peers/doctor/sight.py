"""A look around a mesh, over the links that a peer uses: announcements, answers, and the mesh's status."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from zeroconf import Error

from mdl.config import MeshSection
from mdl.peers.edge.identity import other_runs
from mdl.peers.view.watch import Watcher
from mdl.protocol.status_messages import MeshStatus, RoundSummary
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.discovery.directory import Interface, bare, parse_address
from mdl.transport.discovery.mdns import Announcement, Survey
from mdl.transport.trust.keys import Mesh
from mdl.transport.trust.membership import Membership

# The port of two doctors that look for each other (`--peer HOST`); nothing else listens there.
DOCTOR_PORT = 5751
_LOOK_S = 0.1
# The doctor that is done first stays to be found by the other one.
_STAY_S = 4.0
# The first announcement brings most of them; a device that starts at the same moment is there by then.
_AT_LEAST_S = 2.0


@dataclass(frozen=True)
class Sight:
    """The result of a look around.

    heard: the devices that have spoken to us.
    known: the devices that were introduced.
    clocks_s: peer id -> its clock less ours, of those that have signed something for us.
    by_datagrams: peer id -> whether datagrams got there and back, of those that agreed on them.
    status: the mesh as its agent tells it.
    membership: this device in it, and the members that the mesh has told of.
    problem: why multicast cannot be heard, "" if it can.
    rounds: of late, as the agent remembers them.
    """

    announced: list[Announcement]
    heard: list[PeerInfo]
    known: list[PeerInfo]
    clocks_s: dict[str, float]
    by_datagrams: dict[str, bool]
    status: MeshStatus | None
    membership: Membership | None
    problem: str
    rounds: tuple[RoundSummary, ...] = ()

    def heard_at(self, hosts: Sequence[str]) -> PeerInfo | None:
        """Return a device that has spoken to us from one of these."""
        return next((info for info in self.heard if info.host in map(bare, hosts)), None)

    def link_mb_s(self, peer_id: str) -> float | None:
        """Return the speed of its link, as hops have shown it."""
        members = self.status.members if self.status else ()
        return next((member.link_mb_s for member in members if member.peer_id == peer_id), None)


@contextmanager
def look_at_mesh(mesh: Mesh, section: MeshSection, own: Sequence[Interface], wait_s: float) -> Iterator[Sight]:
    """Look around until every announced device has answered: from 2 to wait_s seconds.

    This device can be found until the context ends. Time in which this process could not run does not count, up to
    wait_s more: the others' answers wait here then.
    """
    survey, problem = _open_survey(mesh, own)
    try:
        with Watcher(mesh, section, listen_port=section.port) as watcher:
            yield _look(watcher, survey, problem, section.join, wait_s)
            if section.port == DOCTOR_PORT:
                threading.Event().wait(_STAY_S)
    finally:
        if survey:
            survey.close()


def _open_survey(mesh: Mesh, own: Sequence[Interface]) -> tuple[Survey | None, str]:
    try:
        return Survey(mesh.name, mesh.keys, own, other_runs(mesh.name)), ""
    except (OSError, Error) as error:
        return None, str(error)


def _look(watcher: Watcher, survey: Survey | None, problem: str, join: Sequence[str], wait_s: float) -> Sight:
    began, pause, patience = time.monotonic(), threading.Event(), Patience(wait_s)
    clocks = Clocks(time.time())
    me = watcher.machine.me.peer_id
    while True:
        announced = [each for each in survey.found() if each.peer_id != me] if survey else []
        known, heard = watcher.introduced()
        clocks.compare(known, heard, {each.peer_id: each.signed_ms for each in announced}, time.time())
        found = {info.peer_id: watcher.hears_datagrams(info.peer_id) for info in heard}
        by_datagrams = {peer_id: got for peer_id, got in found.items() if got is not None}
        waited_s = patience.waited_s(time.monotonic() - began)
        missing = {each.peer_id for each in announced if each.of_ours} - {info.peer_id for info in heard}
        unheard = [text for text in join if all(info.host != bare(parse_address(text).host) for info in heard)]
        is_whole = bool(heard) and not missing and not unheard and all(by_datagrams.values())
        if waited_s >= wait_s or (waited_s >= _AT_LEAST_S and is_whole):
            membership = watcher.standing.membership
            told = watcher.status, membership, problem, tuple(watcher.rounds)
            return Sight(announced, heard, known, clocks.ahead_s(), by_datagrams, *told)
        pause.wait(_LOOK_S)


class Patience:
    """The waiting time of a loop that looks every _LOOK_S: a late look means that the process could not run."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._looked_s = self._starved_s = 0.0

    def waited_s(self, passed_s: float) -> float:
        """Return how many of the passed seconds it could have heard in; call it at each look."""
        late_s = passed_s - self._looked_s - 2 * _LOOK_S
        self._looked_s, self._starved_s = passed_s, min(self._starved_s + max(late_s, 0.0), self._most_s)
        return passed_s - self._starved_s


class Clocks:
    """The clocks of others. now_s: of ours, when the look begins; signatures for us are made after that."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._before: dict[str, int] = {}
        self._ahead_s: dict[str, float] = {}

    def compare(
        self, known: Sequence[PeerInfo], heard: Sequence[PeerInfo], signed_ms: Mapping[str, int], now_s: float
    ) -> None:
        """Compare clocks: they agree if a signature is neither older than the look nor newer than now.

        signed_ms: times of announcements, which are from some time ago. So are all signatures of a peer that has not
        spoken to us.
        """
        spoken = {info.peer_id for info in heard}
        for info in known:
            serial = info.proof.serial if info.proof else 0
            if info.peer_id not in spoken:
                self._before[info.peer_id] = max(serial, self._before.get(info.peer_id, 0))
        self._before |= {name: max(at, self._before.get(name, 0)) for name, at in signed_ms.items()}
        for info in heard:
            if info.proof and info.proof.serial > self._before.get(info.peer_id, 0):
                at_s = info.proof.serial / 1000
                ahead_s = max(at_s - now_s, 0.0) or min(at_s - self._began_s, 0.0)
                self._ahead_s[info.peer_id] = max(ahead_s, self._ahead_s.get(info.peer_id, ahead_s))

    def ahead_s(self) -> dict[str, float]:
        """Return peer id -> its clock less ours, for each peer that can be compared."""
        return dict(self._ahead_s)
