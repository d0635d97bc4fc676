"""A look around a mesh, over the links that a peer uses, and the checks of what it shows.

The look brings announcements, answers, and the mesh's status. Checks are of the announced devices, the reached devices,
their answers, and the mesh's own status.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from zeroconf import Error
from zmq.utils import z85

from mdl.config import MeshSection
from mdl.peers.doctor.network import (
    SAME_CODE,
    Finding,
    Severity,
    broken,
    check_loss,
    check_path,
    fail,
    find_cause,
    is_near,
    note,
    ok,
    tell_broken_off,
    tell_end,
    tell_hidden,
    tell_second_port,
    tell_shut_out,
)
from mdl.peers.edge.identity import other_runs
from mdl.peers.view.watch import Watcher
from mdl.protocol.statements import Proof
from mdl.protocol.status_messages import MeshStatus, RoundSummary
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import Address, Interface, bare, parse_address
from mdl.transport.discovery.mdns import Announcement, Survey
from mdl.transport.links.probe import ProbeStage, connect, endures, probe, probe_link
from mdl.transport.links.sockets import Curve
from mdl.transport.trust.keys import Mesh, show_name
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


# The system gives a neighbour up that does not answer its ARP requests after 3 s.
_PROBE_S = 3.5
# A firewall that ends connections does so after some KB; more than this passes in that time.
_ENDURES_S = 1.0
# The last rounds that tell which devices were there lately.
_LATELY = 5
# At most so many devices are checked one by one, side by side; the mesh itself tells of more.
_MOST = 16


@dataclass(frozen=True)
class _Device:
    """A device to check: its possible addresses, and its info if it was introduced."""

    name: str
    addresses: list[Address]
    info: PeerInfo | None


def check_mesh(mesh: Mesh, section: MeshSection, own: Sequence[Interface], sight: Sight) -> Iterator[Finding]:
    yield ok("code", f"the code of mesh {mesh.shown!r} is in order")
    if sight.problem:
        do = "another program has a part of UDP port 5353: sudo ss -ulpn 'sport = 5353'"
        yield fail("multicast", f"nobody can be heard by multicast: {sight.problem}", do, "--join ADDRESS:PORT")
    yield from _check_strangers(mesh, sight)
    members = [each for each in sight.announced if each.of_ours and not each.problem]
    named = {bare(parse_address(text).host) for text in section.join}
    lasting = [each for each in members if each.role != Role.OBSERVER.value or named & set(map(bare, each.hosts))]
    devices = [_announced(each, sight) for each in lasting[:_MOST]]  # an observer may end at any moment
    announced = {bare(host) for each in members for host in each.hosts}
    asked = [address for text in section.join if bare((address := parse_address(text)).host) not in announced]
    devices += [_Device(f"{at.host}:{at.port}", [at], sight.heard_at([at.host])) for at in asked]
    with ThreadPoolExecutor(len(devices) or 1) as side_by_side:
        for findings in side_by_side.map(lambda device: list(_check_device(device, mesh, own, sight)), devices):
            yield from findings
    for at in asked:
        if sight.heard_at([at.host]) and not section.loopback:
            told = f"{at.host} is reached, but its announcement is not heard: multicast is lost on the way"
            yield note("multicast", told, "turn off IGMP snooping or client isolation in the switch", "--join it")
    for info in sight.heard:
        if info.host not in announced | {bare(at.host) for at in asked}:
            yield ok("member", f"{info.peer_id} at {info.host}:{info.port} answers (others told of it)")
    yield from _check_work(members, sight)
    if not sight.heard and not members and not section.join:
        do = "start mdl peer on another device, or mdl doctor --peer ITS-ADDRESS on both"
        yield fail("members", f"nobody else of mesh {mesh.shown!r} was heard", do, "mdl peer --join ITS-ADDRESS:PORT")


def _check_strangers(mesh: Mesh, sight: Sight) -> Iterator[Finding]:
    for each in sight.announced[:_MOST]:
        where = f"{each.peer_id} at {each.hosts[0]}"
        if each.of_ours and each.is_other_version:
            yield fail("version", each.problem, "install the same version of mdl on both: mdl --version")
        elif each.of_ours and each.problem:
            yield note(
                "announcement", f"{where}: {each.problem}", "a device without the code says this: mdl ignores it"
            )
    runs = {each.mesh: each for each in sight.announced if each.mesh and each.mesh != mesh.name}
    for name, each in sorted(runs.items())[:_MOST]:
        shown = show_name(name)
        yield ok("run", f"{shown} is active, at {each.hosts[0]}: mdl doctor --mesh {shown} looks at it")
    alike = [each for each in sight.announced if not each.of_ours and each.mesh == mesh.name]
    if alike:
        who = ", ".join(f"{each.peer_id} at {each.hosts[0]}" for each in alike[:4])
        told = f"another mesh is called {mesh.shown!r} too, with another code: {who}"
        yield note("code", told) if sight.heard else fail("code", told, SAME_CODE)


def _announced(each: Announcement, sight: Sight) -> _Device:
    info = sight.heard_at(each.hosts) or next((info for info in sight.known if info.peer_id == each.peer_id), None)
    chosen = [host for host in each.hosts if info and bare(host) == info.host]  # the choice of a peer
    return _Device(each.peer_id, [Address(host, each.port) for host in chosen or each.hosts], info)


def _check_device(device: _Device, mesh: Mesh, own: Sequence[Interface], sight: Sight) -> Iterator[Finding]:
    """Try both ports of a device, heard or not: it may have come to us while we cannot get to it."""
    heard = sight.heard_at([address.host for address in device.addresses])
    addresses = [each for each in device.addresses if not heard or bare(each.host) == heard.host][:4]
    tried = [(each, probe(each, mesh.keys, _PROBE_S)) for each in addresses]
    at, reached = max(tried, key=lambda pair: list(ProbeStage).index(pair[1]))
    trouble = _find_trouble(device, at, reached, heard is not None, own, sight)
    if reached is ProbeStage.MEMBER and mesh.keys and endures(at, mesh.keys, _ENDURES_S) is False:
        trouble = tell_broken_off(device.name, at)
    if trouble is not None and trouble.check == "port" and (lossy := check_loss(device.name, at.host)):
        yield lossy if heard else msgspec.structs.replace(lossy, verdict=Severity.FAIL)
    elif trouble is not None:
        yield trouble
    if trouble is not None or heard is None:
        return
    yield ok("member", f"{device.name} at {at.host} answers")
    way = list(check_path(device.name, at, sight.link_mb_s(heard.peer_id)))
    if sight.by_datagrams.get(heard.peer_id) is False and not broken(way):
        told = f"{device.name}: datagrams (UDP) do not get there and back; rounds are slow where frames get lost"
        yield note("datagrams", told, f"let UDP in on both, at the port of TCP: sudo ufw allow {heard.port}/udp")
    yield from way


def _find_trouble(
    device: _Device, at: Address, reached: ProbeStage, is_heard: bool, own: Sequence[Interface], sight: Sight
) -> Finding | None:
    if reached is not ProbeStage.MEMBER:
        found = find_cause(device.name, at, reached, own)
        return found or tell_end(device.name, at, reached, own, is_heard)
    proof = device.info.proof if device.info else None
    if proof is not None:
        second = Address(at.host, proof.link_port)
        if connect(second, _PROBE_S) is not None:
            return tell_second_port(device.name, second)
        if not is_heard and not _is_let_in(second, proof, sight):
            return tell_shut_out(device.name, second)
    if not is_heard and bare(at.host) in {str(each.ip) for each in own}:
        told = f"{device.name} runs on this machine, and has not answered yet: it may have much to compare"
        return note("member", told, "look again in a few seconds; mdl status shows whether it takes part")
    if is_heard:
        return None
    is_routed = not (":" in at.host or is_near(at.host, own) or sight.heard)
    return tell_hidden(device.name, at) if is_routed else tell_end(device.name, at, reached, own)


def _is_let_in(at: Address, proof: Proof, sight: Sight) -> bool:
    """Return True if the device's own key lets us in: members are told apart by it."""
    if sight.membership is None:
        return True
    own = sight.membership.device
    curve = Curve(z85.encode(proof.enrolled.link_key), own.curve_public, own.curve_secret)
    return probe_link(at, curve, _PROBE_S)


def _check_work(members: list[Announcement], sight: Sight) -> Iterator[Finding]:
    """Check that all train one model, and report devices that take no part, as the mesh says."""
    models = {each.schema for each in members if each.role == Role.TRAINER.value and each.schema}
    if len(models) > 1:
        told = f"the devices train {len(models)} different models: those of one model go on, the others are refused"
        yield note(
            "model", told, "give all the same --model, classes and window size: mdl status shows the refused ones"
        )
    status = sight.status
    for each in (status.members if status else ())[:_MOST]:
        if each.problem:
            told = f"{each.peer_id} takes no part: {each.problem}"
            yield note("member", told, "mdl status --watch shows it")
    yield from _check_absent(members, sight)
    for cut in (status.cuts if status else ())[:_MOST]:
        yield note("member", cut, "mdl doctor on those two tells why")
    for doubt in (status.doubts if status else ())[:_MOST]:
        yield note(
            "member",
            doubt,
            "look at these two devices: one of them changes what it passes on, or its memory or disk fails",
        )
    for line in (status.unlike if status else ())[:_MOST]:
        yield note(
            "member", line, "compare mdl data inspect there and here: mean and deviation of each channel, and its unit"
        )


def _check_absent(members: list[Announcement], sight: Sight) -> Iterator[Finding]:
    """Report devices of the mesh's last rounds that cannot be heard from here."""
    there = {each.peer_id for each in members} | {each.peer_id for each in sight.heard}
    absent = sorted({name for summary in sight.rounds[-_LATELY:] for name in summary.contributors} - there)
    if absent:
        told = f"{', '.join(absent[:4])} took part in the last rounds, and cannot be heard from here"
        why = "switched off since, or the network between is split (a switch, a mesh of Wi-Fi, a VLAN)"
        yield note("member", f"{told}: {why}", "mdl doctor --peer THAT-ADDRESS, here and there, tells which")


def with_peers(section: MeshSection, hosts: Sequence[str]) -> MeshSection:
    """Return the section with devices to look at. HOST alone: another doctor, which waits for this one."""
    texts = [host if _has_port(host) else f"{host}:{DOCTOR_PORT}" for host in hosts]
    for text in texts:
        parse_address(text, "--peer")
    port = section.port or (DOCTOR_PORT if any(not _has_port(host) for host in hosts) else 0)
    return msgspec.structs.replace(section, join=(*section.join, *texts), port=port)


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].count(":") == 1 and (host.startswith("[") or host.count(":") == 1)
