"""The owners of a round's segments: shares by bandwidth, so that no link is slower than the round has to be.

N devices send M bytes each at least, and 2 (N-1) M together. Owner i of the share s_i gets N-1 pieces and gives N-1
results of it, and gets and gives the rest once: M (1 + (N-2) s_i) each way, over a link of r_i bytes a second. The
shares that end all owners at the same time T are s_i = (r_i T / M - 1) / (N-2). The slowest device sets a minimum for
the time. A device that can only send and receive its M in that time owns nothing. Nor does one that does not reach all
others: an owner exchanges with everybody. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from mdl.bounds import first_few
from mdl.config import Compress
from mdl.protocol.coding import Coding, part_of_bytes
from mdl.protocol.segments import count_segments, segment_values
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView
from mdl.scheduler.policies.device_book import usual_link

# Assumed if no link is measured yet. If some are, the others are probably like those.
_ANY_MB_S = 1.0
# Links with measured speeds within this factor are taken for equal: measurements of one link differ too, and a share
# that is too large costs more than one that is too small.
_SAME = 1.3
# A round that the links allow in less time is not worth rounding values, or rounding them more.
_LONG_S = 0.5
# int4 cost no more accuracy than int8 in all measurements (docs/results.md), and is an eighth of the steps.
_MILDEST: tuple[Coding, ...] = ("none", "int8")
# Owners that together could own the model this many times need not go to their limits.
_ROOM = 2.0


class SegmentPlan(msgspec.Struct, frozen=True):
    """owns: peer id -> number of segments, of all contributors. values: float32 of one segment. reason: in words.

    bound_s: the best time that the links allow, as far as they are known; 0.0: none is. coding: of segments on the way.
    """

    owns: dict[str, int]
    values: int
    reason: str
    bound_s: float = 0.0
    coding: Coding = "none"

    def vector_bytes(self, size: int) -> int:
        """Return the bytes of a delta of `size` values, as it travels: the mean of an own one and the result."""
        return round(4 * size * packed_part(self.coding, len(self.owns)))

    def work_of(self, peer_id: str, size: int) -> tuple[int, int]:
        """Return the bytes that a device sends (and receives), and the bytes of values that it merges as an owner."""
        share, others = self.owns.get(peer_id, 0) / sum(self.owns.values()), len(self.owns) - 1
        return round(self.vector_bytes(size) * (1.0 + (others - 1) * share)), round(4 * size * others * share)


def plan_segments(view: ChainView, size: int, values: int = 0, coding: Coding = "none") -> SegmentPlan | None:
    """Plan for all live devices of a view, for a delta of `size` values; None if no device may own any.

    values: of one segment; 0: as many as fit a model of that size. coding: of the round.
    """
    devices = [device for device in view.devices if device.state is not DeviceState.DEAD]
    here = {device.peer_id for device in devices}
    apart = {peer_id for pair in view.apart if here.issuperset(pair) for peer_id in pair}
    able = [device for device in devices if device.may_receive and device.peer_id not in apart]
    idle = [device for device in able if not _is_used(device)] or able
    if not idle:
        return None
    known = any(device.link_mb_s for device in devices)
    usual = usual_link((device.link_mb_s for device in devices), _ANY_MB_S)
    rates = level([device.link_mb_s or usual for device in devices])
    shares, time_per_mb = bandwidth_shares(rates, [device in idle for device in devices])
    uncoded_s = 4e-6 * size * time_per_mb if known else 0.0
    # A segment has to keep a link busy for as long, however few bytes its values take.
    carries_mb_s = usual / packed_part(coding, len(devices)) if known else 0.0
    values = values or segment_values(size, carries_mb_s, sum(share > 0.0 for share in shares))
    owns = dict(
        zip([device.peer_id for device in devices], apportion(shares, count_segments(size, values)), strict=True)
    )
    bound_s = uncoded_s * packed_part(coding, len(devices))
    coded = _tell_coding(coding, uncoded_s)
    given = zip(devices, shares, strict=True)
    none = {device.peer_id: _why_none(device, share) for device, share in given if not owns[device.peer_id]}
    none |= {peer_id: "does not reach all" for peer_id in none if peer_id in apart}
    return SegmentPlan(owns, values, _tell(owns, values, bound_s, coded, none), bound_s, coding)


def choose_coding(link_mb_s: Sequence[float | None], size: int, compress: Compress) -> Coding:
    """Return the coding of a round that begins: the one that is set, or for "auto" by the links, in MB/s each."""
    if compress != "auto":
        return compress
    if not any(link_mb_s):
        return "none"
    usual = usual_link(link_mb_s, _ANY_MB_S)
    _, time_per_mb = bandwidth_shares(level([link or usual for link in link_mb_s]), [True] * len(link_mb_s))
    bound_s = 4e-6 * size * time_per_mb
    short = (coding for coding in _MILDEST if bound_s * packed_part(coding, len(link_mb_s)) < _LONG_S)
    return next(short, "int4")  # that rounds least, and still makes the round short enough


def packed_part(coding: Coding, devices: int) -> float:
    """Return about which part of a round's bytes travels when packed: of own deltas, and as much of results."""
    return (part_of_bytes(coding) + part_of_bytes(coding, devices)) / 2


def level(rates: Sequence[float]) -> list[float]:
    """Return the same rates, MB/s; replace those that are close together by their mean."""
    order = sorted(range(len(rates)), key=lambda number: rates[number])
    leveled = list(rates)
    while order:
        group = [number for number in order if rates[number] <= _SAME * rates[order[0]]]
        mean = fmean(rates[number] for number in group)
        for number in group:
            leveled[number] = mean
        order = order[len(group) :]
    return leveled


def bandwidth_shares(rates: Sequence[float], may_own: Sequence[bool]) -> tuple[list[float], float]:
    """Return the devices' shares, which sum up to 1, and the seconds that a megabyte's round takes at best.

    rates: MB/s of each link, both ways, above 0. may_own: True for at least one.
    """
    count, owners = len(rates), [number for number, may in enumerate(may_own) if may]
    if count <= 2:
        return [1.0 / len(owners) if may else 0.0 for may in may_own], 1.0 / min(rates)
    time = max((count - 2 + len(owners)) / sum(rates[number] for number in owners), 1.0 / min(rates))
    wanted = [(rate * time - 1.0) / (count - 2) if may else 0.0 for rate, may in zip(rates, may_own, strict=True)]
    while True:  # a device that cannot even send its own delta by then owns nothing, and the others own more
        owners = [number for number in owners if wanted[number] > 0.0]
        if not owners:
            fastest = max(rates[number] for number, may in enumerate(may_own) if may)
            owners = [number for number, may in enumerate(may_own) if may and rates[number] == fastest]
            return [1.0 / len(owners) if number in owners else 0.0 for number in range(count)], time
        total = sum(wanted[number] for number in owners)
        if total >= 1.0 - 1e-9:
            return _spread_out([wanted[number] if number in owners else 0.0 for number in range(count)]), time
        time = (count - 2 + len(owners)) / sum(rates[number] for number in owners)
        wanted = [(rate * time - 1.0) / (count - 2) for rate in rates]


def _spread_out(wanted: Sequence[float]) -> list[float]:
    """Return shares that sum up to 1 and do not exceed the wanted ones, as even as possible.

    If there is room, no device gets more than half of what it could do: measured speeds are not exact.
    """
    total = sum(wanted)
    if total < _ROOM:
        return [part / total for part in wanted]
    left, shares = 1.0, [0.0] * len(wanted)
    order = sorted((number for number, part in enumerate(wanted) if part > 0.0), key=lambda number: wanted[number])
    for place, number in enumerate(order):
        shares[number] = min(wanted[number] / _ROOM, left / (len(order) - place))
        left -= shares[number]
    return shares


def apportion(shares: Sequence[float], segments: int) -> list[int]:
    """Turn shares that sum up to 1 into whole segments: round down, the rest goes to the largest remainders."""
    exact = [share * segments for share in shares]
    whole = [int(part) for part in exact]
    order = sorted(range(len(shares)), key=lambda number: (whole[number] - exact[number], number))
    for number in order[: segments - sum(whole)]:
        whole[number] += 1
    return whole


def _is_used(device: DeviceView) -> bool:
    """Return True if it is busy (other work, little battery) or in use: it gives and gets its delta, and no more."""
    return device.busy_for_s > 0.0 or bool(device.in_use)


def _why_none(device: DeviceView, share: float) -> str:
    if not device.may_receive:
        return "its limit"
    if _is_used(device):
        return "in use" if device.in_use else "busy"
    return "too few segments" if share > 0.0 else "slow link"


def _tell_coding(coding: Coding, uncoded_s: float) -> str:
    """Tell the coding, and what the round takes without it."""
    if coding == "none":
        return ""
    return f" in {coding} ({uncoded_s:.3g} s as they are)" if uncoded_s else f" in {coding}"


def _tell(owns: dict[str, int], values: int, bound_s: float, coded: str, none: dict[str, str]) -> str:
    """Tell it in one line: "160 segments of 32 KB: ann 40, bob 40, ...; 1 own none: eve (in use); 1.57 s at best".

    coded: their coding in words. none: peer id -> the reason why it owns none.
    """
    owners = sorted(((count, peer_id) for peer_id, count in owns.items() if count), key=lambda one: (-one[0], one[1]))
    told = first_few([f"{peer_id} {count}" for count, peer_id in owners])
    why_none = [f"{peer_id} ({why})" for peer_id, why in sorted(none.items())]
    leaves = f"; {len(none)} own none: {first_few(why_none)}" if none else ""
    best = f"; {bound_s:.3g} s at best" if bound_s else ""
    return f"{sum(owns.values())} segments of {4 * values / 1024:g} KB{coded}: {told}{leaves}{best}"
