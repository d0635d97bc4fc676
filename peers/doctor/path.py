"""Checks of the way to a device that answers: lost packets, lost large packets, delay, and speed.

Echo requests measure it if both sides allow them; TCP finds a black hole, too. Each check is a sample of about a
second.
"""

from __future__ import annotations

from collections.abc import Iterator

from mdl.peers.doctor.finding import Finding, fail, note, ok
from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.interfaces import interface_states, name_of
from mdl.transport.discovery.reach import Echoes, are_taken, echo, measure_speed
from mdl.transport.links.sockets import local_host_towards

_SMALL_BYTES, _USUAL_MTU = 64, 1_500
# The sizes that each network of IPv4 (RFC 791) and IPv6 (RFC 8200) must take.
_SMALLEST_MTU, _SMALLEST_MTU_V6 = 576, 1_280
_MANY, _FEW = 12, 3
_WAIT_S = 0.8
_SEGMENTS_S = 1.5
# A mesh of four closes a round with a fifth of all frames lost, and slowly; a tenth is worth a note.
_MUCH_LOSS, _LONG_S = 0.1, 0.2
# Below the first, LeNet's parameters, 0.4 MB, take more than a second each way. A train of echoes cannot tell speeds
# above the second apart.
_SLOW_MB_S, _FAST_MB_S = 0.4, 12.0


def check_path(name: str, at: Address, link_mb_s: float | None) -> Iterator[Finding]:
    """Check the way; takes up to some 5 s if all is lost, else well under one.

    link_mb_s: the speed that the mesh has measured.
    """
    small = echo(at.host, _SMALL_BYTES, _MANY, _WAIT_S)
    if not small or not small.round_trips_s:
        if are_taken(at, _SEGMENTS_S) is False:
            yield _tell_hole(name, at.host, "large packets")
        yield ok("path", f"{name}: echo requests are not allowed or not answered{_tell_speed(link_mb_s, '')}")
        return
    if _find_mtu(at.host) >= _USUAL_MTU:
        large = echo(at.host, _find_mtu(at.host), _FEW, _WAIT_S)
        if large and not large.too_long and not large.round_trips_s:
            fits = _largest_that_fits(at.host, max(0.1, 4 * min(small.round_trips_s)))
            yield _tell_hole(name, at.host, f"packets above {fits} bytes", fits)
            yield _tell(name, small, link_mb_s)
            return
    is_new = link_mb_s is None and small.loss <= _MUCH_LOSS
    measured = measure_speed(at.host, min(_find_mtu(at.host) or _USUAL_MTU, _USUAL_MTU)) if is_new else None
    yield _tell(name, small, measured / 1e6 if measured else link_mb_s)


def check_loss(name: str, host: str) -> Finding | None:
    """Report a device behind a silent port, if the cause is packet loss."""
    small = echo(host, _SMALL_BYTES, _MANY, _WAIT_S)
    return _tell(name, small, None) if small and small.round_trips_s and small.loss > _MUCH_LOSS else None


def _tell(name: str, small: Echoes, link_mb_s: float | None) -> Finding:
    best_s = min(small.round_trips_s)
    told = f"{name}: {best_s * 1e3:.1f} ms there and back, {small.loss:.0%} of {small.sent} lost"
    told += _tell_speed(link_mb_s, ", ")
    if small.loss > _MUCH_LOSS:
        return note("path", told, "rounds take several times as long: move nearer, another channel, a cable")
    if link_mb_s is not None and link_mb_s < _SLOW_MB_S:
        do = f"a model of 1 MB takes {1 / link_mb_s:.0f} s each way: a cable, another channel, or --compress"
        return note("path", told, do)
    if best_s > _LONG_S:
        return note("path", told, "rounds wait for it: is there a VPN or a mobile network between?")
    return ok("path", told)


def _tell_speed(mb_s: float | None, before: str) -> str:
    if mb_s is None:
        return ""
    mbit = 8 * mb_s
    return f"{before}more than 100 Mbit/s" if mb_s > _FAST_MB_S else f"{before}some {mbit:.2g} Mbit/s"


def _tell_hole(name: str, host: str, which: str, fits: int = 1_280) -> Finding:
    told = f"{name}: {which} vanish on the way, and no error comes back (an MTU black hole)"
    own = name_of(local_host_towards(host)) or "eth0"
    return fail("mtu", told, f"sudo ip link set {own} mtu {fits}, or mend the tunnel or switch between")


def _find_mtu(host: str) -> int:
    stats = (interface_states() or {}).get(name_of(local_host_towards(host)) or "")
    return min(stats.mtu, 9_000) if stats and stats.mtu else 0


def _largest_that_fits(host: str, wait_s: float) -> int:
    """Find it by halving, to 8 bytes."""
    fits, too_long = _SMALLEST_MTU_V6 if ":" in host else _SMALLEST_MTU, _find_mtu(host)
    while too_long - fits > 8:
        tried = (fits + too_long) // 2
        found = echo(host, tried, 2, wait_s)
        if found and found.round_trips_s:
            fits = tried
        else:
            too_long = tried
    return fits
