"""All checks, in the order in which things break: this machine, its network, the mesh, the way to each device.

Slow checks run side by side: torch is imported and multicast listened to while the mesh is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from mdl.config import Config, MeshSection
from mdl.errors import ConfigError
from mdl.peers.doctor.device import (
    build_own_model,
    check_clocks,
    check_key,
    check_machine,
    check_name,
    check_own_model,
    check_standing,
    check_torch,
)
from mdl.peers.doctor.finding import Finding, broken, fail
from mdl.peers.doctor.mesh import check_mesh, look_at_mesh
from mdl.peers.doctor.network import (
    check_addresses,
    check_hardware,
    check_interfaces,
    check_multicast,
    check_multicast_loss,
    check_port,
    check_wifi,
)
from mdl.peers.edge.identity import state_home
from mdl.transport.trust.keys import Mesh

_NEW_MESH = "mdl mesh new home makes one; on the other devices: mdl doctor --code @FILE with that code"


def examine(
    find_mesh: Callable[[], Mesh], section: MeshSection, wait_s: float, config: Config | None = None
) -> Iterator[Finding]:
    """Yield all findings. find_mesh: raises ConfigError if there is no join code, or a wrong one.

    wait_s: for the others, at most. config: of the peer that is to run here, if its model is to be checked, too.
    """
    with ThreadPoolExecutor(4) as beside:
        torch = beside.submit(check_torch)  # takes seconds; this process need not hold it
        model = beside.submit(build_own_model, config) if config else None
        machine = list(check_machine(state_home("mesh")))
        yield from machine
        key = check_key()
        yield key
        interfaces, own = check_interfaces(section)
        yield interfaces
        multicast = beside.submit(check_multicast, own)
        hardware = beside.submit(check_hardware, own)
        port = check_port(section)
        mesh = _find(find_mesh)
        descriptors = [finding for finding in machine if finding.check == "descriptors"]
        is_able = bool(own) and not broken([*descriptors, key, port])
        look = look_at_mesh(mesh, section, own, wait_s) if is_able and isinstance(mesh, Mesh) else nullcontext()
        with look as sight:
            yield from check_addresses(own)
            yield from hardware.result()
            yield from check_wifi(own)
            yield from multicast.result()
            if own:
                yield port
            yield torch.result()
            if isinstance(mesh, Finding):
                yield mesh
            elif sight:
                yield from check_clocks(sight)
                yield from check_standing(sight)
                yield from check_name(sight, state_home(mesh.name))
                yield from check_mesh(mesh, section, own, sight)
                yield from check_multicast_loss(own, {info.host for info in sight.heard})
                if model and not broken([torch.result()]):
                    yield check_own_model(model.result(), sight)


def exit_code(findings: list[Finding]) -> int:
    """Return 0 if a mesh would work, 3 if only the other devices are missing, else 4."""
    failed = broken(findings)
    if not failed:
        return 0
    return 3 if all(finding.check == "members" for finding in failed) else 4


def _find(find_mesh: Callable[[], Mesh]) -> Mesh | Finding:
    try:
        return find_mesh()
    except ConfigError as error:
        return fail("code", str(error), _NEW_MESH)
