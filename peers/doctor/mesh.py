"""Checks of the mesh: who announces itself, who is reached, who answers, and how good the way there is.

Looks as `mdl peers` does, through the very links that a peer uses, and asks of each device that does not answer where
the connection ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

import msgspec
from zeroconf import Error

from mdl.config import MeshSection
from mdl.protocol.vocabulary import PeerInfo, Role
from peers.doctor.finding import Finding, fail, note, ok
from peers.doctor.path import check_path
from peers.view.watch import Watcher
from transport.discovery.directory import Address, parse_address
from transport.discovery.scopes import Interface, bare
from transport.discovery.survey import Announcement, Survey
from transport.links.probe import Reached, probe
from transport.trust.keys import Mesh

# Where two doctors meet that were told of each other (`--peer HOST`), and nothing else listens.
DOCTOR_PORT = 5751
_LOOK_S = 0.1
# Of two doctors the one that is done first stays to be found by the other one.
_STAY_S = 4.0
# The first announcement brings most of them; who starts at the same moment is there by then.
_AT_LEAST_S = 2.0
# The system gives a neighbour up that does not answer its ARP requests after 3 s.
_PROBE_S = 3.5
# Devices that are looked at one by one: of more, the mesh itself tells.
_MOST = 16
_OPEN = "open it there: start it with --port 5750, then sudo ufw allow 5750/tcp (or firewall-cmd --add-port=5750/tcp)"
_SAME_CODE = "mdl mesh list shows the code on each device: give all of them the same, mdl peer --code ..."


@dataclass(frozen=True)
class Sight:
    """What a look around has brought. heard: who has spoken to us; known: who was introduced."""

    announced: list[Announcement]
    heard: list[PeerInfo]
    known: list[PeerInfo]

    def hears(self, host: str, port: int = 0) -> bool:
        return any(info.host == bare(host) and port in (0, info.port) for info in self.heard)


@contextmanager
def look_at_mesh(mesh: Mesh, section: MeshSection, own: Sequence[Interface], wait_s: float) -> Iterator[Sight]:
    """Takes from 2 to wait_s seconds: until everybody who announces itself has answered. Can be found until it ends."""
    survey: Survey | None = None
    with contextlib.suppress(OSError, Error):  # what is wrong with multicast was told before
        survey = Survey(mesh.name, mesh.keys, own)
    try:
        with Watcher(mesh, section, listen_port=section.port) as watcher:
            yield _look(watcher, survey, section.join, wait_s)
            if section.port == DOCTOR_PORT:
                threading.Event().wait(_STAY_S)
    finally:
        if survey:
            survey.close()


def _look(watcher: Watcher, survey: Survey | None, join: Sequence[str], wait_s: float) -> Sight:
    began, pause = time.monotonic(), threading.Event()
    while True:
        announced = [each for each in survey.found() if _is_other(each, watcher)] if survey else []
        known, heard = watcher.introduced()
        waited_s = time.monotonic() - began
        missing = {each.peer_id for each in announced if each.of_ours} - {info.peer_id for info in heard}
        unheard = [text for text in join if not _is_among(text, heard)]
        if waited_s >= wait_s or (waited_s >= _AT_LEAST_S and heard and not missing and not unheard):
            return Sight(announced, heard, known)
        pause.wait(_LOOK_S)


def check_mesh(mesh: Mesh, section: MeshSection, own: Sequence[Interface], sight: Sight) -> Iterator[Finding]:
    yield ok("code", f"the code of mesh {mesh.name!r} is in order")
    yield from _check_strangers(mesh, sight)
    members = [each for each in sight.announced if each.of_ours and not each.problem]
    for each in members[:_MOST]:
        yield from _check_member(each.peer_id, [Address(host, each.port) for host in each.hosts], mesh, own, sight)
    announced = {bare(host) for each in members for host in each.hosts}
    for text in section.join:
        address = parse_address(text)
        if bare(address.host) not in announced:
            yield from _check_member(text, [address], mesh, own, sight)
            if sight.hears(address.host) and not section.loopback:
                told = f"{address.host} is reached, but its announcement is not heard: multicast is lost on the way"
                yield note("multicast", told, "turn off IGMP snooping or client isolation in the switch", "--join it")
    for info in sight.heard:
        if info.host not in announced and not _is_among_all(section.join, info):
            yield ok("member", f"{info.peer_id} at {info.host}:{info.port} answers (others told of it)")
    yield from _check_models(members)
    if not sight.heard and not members and not section.join:
        do = "start mdl peer on another device, or mdl doctor --peer ITS-ADDRESS on both"
        yield fail("members", f"nobody else of mesh {mesh.name!r} was heard", do, "mdl peer --join ITS-ADDRESS:PORT")


def _check_strangers(mesh: Mesh, sight: Sight) -> Iterator[Finding]:
    for each in sight.announced[:_MOST]:
        where = f"{each.peer_id} at {each.hosts[0]}"
        if each.of_ours and each.is_other_version:
            yield fail("version", each.problem, "install the same version of mdl on both: mdl --version")
        elif each.of_ours and each.problem:
            yield note("announcement", f"{where}: {each.problem}", "somebody without the code says this: not heeded")
    alike = [each for each in sight.announced if not each.of_ours and each.mesh == mesh.name]
    if alike:
        who = ", ".join(f"{each.peer_id} at {each.hosts[0]}" for each in alike[:4])
        told = f"another mesh is called {mesh.name!r} too, with another code: {who}"
        yield note("code", told) if sight.heard else fail("code", told, _SAME_CODE)


def _check_member(
    name: str, addresses: list[Address], mesh: Mesh, own: Sequence[Interface], sight: Sight
) -> Iterator[Finding]:
    if found := next((each for each in addresses if sight.hears(each.host)), None):
        reached = probe(found, mesh.keys, _PROBE_S)  # it may have come to us, and we may not get to it
        if reached is not Reached.MEMBER:
            yield _tell_end(name, found, reached, own, is_heard=True)
            return
        yield ok("member", f"{name} at {found.host} answers")
        yield from check_path(name, found.host)
        return
    tried = [(each, probe(each, mesh.keys, _PROBE_S)) for each in addresses[:4]]
    best = max(tried, key=lambda pair: list(Reached).index(pair[1]))
    yield _tell_end(name, *best, own)


def _tell_end(name: str, at: Address, reached: Reached, own: Sequence[Interface], is_heard: bool = False) -> Finding:
    """Where the connection ends, and whose turn it is."""
    where = name if at.host in name else f"{name} at {at.host}:{at.port}"
    if is_heard and reached in (Reached.NO_WAY, Reached.REFUSED, Reached.SILENT):
        do = f"a firewall on one of the two: allow TCP to port {at.port} out of this machine; on the other {_OPEN}"
        return fail("port", f"{where} reaches this machine, but not the other way round ({reached.value})", do)
    match reached:
        case Reached.NO_WAY if _is_near(at.host, own):
            do = "is it on? else the Wi-Fi keeps its clients apart: a guest network, or client isolation in the router"
            return fail("way", f"{where} is in this very network, but nothing gets there", do)
        case Reached.NO_WAY:
            do = "both must be in one network, or a route must lead there: ip route get " + at.host
            return fail("way", f"no way to {where}: this machine has no route there, or its firewall forbids it", do)
        case Reached.REFUSED:
            do = f"is it running? on it: mdl doctor --peer THIS-ADDRESS, or ss -ltn; its firewall may refuse: {_OPEN}"
            return fail("port", f"{where}: nobody listens there", do)
        case Reached.SILENT:
            do = f"a firewall on it, or client isolation of the Wi-Fi (a guest network), drops it; {_OPEN}"
            return fail("port", f"{where} does not answer on its TCP port", do)
        case Reached.NOT_MDL:
            return fail(
                "port", f"{where}: another program listens there, not mdl", "give the port that mdl peers shows"
            )
        case Reached.OTHER_KEYS:
            return fail("code", f"{where} is of another mesh: it does not know our join code", _SAME_CODE)
    do = "open a port here: mdl peer --port 5750, then sudo ufw allow 5750/tcp; the same mdl on both? mdl --version"
    return fail("port", f"{where} lets this machine in, but its answer does not come back", do, "--join from its side")


def _check_models(members: list[Announcement]) -> Iterator[Finding]:
    models = {each.schema for each in members if each.role == Role.TRAINER.value and each.schema}
    if len(models) > 1:
        told = f"the devices train {len(models)} different models: those of one model go on, the others are refused"
        yield note("model", told, "give all the same --model, classes and window size: mdl peers tells who is refused")


def _is_near(host: str, own: Sequence[Interface]) -> bool:
    return any(IPv4Address(host) in each.network for each in own) if ":" not in host else False


def _is_other(each: Announcement, watcher: Watcher) -> bool:
    return each.peer_id != watcher.machine.me.peer_id


def _is_among(text: str, heard: list[PeerInfo]) -> bool:
    return any(info.host == bare(parse_address(text).host) for info in heard)


def _is_among_all(join: Sequence[str], info: PeerInfo) -> bool:
    return any(_is_among(text, [info]) for text in join)


def with_peers(section: MeshSection, hosts: Sequence[str]) -> MeshSection:
    """The same with devices to look at. HOST alone: another doctor, which waits for this one."""
    texts = [host if _has_port(host) else f"{host}:{DOCTOR_PORT}" for host in hosts]
    for text in texts:
        parse_address(text, "--peer")
    port = section.port or (DOCTOR_PORT if any(not _has_port(host) for host in hosts) else 0)
    return msgspec.structs.replace(section, join=(*section.join, *texts), port=port)


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].count(":") == 1 and (host.startswith("[") or host.count(":") == 1)
