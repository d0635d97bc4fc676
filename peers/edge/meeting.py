"""The port where a node listens, and the scan for peers where multicast finds none."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from typing import Any

import msgspec

from mdl.config import MeshSection
from mdl.errors import ConfigError
from mdl.peers.edge.membership import open_membership
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.interfaces import DEFAULT_PORT, Scan, host_to_listen_on, usable_interfaces
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Runtime
from mdl.transport.trust.keys import Mesh


def open_links(info: PeerInfo, mesh: Mesh, section: MeshSection, max_values: int) -> Links:
    """Open the links at the requested port; without one at DEFAULT_PORT, or at a free one if that is taken.

    Observers leave DEFAULT_PORT to a peer: a firewall lets that port in, and scans look there for peers.
    """

    def at(port: int) -> Links:
        return Links(
            msgspec.structs.replace(info, port=port),
            mesh.keys,
            max_values=max_values,
            now=time.monotonic(),
            listen_host="127.0.0.1" if section.loopback else host_to_listen_on(section.listen),
            join=section.join,
            insecure=section.insecure,
            membership=open_membership(mesh.keys) if mesh.keys else None,
        )

    if info.port or section.loopback or section.insecure or info.role is Role.OBSERVER:
        return at(info.port)
    try:
        return at(DEFAULT_PORT)
    except ConfigError:  # another peer of this machine has it; any other error occurs again at port 0
        return at(0)


def scanning(runtime: Runtime[Links], section: MeshSection) -> Any:
    """Return a context that scans the usual port for members while no peer is known."""
    if not section.scan or section.loopback or section.insecure or section.join:
        return nullcontext()
    links = runtime.links
    return closing(
        Scan(
            usable_interfaces(section.interfaces or None),
            lambda: not links.directory.everyone(),
            lambda there: runtime.with_links(lambda links, now: links.greetings.try_some(there, now)),
        )
    )
