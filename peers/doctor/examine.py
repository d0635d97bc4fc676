"""All checks, in the order in which things break: this machine, its network, the mesh, the way to each device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mdl.config import MeshSection
from mdl.errors import ConfigError
from peers.doctor.finding import Finding, broken, fail
from peers.doctor.machine import check_machine, check_torch
from peers.doctor.mesh import check_mesh, look_at_mesh
from peers.doctor.network import check_interfaces, check_multicast, check_port, check_wifi
from peers.edge.identity import state_home
from transport.trust.keys import Mesh

_NEW_MESH = "mdl mesh new home makes one; on the other devices: mdl doctor --code ... as it shows"


def examine(find_mesh: Callable[[], Mesh], section: MeshSection, wait_s: float) -> Iterator[Finding]:
    """find_mesh: raises ConfigError where there is no join code, or a wrong one. wait_s: for the others, at most."""
    with ThreadPoolExecutor(1) as beside:
        torch = beside.submit(check_torch)  # seconds, without this process having to hold it
        yield from check_machine(state_home("mesh"))
        finding, own = check_interfaces(section)
        yield finding
        if own:
            yield from check_wifi(own)
            yield from check_multicast(own)
            port = check_port(section)
            yield port
        yield torch.result()
    try:
        mesh = find_mesh()
    except ConfigError as error:
        yield fail("code", str(error), _NEW_MESH)
        return
    if own and not broken([port]):
        with look_at_mesh(mesh, section, own, wait_s) as sight:
            yield from check_mesh(mesh, section, own, sight)


def exit_code(findings: list[Finding]) -> int:
    """0 if a mesh would work, 3 if all that is missing are the others, else 4."""
    failed = broken(findings)
    if not failed:
        return 0
    return 3 if all(finding.check == "members" for finding in failed) else 4
