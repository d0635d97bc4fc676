"""The greedy policy: the costliest device sends and is done with it, the cheapest receives. The fallback of all. Pure.

The cost of a device, in seconds, is the link time of the delta and the interruption to expect from its kind of use.
Energy above the mean of all is added (over rounds, so that it evens out). A device that is close to busy (in use, CPU
full) costs one typical transfer more. A low battery costs some more: a device that may be lost hands on its load early.

With `waiting`, the hops that are still due are laid out on the expected ends of training, hops and busy periods. A
hop starts now only if it does so in that layout. Unknown speeds and ends are never waited for.

The constants are greedy's own. The layout that the learned policy starts from follows the same rules
(`mdl.scheduler.policies.layout`), with the constants that its network was trained under
(`mdl.scheduler.policies.trained_under`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf
from statistics import fmean, median

from mdl.devices.usage import UsageKind, expected_busy_s, expected_rest_s, mean_gap_s
from mdl.scheduler.policies.chain import FULL, ChainView, Choice, Decision, DeviceState, DeviceView, Pair, Wait, first
from mdl.scheduler.policies.layout import LaidHop, cost_to_keep, lay_hops

# Looked up once: see scheduler/policies/chain.py.
_TRAINING, _FREE, _BUSY, _GET = DeviceState.TRAINING, DeviceState.FREE, DeviceState.BUSY, DeviceState.GET
# One joule above the mean costs as much as this many seconds of link time.
SECONDS_PER_JOULE = 0.02
# A device on battery below this should lose its load early.
LOW_BATTERY_PERCENT = 15.0
# Measured on the dying family: 4 loses 6 % fewer contributions than 2 and takes 1 to 2 % longer, and the objective is
# indifferent between them (docs/results.md); the network's layout has 2.
_LOW_BATTERY_TRANSFERS = 4.0
FULL_CPU_PERCENT = 95.0
# Periods of use come this much more often than over a whole day: rounds run while people are about. The figures are
# flat between 1 and 3.
RUSH = 2.0
# A receiver is exposed to its user for its own transfer and for about so many typical ones before it.
EXPOSED_TRANSFERS = 3.0
# Time of waiting counts double: an expected end may come late, and a pair that works is no longer in the way.
WAITING_COUNTS = 2.0
# A device costs this much less in the layout for each second that it comes later, so that energy alone makes none wait.
LATE_SAVES = 0.6
# Every gap of a receiver's time is kept: it has at most as many as the chain has devices.
_ALL_GAPS = 1 << 20
_LATEST_S = 1e9


class Greedy:
    """The policy for one view, in seconds.

    risk: weighs the kind of use. waiting: may wait for a better partner. energy: seconds a joule above the mean.

    battery: relieves devices with a low battery.
    """

    def __init__(
        self,
        *,
        risk: bool = True,
        waiting: bool = True,
        energy: float = SECONDS_PER_JOULE,
        battery: bool = True,
        name: str = "greedy",
    ) -> None:
        self.name = name
        self._risk, self._waiting, self._energy, self._battery = risk, waiting, energy, battery

    def decide(self, view: ChainView) -> Decision:
        free = view.free()
        if len(free) < 2:
            return Wait(too_few(view))
        typical_s = typical_transfer_s(view)
        mean_j = fmean([device.energy_j for device in view.devices])
        coming = view.devices if self._waiting else free
        known = [self._weigh(device, view, typical_s, mean_j) for device in coming]
        costliest_first = sorted(known, key=lambda one: (-one.rank_s, one.free_at_s))
        there = [one for one in costliest_first if one.free_at_s == 0.0]
        laid = _lay_out(costliest_first) if self._waiting else []
        if laid and laid[-1].start_s == 0.0:
            *later, now = laid
            return self._pair(now.sender, now.receiver, there, later, now.choice())
        if self._waiting and view.may_wait():
            return self._wait(laid, {one.peer_id for one in there})
        return self._pair(there[0], there[-1], there, [], _cheapest(there))

    def _pair(
        self, sender: _Weighed, receiver: _Weighed, there: list[_Weighed], later: list[_Laid], to: Choice
    ) -> Pair:
        """Explain this pair. there: free devices, costliest first. later: hops of costlier senders that start later."""
        waiting = {one.sender.peer_id: f"its best hop, to {one.receiver.peer_id}, starts later" for one in later}
        costs = Choice(
            sender.peer_id,
            "it costs",
            tuple((one.peer_id, one.cost_s) for one in there if one.peer_id not in waiting),
            most=True,
            ruled_out=tuple((one.peer_id, waiting[one.peer_id]) for one in there if one.peer_id in waiting),
        )
        why = costs.tell() if sender.cost_s < inf else FULL
        told = f"{self.name}: {sender.peer_id} sends: {why}; {receiver.peer_id} receives: {to.tell()}"
        return Pair(sender.peer_id, receiver.peer_id, told, (costs, to))

    def _wait(self, laid: list[_Laid], free: set[str]) -> Wait:
        if not laid:
            return Wait(f"{self.name}: no hop can be laid out, a number is not finite")
        starts = [(f"{one.sender.peer_id} to {one.receiver.peer_id}", one.start_s) for one in laid]
        next_hop = laid[[name for name, _ in starts].index(best := first(starts))]
        missing = [peer for peer in (next_hop.sender.peer_id, next_hop.receiver.peer_id) if peer not in free]
        told = f"{self.name}: the first hop of the best layout is {best}: {' and '.join(missing)} not free yet"
        return Wait(told, (Choice(best, "starts in", tuple(starts)),))

    def _weigh(self, device: DeviceView, view: ChainView, typical_s: float, mean_j: float) -> _Weighed:
        link_s = view.size_mb / device.link_mb_s if device.link_mb_s else typical_s
        pauses = pauses_per_second(device.kind) if self._risk else 0.0
        near_busy = bool(device.in_use) or device.cpu_percent >= FULL_CPU_PERCENT
        low = self._battery and is_low(device)
        cost_s = (
            cost_to_keep(link_s, pauses, EXPOSED_TRANSFERS * typical_s)
            + self._energy * (device.energy_j - mean_j)
            + typical_s * (near_busy + _LOW_BATTERY_TRANSFERS * low)
        )
        free_s = expected_free_s(device, typical_s)
        if not device.may_receive:
            cost_s = inf  # keeping a load there costs more than anything: it sends first, and to no other such device
        hop_s, rank_s = link_s * (1.0 + pauses), cost_s - LATE_SAVES * min(free_s, _LATEST_S)
        return _Weighed(device.peer_id, cost_s, hop_s, rank_s, WAITING_COUNTS * free_s)


@dataclass(slots=True)
class _Weighed:
    """A device in the layout; times from now.

    cost_s: of keeping a load there. hop_s: transfer over its own link, with the pauses to expect. rank_s: the device
    with the highest sends first. free_at_s: the time until it is expected to be free, times WAITING_COUNTS.
    """

    peer_id: str
    cost_s: float
    hop_s: float
    rank_s: float
    free_at_s: float


@dataclass(slots=True)
class _Laid:
    """A hop in the layout. ways: each possible receiver, in their order, with the end of the load's way through it."""

    sender: _Weighed
    receiver: _Weighed
    start_s: float
    ways: list[tuple[_Weighed, float]]

    def choice(self) -> Choice:
        options = tuple((receiver.peer_id, end_s) for receiver, end_s in self.ways)
        return Choice(self.receiver.peer_id, "its way ends in", options)


def is_low(device: DeviceView) -> bool:
    """Return True if the device is on battery with little of it left."""
    return device.battery_percent is not None and device.battery_percent < LOW_BATTERY_PERCENT and not device.charging


def typical_transfer_s(view: ChainView) -> float:
    """Return the transfer time over the median of the known links; 1 second if none is known."""
    links = [device.link_mb_s for device in view.devices if device.link_mb_s]
    return view.size_mb / median(links) if links else 1.0


def pauses_per_second(kind: UsageKind) -> float:
    """Return the seconds of interruption to expect for each second of work on a device of this kind."""
    return _PAUSES_PER_SECOND[kind]


def expected_free_s(device: DeviceView, typical_s: float) -> float:
    """Return the expected seconds until the device is free; infinite if it never is, or if its end is unknown."""
    if device.state is _FREE:
        return 0.0
    if device.state is _TRAINING:
        return device.eta_ready_s or inf
    if device.state is _BUSY:
        return expected_rest_s(device.kind, device.busy_for_s, typical_s) or inf
    if device.state is _GET and device.op_left_s:
        pause_s = expected_rest_s(device.kind, device.busy_for_s, typical_s) if device.busy_for_s else 0.0
        return device.op_left_s + pause_s
    return inf


def too_few(view: ChainView) -> str:
    training = sum(device.state is _TRAINING for device in view.devices)
    busy = sum(device.state is _BUSY for device in view.devices)
    return f"waiting: {training} of {len(view.devices)} still train and {busy} are busy, so fewer than two are free"


_PAUSES_PER_SECOND = {
    kind: 0.0 if isinf(mean_gap_s(kind)) else RUSH * expected_busy_s(kind) / mean_gap_s(kind) for kind in UsageKind
}


def _cheapest(there: list[_Weighed]) -> Choice:
    """Return the choice of the last device, the cheapest; the first sends to it."""
    return Choice(there[-1].peer_id, "it costs only", tuple((one.peer_id, one.cost_s) for one in there[1:]))


def _lay_out(costliest_first: list[_Weighed]) -> list[_Laid]:
    """Return the due hops in the order of their senders, up to the first that starts now, or all."""
    due = [one for one in costliest_first if one.free_at_s < inf]
    hops_s, costs_s = [one.hop_s for one in due], [one.cost_s for one in due]
    laid: list[_Laid] = []
    for hop in lay_hops(range(len(due)), hops_s, costs_s, [one.free_at_s for one in due], _ALL_GAPS):
        laid.append(_name_devices(hop, due))
        if hop.start == 0.0:
            break
    return laid


def _name_devices(hop: LaidHop, due: list[_Weighed]) -> _Laid:
    ways = [(due[receiver], end_s) for receiver, end_s in hop.ways]
    return _Laid(due[hop.sender], due[hop.receiver], hop.start, ways)
