"""All mdl announcements on the local network, of any mesh and version: for a look around, not for a mesh.

Nothing here is trusted: anybody can announce anything. Statements with a member's proof are kept apart from the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from zeroconf import Error, EventLoopBlocked, NotRunningException, ServiceInfo, ServiceListener, Zeroconf

from mdl.bounds import MAX_MEMBERS, printable
from mdl.errors import RemoteProtocolError
from mdl.protocol.messages import PROTOCOL_VERSION
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.discovery.mdns import (
    SERVICE,
    fingerprint_of,
    name_mark,
    on_link,
    open_zeroconf,
    read_description,
)
from mdl.transport.discovery.scopes import Interface
from mdl.transport.trust.keys import MeshKeys

_DETAILS_MS = 1_000
# The longest text shown of a stranger.
_LONGEST = 64


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
