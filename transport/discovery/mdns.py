"""Announcements on the local network by mDNS (RFC 6762, 6763): peers of a mesh, all meshes, and open invitations.

Peers of a mesh: service `_mdl._tcp.local.` It only introduces: a peer's messages tell that it lives. The TXT record
holds everything that counts, sealed with a key that every join code of the mesh gives. So strangers on the network
learn addresses, but neither names nor what is trained. The announced peer has signed it. Meshes of another fingerprint
never see each other.

All mdl announcements, of any mesh and version, are for a look around, not for a mesh. Nothing there is trusted: anybody
can announce anything. Statements with a member's proof are kept apart from the rest.

Open invitations: service `_mdl-invite._tcp.local.` An announcement is an address under a random name: it tells no word,
no mesh and no device. Nothing of it is believed either: a false announcement gets one guess at the words of each device
that comes.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Interface
from secrets import token_bytes

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from zeroconf import (
    Error,
    EventLoopBlocked,
    IPVersion,
    NotRunningException,
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    ServiceListener,
    Zeroconf,
)

from mdl.bounds import MAX_MEMBERS, UNREADABLE, printable
from mdl.errors import MeshNotFoundError, RemoteProtocolError
from mdl.protocol.messages import PROTOCOL_VERSION
from mdl.protocol.statements import MAX_HOSTS
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.discovery.directory import Address, Interface, bare, is_link_local
from mdl.transport.discovery.interfaces import LOOPBACK, choose_host, usable_interfaces
from mdl.transport.limits import LogLimit, TokenBucket
from mdl.transport.trust.keys import MeshKeys

logger = logging.getLogger(__name__)

SERVICE = "_mdl._tcp.local."
# An announcement usually brings all its records at once; asking for a missing one may take this long.
_DETAILS_MS = 1_000
# Characters of a text in a TXT record, which takes at most 255 bytes with its key; and the most texts that are read.
_PIECE, _MOST_PIECES = 240, 8
_NONCE_BYTES = 12
# The longest key that a keyed hash takes; fingerprints have 16 characters.
_KEY_BYTES = 64
# The longest address of a stranger in a message: the longest there is.
_LONGEST_HOST = 39
# New records at once, and a second, each some 0.5 KB: all services of a large network. More of them start a pause.
_RECORDS, _RECORDS_A_S = 1_000, 20.0
PAUSE_S = 60.0
# The errors of sending on an interface that has gone down or lost its address.
_NO_NETWORK = frozenset((errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENODEV))
# A clean end waits so long for the announcement under way: three packets, 0.225 s apart.
_CLOSE_S = 2.0
# The longest text shown of a stranger.
_LONGEST = 64
INVITATION_SERVICE = "_mdl-invite._tcp.local."
# The time after the first one to hear a second, which must be told from it.
_SETTLE_S = 1.0
# No network has more, and none of them would be tried.
_MOST_INVITATIONS = 8


def fingerprint_of(keys: MeshKeys | None, mesh: str) -> str:
    """Return the public mark of a mesh. Without keys (loopback only) it follows from the name."""
    return hashlib.sha256(f"insecure:{mesh}".encode()).hexdigest()[:16] if keys is None else keys.fingerprint


def name_mark(fingerprint: str, mesh: str) -> str:
    """Return a mark by which only those that know a mesh's name see that another mesh has the same."""
    return hashlib.blake2b(mesh.encode(), key=fingerprint.encode()[:_KEY_BYTES], digest_size=4).hexdigest()


def is_namesake(record: Mapping[str, str], keys: MeshKeys | None, mesh: str) -> bool:
    """Return True if a TXT record is of another mesh with our name; anybody that knows the name can forge that."""
    fingerprint = record.get("fingerprint", "")
    return fingerprint != fingerprint_of(keys, mesh) and record.get("named") == name_mark(fingerprint, mesh)


def describe(me: PeerInfo, hosts: Sequence[str], keys: MeshKeys | None, mesh: str) -> dict[str, str]:
    """Return the TXT record of a peer that can be reached at `hosts` and `me.port`."""
    fingerprint = fingerprint_of(keys, mesh)
    record = {
        "version": str(PROTOCOL_VERSION),
        "fingerprint": fingerprint,
        "named": name_mark(fingerprint, mesh),
        "hosts": ",".join(hosts),
    }
    said = base64.b64encode(_seal(msgspec.msgpack.encode(me), record, keys)).decode()
    return record | {f"s{at}": said[start : start + _PIECE] for at, start in enumerate(range(0, len(said), _PIECE))}


def read_description(
    record: Mapping[str, str], port: int, keys: MeshKeys | None, mesh: str, own: Sequence[Interface]
) -> PeerInfo | None:
    """Return the peer that a TXT record introduces; None if it is of another mesh or out of reach.

    Raises RemoteProtocolError if it claims to be of this mesh, but is malformed, not sealed by a member, or of another
    version.
    """
    if record.get("fingerprint") != fingerprint_of(keys, mesh):
        return None
    if record.get("version") != str(PROTOCOL_VERSION):
        version = printable(record.get("version", ""), 20)
        raise RemoteProtocolError(f"a device speaks protocol version {version}, this one {PROTOCOL_VERSION}")
    try:
        said = base64.b64decode("".join(record.get(f"s{at}", "") for at in range(_MOST_PIECES)), validate=True)
        me = msgspec.msgpack.decode(_open(said, record, keys), type=PeerInfo)
        host = choose_host(record.get("hosts", "").split(","), own, is_on_link=True)
    except InvalidTag:
        raise RemoteProtocolError("an announcement without the seal of a member") from None
    except (*UNREADABLE, ValueError) as error:
        raise RemoteProtocolError(f"a malformed announcement: {error}") from None
    if me.port != port:
        raise RemoteProtocolError("an announcement of another port than the one that it is sealed with")
    return None if host is None else msgspec.structs.replace(me, host=host)


class _OneLine(logging.Filter):
    """Keep tracebacks of system errors out of the log: `AddressWatch` tells of a network that is gone."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a packet that had no network to leave by."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            record.exc_info = record.exc_text = None
        return not (isinstance(error, OSError) and error.errno in _NO_NETWORK)


# Called for each line that the library writes; adding it twice has no effect.
_ONE_LINE = _OneLine()


def open_zeroconf(own: Sequence[Interface]) -> Zeroconf:
    """Open mDNS on these addresses of ours. Raises OSError or zeroconf.Error if it is not available."""
    logging.getLogger("zeroconf").addFilter(_ONE_LINE)
    kinds = {each.version for each in own}
    version = IPVersion.All if len(kinds) > 1 else IPVersion.V6Only if kinds == {6} else IPVersion.V4Only
    return Zeroconf(interfaces=[str(each.ip) for each in own], ip_version=version)


def on_link(host: str, service: ServiceInfo) -> str:
    """Return the address as it can be dialled: a link-local one with the link that its record came by."""
    if not is_link_local(host):
        return host
    found = [each for each in service.parsed_scoped_addresses(IPVersion.V6Only) if bare(each) == host and "%" in each]
    return found[0] if found else host


class _Flood(RecordUpdateListener):
    """Counts new records on the network. too_many: called once, from zeroconf's thread, which keeps all records."""

    def __init__(self, too_many: Callable[[Zeroconf], None]) -> None:
        self._too_many: Callable[[Zeroconf], None] | None = too_many
        self._budget = TokenBucket(_RECORDS, _RECORDS_A_S)

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        for record in records:
            if self._too_many and record.old is None and not self._budget.take(now / 1000):
                self._too_many(zc)
                self._too_many = None


class Discovery(ServiceListener):
    """Announces `me` and hands every peer of the mesh to `found`, from another thread, until closed.

    A link-local address comes with the link that it was heard on. Another start of `me` is handed on, too: an ended
    one, or a process with a copy of our data directory.

    interfaces: names to use instead of the usual ones. loopback: 127.0.0.1 only, for peers on one machine.
    required: without multicast raise MeshNotFoundError instead of only warning (no address was given to join).
    sign: returns `me`, signed, as announced at these addresses; without it `me` is announced as it is.
    """

    def __init__(
        self,
        me: PeerInfo,
        mesh: str,
        keys: MeshKeys | None,
        found: Callable[[PeerInfo], None],
        *,
        interfaces: Sequence[str] | None = None,
        loopback: bool = False,
        required: bool = True,
        sign: Callable[[Sequence[str]], PeerInfo] | None = None,
    ) -> None:
        self._me = me
        self._sign = sign or (lambda hosts: me)
        self._mesh = mesh
        self._keys = keys
        self._found = found
        self._own = [LOOPBACK] if loopback else usable_interfaces(interfaces)
        self._lines = LogLimit(logger)
        self._zeroconf: Zeroconf | None = None
        self._announcer: threading.Thread | None = None
        self._turn = threading.RLock()  # held to start and stop
        self._is_over = threading.Event()
        self._is_other_told = False
        self._start(required)

    def close(self) -> None:
        """Say goodbye on the network and stop; takes up to about 0.7 s (RFC 6762 repeats packets)."""
        self._is_over.set()
        self._stop()

    def move(self, own: Sequence[Interface]) -> None:
        """Announce this machine's new addresses, and listen there."""
        with self._turn:
            self._stop()
            self._own = list(own)
            self._start(required=False)

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Handle a new service. The names of other meshes' services tell them apart, before any query."""
        if zc is not self._zeroconf:
            return  # closed meanwhile
        if not name.startswith(fingerprint_of(self._keys, self._mesh)):
            self._look_at_other(zc, name)
            return
        try:
            info = zc.get_service_info(type_, name, timeout=_DETAILS_MS)
        except NotRunningException:
            return  # closed while it was being asked about
        except EventLoopBlocked:  # raised from here it would end the thread, and nobody would be found any more
            self._lines.warning(
                time.monotonic(), "", "too busy to ask the announced device: its next announcement will do"
            )
            return
        if info is None or info.port is None:
            return
        record = {key: value or "" for key, value in info.decoded_properties.items()}
        try:
            peer = read_description(record, info.port, self._keys, self._mesh, self._own)
        except RemoteProtocolError as error:
            self._lines.warning(time.monotonic(), "", "announcement ignored: %s", error)
            return
        except Exception:  # noqa: BLE001 (a bug that it met: raised from here it would end the thread, too)
            self._lines.bug(time.monotonic(), "", "an announcement met a bug here, and is ignored")
            return
        if peer is not None and (peer.peer_id, peer.incarnation) != (self._me.peer_id, self._me.incarnation):
            self._found(msgspec.structs.replace(peer, host=on_link(peer.host, info)))

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Do nothing: a goodbye can be forged, and the peer's silence will tell."""

    def _look_at_other(self, zc: Zeroconf, name: str) -> None:
        """Log once that another mesh has our name. No query is sent, so that strangers keep nobody busy."""
        service = ServiceInfo(SERVICE, name)
        if self._is_other_told or not service.load_from_cache(zc):
            return
        record = {key: value or "" for key, value in service.decoded_properties.items()}
        if is_namesake(record, self._keys, self._mesh):
            self._is_other_told = True
            where = printable(record.get("hosts", "").partition(",")[0], _LONGEST_HOST)
            logger.warning(
                "another mesh named %r is on this network (at %s); it has another code: its devices are ignored",
                self._mesh,
                where,
            )

    def _stop(self) -> None:
        with self._turn:
            if self._zeroconf is not None:
                if self._announcer is not None:
                    self._announcer.join(_CLOSE_S)
                closing, self._zeroconf = self._zeroconf, None
                try:
                    closing.remove_all_service_listeners()  # `close` leaves them if a flood has ended it
                    closing.close()
                except (OSError, Error, TimeoutError) as error:  # too busy: this must not change how the run ends
                    logger.warning("mDNS has not said goodbye: %s", str(error) or type(error).__name__)

    def _pause(self, zc: Zeroconf) -> None:
        """Stop hearing and announcing at once, as the network is flooded; all that came is forgotten.

        Called in zeroconf's own thread, so its sockets can be closed at once. An end that says goodbye takes a second,
        and a flood brings ten times as much in it.
        """
        zc.done = True
        zc.engine.close()
        threading.Thread(target=self._sit_out, args=(zc,), name="mdl-mdns-pause", daemon=True).start()

    def _sit_out(self, zc: Zeroconf) -> None:
        with self._turn:
            if zc is not self._zeroconf:
                return  # closed meanwhile, or begun anew
            logger.warning("mDNS is flooded: for %.0f s new peers are found by --join alone", PAUSE_S)
            self._stop()
        if self._is_over.wait(PAUSE_S):
            return
        with self._turn:
            if self._zeroconf is None and not self._is_over.is_set():
                self._start(required=False)

    def _start(self, required: bool) -> None:
        problem = "this machine is on no network"
        if self._own:
            try:
                self._zeroconf = open_zeroconf(self._own)
                self._zeroconf.add_listener(_Flood(self._pause), None)
                self._zeroconf.add_service_listener(SERVICE, self)  # its thread ends with `close`
                self._announcer = threading.Thread(target=self._announce, name="mdl-mdns", daemon=True)
                self._announcer.start()
                return
            except (OSError, Error) as error:
                problem = str(error)
        if required:
            raise MeshNotFoundError(f"mDNS is not available ({problem}): give --join HOST:PORT of a member")
        logger.warning("mDNS is not available (%s): only the given addresses are joined", problem)

    def _announce(self) -> None:
        """Announce without probing: the name holds the incarnation; clashes are harmless (`cooperating_responders`)."""
        hosts = [str(interface.ip) for interface in self._own][:MAX_HOSTS]
        service = ServiceInfo(
            SERVICE,
            f"{_instance_name(self._me, fingerprint_of(self._keys, self._mesh))}.{SERVICE}",
            port=self._me.port,
            properties=describe(self._sign(hosts), hosts, self._keys, self._mesh),
            parsed_addresses=hosts,
            server=f"{_instance_name(self._me, 'mdl')}.local.",
        )
        try:
            if self._zeroconf is not None:
                self._zeroconf.register_service(service, cooperating_responders=True)
        except (OSError, Error, TimeoutError) as error:
            logger.warning("mDNS: this node could not be announced: %s", error)


def _bound(record: Mapping[str, str]) -> bytes:
    """Return the clear part of a record, which the seal is bound to."""
    return "|".join(record[key] for key in ("version", "fingerprint", "named", "hosts") if key in record).encode()


def _seal(said: bytes, record: Mapping[str, str], keys: MeshKeys | None) -> bytes:
    if keys is None:
        return said
    nonce = token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(keys.beacon_key).encrypt(nonce, said, _bound(record))


def _open(said: bytes, record: Mapping[str, str], keys: MeshKeys | None) -> bytes:
    """Open the seal. Raises InvalidTag, or ValueError if it is too short."""
    if keys is None:
        return said
    return ChaCha20Poly1305(keys.beacon_key).decrypt(said[:_NONCE_BYTES], said[_NONCE_BYTES:], _bound(record))


def _instance_name(me: PeerInfo, prefix: str) -> str:
    """Return a unique name with this prefix, at most 63 bytes (RFC 1035)."""
    return f"{prefix}-{hashlib.sha256(f'{me.peer_id}/{me.incarnation}/{me.port}'.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Announcement:
    """The content of a TXT record. of_ours: it has the fingerprint of our mesh. mesh: its name, if looked for.

    hosts: link-local ones with the link that they were heard on. peer_id, role, schema: of a member of our mesh; others
    seal them. problem: the reason why it is no member that we can understand, "" otherwise. signed_ms: the time of the
    signature, milliseconds since 1970; 0 if it is not signed.
    """

    peer_id: str
    mesh: str
    fingerprint: str
    version: str
    role: str
    schema: str
    hosts: tuple[str, ...]
    port: int
    of_ours: bool
    problem: str = ""
    signed_ms: int = 0

    @property
    def is_other_version(self) -> bool:
        return self.version != str(PROTOCOL_VERSION)


class Survey(ServiceListener):
    """Listens from its start to `close`. Raises OSError or zeroconf.Error if multicast is not available.

    others: names of more meshes that are looked for, such as the other runs of this one.
    """

    def __init__(self, mesh: str, keys: MeshKeys | None, own: Sequence[Interface], others: Sequence[str] = ()) -> None:
        self._mesh, self._keys, self._own, self._others = mesh, keys, own, others
        self._found: dict[str, Announcement] = {}
        self._lock = threading.Lock()
        self._zeroconf = open_zeroconf(own)
        self._zeroconf.add_service_listener(SERVICE, self)

    def found(self) -> list[Announcement]:
        """Return the announcements until now, the newest of each name."""
        with self._lock:
            return list(self._found.values())

    def close(self) -> None:
        self._zeroconf.close()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        try:
            info = zc.get_service_info(type_, name, timeout=_DETAILS_MS)
        except (NotRunningException, EventLoopBlocked, Error):
            return
        if info is None or info.port is None:
            return
        record = {key: value or "" for key, value in info.decoded_properties.items()}
        with self._lock:
            if len(self._found) < MAX_MEMBERS or name in self._found:
                self._found[name] = self._describe(record, info)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Do nothing: one announcement is enough for a look around."""

    def _describe(self, record: dict[str, str], service: ServiceInfo) -> Announcement:
        fingerprint, version = (printable(record.get(key, ""), _LONGEST) for key in ("fingerprint", "version"))
        port, problem, of_ours = service.port or 0, "", fingerprint == fingerprint_of(self._keys, self._mesh)
        info: PeerInfo | None = None
        try:
            info = read_description(record, port, self._keys, self._mesh, self._own)
        except RemoteProtocolError as error:
            problem = str(error)
        hosts = tuple(_dialled(printable(host, _LONGEST), service) for host in record.get("hosts", "").split(",")[:8])
        peer_id, role, schema = (info.peer_id, info.role.value, info.schema_hash) if info else ("a device", "", "")
        names = (self._mesh, *self._others)
        mesh = next((name for name in names if record.get("named", "") == name_mark(fingerprint, name)), "")
        signed_ms = info.proof.serial if info and info.proof else 0
        return Announcement(peer_id, mesh, fingerprint, version, role, schema, hosts, port, of_ours, problem, signed_ms)


def _dialled(host: str, service: ServiceInfo) -> str:
    """Return a host with its link, if it needs one; any other text of a stranger stays as it is."""
    try:
        return on_link(host, service)
    except ValueError:
        return host


def is_near(host: str, own: Sequence[IPv4Interface]) -> bool:
    """Return True if an IPv4 address lies in a network that this machine is on."""
    try:
        return any(IPv4Address(host) in each.network for each in own)
    except AddressValueError:
        return False


@contextmanager
def announced(port: int, own: Sequence[IPv4Interface]) -> Iterator[None]:
    """Announce an open invitation on these networks. Raises MeshNotFoundError if mDNS is not available."""
    hosts, name = [str(each.ip) for each in own], secrets.token_hex(8)
    service = ServiceInfo(
        INVITATION_SERVICE,
        f"{name}.{INVITATION_SERVICE}",
        port=port,
        properties={},
        parsed_addresses=hosts,
        server=f"{name}.local.",
    )
    with _opened(own) as zeroconf:
        zeroconf.register_service(service, cooperating_responders=True)  # a random name is nobody else's
        yield


def find_invitations(own: Sequence[IPv4Interface], wait_s: float) -> list[Address]:
    """Return the open invitations on these networks; wait so long for the first.

    Raises MeshNotFoundError as `announced`.
    """
    with _opened(own) as zeroconf:
        heard = _Heard(own)
        zeroconf.add_service_listener(INVITATION_SERVICE, heard)
        if heard.first.wait(wait_s):
            heard.more.wait(_SETTLE_S)
        return list(heard.addresses)


@contextmanager
def _opened(own: Sequence[IPv4Interface]) -> Iterator[Zeroconf]:
    problem = "this machine is on no network"
    try:
        zeroconf = Zeroconf(interfaces=[str(each.ip) for each in own], ip_version=IPVersion.V4Only) if own else None
    except (OSError, Error) as error:
        zeroconf, problem = None, str(error)
    if zeroconf is None:
        raise MeshNotFoundError(f"mDNS is not available ({problem}): give --at HOST:PORT of the inviting device")
    try:
        yield zeroconf
    finally:
        zeroconf.close()


class _Heard(ServiceListener):
    """The open invitations heard so far. addresses: in our own networks, in the order in which they came."""

    def __init__(self, own: Sequence[IPv4Interface]) -> None:
        self._own = own
        self.addresses: dict[Address, None] = {}
        self.first, self.more = threading.Event(), threading.Event()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        try:
            info = zc.get_service_info(type_, name, timeout=_DETAILS_MS)
        except (NotRunningException, EventLoopBlocked, Error):
            return  # closed meanwhile, or nonsense
        hosts = info.parsed_addresses(IPVersion.V4Only) if info else []
        near = next((host for host in hosts if is_near(host, self._own)), None)
        if info is None or not info.port or near is None or len(self.addresses) >= _MOST_INVITATIONS:
            return
        (self.more if self.addresses else self.first).set()
        self.addresses[Address(near, info.port)] = None

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Do nothing: it was there a moment ago, and trying it will tell."""
