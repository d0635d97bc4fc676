"""Checks of the way to a device that answers: packets that vanish, large ones alone, and how long they take."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from peers.doctor.finding import Finding, fail, note, ok
from transport.discovery.echo import Echoes, echo
from transport.discovery.interfaces import name_of
from transport.links.sockets import local_host_towards

_SMALL_BYTES, _SMALLEST_MTU, _USUAL_MTU = 64, 576, 1_500
_MANY, _FEW = 12, 3
_WAIT_S = 0.4
# A mesh of four closes a round with a fifth of all frames lost, and slowly; a tenth is worth a word.
_MUCH_LOSS, _LONG_S = 0.1, 0.2


def check_path(name: str, host: str) -> Iterator[Finding]:
    """Takes up to some 8 s where everything is lost, else well under one."""
    small = echo(host, _SMALL_BYTES, _MANY, _WAIT_S)
    if small is None or not small.round_trips_s:
        yield ok("path", f"{name}: echo requests are not allowed or not answered, so that the way is not measured")
        return
    if _find_mtu(host) >= _USUAL_MTU:
        large = echo(host, _find_mtu(host), _FEW, _WAIT_S)
        if large and not large.too_long and not large.round_trips_s:
            fits = _largest_that_fits(host)
            told = f"{name}: packets above {fits} bytes vanish on the way, and nobody says so (an MTU black hole)"
            own = name_of(local_host_towards(host)) or "eth0"
            yield fail("mtu", told, f"sudo ip link set {own} mtu {fits}, or mend the tunnel or switch between")
    yield _tell(name, small)


def _tell(name: str, small: Echoes) -> Finding:
    best_s = min(small.round_trips_s)
    told = f"{name}: {best_s * 1e3:.1f} ms there and back, {small.loss:.0%} of {small.sent} lost"
    if small.loss > _MUCH_LOSS:
        return note("path", told, "rounds take several times as long: move nearer, another channel, a cable")
    if best_s > _LONG_S:
        return note("path", told, "rounds wait for it: is there a VPN or a mobile network between?")
    return ok("path", told)


def _find_mtu(host: str) -> int:
    stats = psutil.net_if_stats().get(name_of(local_host_towards(host)) or "")
    return min(stats.mtu, 9_000) if stats and stats.mtu else 0


def _largest_that_fits(host: str) -> int:
    """By halving, to 8 bytes."""
    fits, too_long = _SMALLEST_MTU, _find_mtu(host)
    while too_long - fits > 8:
        tried = (fits + too_long) // 2
        found = echo(host, tried, 2, _WAIT_S / 2)
        if found and found.round_trips_s:
            fits = tried
        else:
            too_long = tried
    return fits
