"""The other active runs of a mesh, for a user that looked for a run that is not there."""

from __future__ import annotations

import threading

from zeroconf import Error

from mdl.config import MeshSection
from mdl.peers.edge.identity import other_runs
from mdl.transport.discovery.interfaces import usable_interfaces
from mdl.transport.discovery.mdns import Survey
from mdl.transport.trust.keys import Mesh, show_name

# The first announcement brings most of them.
_LOOK_S = 1.5


def tell_active(mesh: Mesh, section: MeshSection) -> str:
    """Return "; home/walk is active: --mesh home/walk" for each active run that this machine has been in."""
    others = other_runs(mesh.name)
    if not others or section.loopback:
        return ""
    try:
        survey = Survey(mesh.name, mesh.keys, usable_interfaces(section.interfaces or None), others)
    except (OSError, Error):
        return ""
    try:
        threading.Event().wait(_LOOK_S)
        found = sorted({show_name(each.mesh) for each in survey.found() if each.mesh in others})
    finally:
        survey.close()
    return "".join(f"; {each} is active: --mesh {each}" for each in found)
