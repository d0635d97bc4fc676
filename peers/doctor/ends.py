"""Reports where a connection to a device ends, and on which side to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address

from mdl.peers.doctor.finding import Finding, fail
from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.interfaces import name_of
from mdl.transport.discovery.scan import DEFAULT_PORT
from mdl.transport.discovery.scopes import Interface
from mdl.transport.links.probe import Reached
from mdl.transport.links.sockets import local_host_towards

SAME_CODE = "mdl mesh show NAME shows the code on each device: give all of them the same, mdl peer --code ..."


def tell_end(name: str, at: Address, reached: Reached, own: Sequence[Interface], is_heard: bool = False) -> Finding:
    """Report the end of a connection. reached: how far a connection to its port came. is_heard: it reaches us."""
    where = name if at.host in name else f"{name} at {at.host}:{at.port}"
    if lost := _find_detour(at.host, own):
        do = f"ip route get {at.host}; exclude the local network in the settings of the VPN"
        return fail("way", f"the way to {where} leads over {lost}, not into the network that it is in", do)
    if is_heard and reached in (Reached.NO_WAY, Reached.REFUSED, Reached.SILENT):
        do = f"a firewall on one of the two: allow TCP to port {at.port} out of here; there {_open(at.port)}"
        return fail("port", f"{where} reaches this machine, but not the other way round ({reached.value})", do)
    match reached:
        case Reached.NO_WAY if is_near(at.host, own):
            do = "is it on? else the Wi-Fi keeps its clients apart: a guest network, or client isolation in the router"
            return fail("way", f"{where} is in this very network, but nothing gets there", do)
        case Reached.NO_WAY:
            do = f"both must be in one network with one netmask, or a route must lead there: ip route get {at.host}"
            return fail("way", f"no way to {where}: {_tell_networks(own)}, and no route leads there", do)
        case Reached.REFUSED:
            do = f"is it running? there: mdl doctor --peer THIS-ADDRESS, or ss -ltn; or a firewall: {_open(at.port)}"
            return fail("port", f"{where}: nobody listens there", do)
        case Reached.SILENT:
            do = f"a firewall on it, or client isolation of the Wi-Fi (a guest network), drops it; {_open(at.port)}"
            return fail("port", f"{where} does not answer on its TCP port", do)
        case Reached.NOT_MDL:
            do = "give the port that mdl status shows; if it is mdl, it hangs: start it again"
            return fail("port", f"{where}: another program is listening on that port", do)
        case Reached.OTHER_KEYS:
            return fail("code", f"{where} is in another mesh: it does not know our join code", SAME_CODE)
    do = f"a firewall here: {_open(DEFAULT_PORT)} (another --port: that one); the same mdl on both? mdl --version"
    return fail("port", f"{where} lets this machine in, but its answer does not come back", do, "--join from its side")


def tell_second_port(name: str, at: Address) -> Finding:
    """Report a device with an open first port, but no second one, which takes members' messages."""
    told = f"{name} at {at.host} is open at its first port, but not at port {at.port}, which takes members' words"
    return fail("port", told, f"a firewall there, or here on the way out: {_open(at.port - 1)}")


def tell_shut_out(name: str, at: Address) -> Finding:
    """Report that the join code is right, but this device's own key is refused."""
    told = f"{name} at {at.host} knows our join code, and does not let this device in: an owner has revoked it"
    do = "mdl mesh members, on another device, shows it; a revocation is for ever"
    return fail("device", told, do, "become another device: remove its device.key, or MDL_KEY=@NEW-FILE")


def _open(port: int) -> str:
    """Return the commands that open a port, the next one, which takes members' messages, and the same of UDP."""
    return f"sudo ufw allow {port}:{port + 1}/tcp; sudo ufw allow {port}/udp (or firewall-cmd --add-port)"


def _find_detour(host: str, own: Sequence[Interface]) -> str:
    """Return the interface for packets to a host of our network, if it is not on that network; else ""."""
    near = [str(each.ip) for each in own if is_near(host, [each])]
    by = local_host_towards(host)
    is_lost = by.startswith("127.")
    return (name_of(by) or by) if near and not is_lost and host not in near and by not in (*near, host) else ""


def is_near(host: str, own: Sequence[Interface]) -> bool:
    return any(IPv4Address(host) in each.network for each in own) if ":" not in host else False


def _tell_networks(own: Sequence[Interface]) -> str:
    return f"this machine is in {', '.join(str(each.network) for each in own[:4])}"
