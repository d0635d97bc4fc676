"""The greedy policy: the costliest device sends and is done with it, the cheapest receives. The fallback of all. Pure.

The cost of a device, in seconds: link time of the delta, the interruption to expect from its kind of use, its energy
above the mean of all (over rounds, so that it evens out), one typical transfer for being close to busy (in use, CPU
full), and some for a battery that may give out: who may be lost hands on its load early.

With `waiting`, the hops that are still due are laid out on the expected ends of training, hops and busy periods, and a
hop starts now only if it does so in that layout. What nobody told or may foresee (speeds, ends) is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf
from statistics import fmean, median

from scheduler.chain import ChainView, Decision, DeviceState, DeviceView, Pair, Wait
from sim.devices import UsageKind, expected_busy_s, expected_rest_s, mean_gap_s

# One joule above the mean costs as much as this many seconds of link time.
SECONDS_PER_JOULE = 0.02
# A device on battery below this is better relieved of its load early.
LOW_BATTERY_PERCENT = 15.0
# Measured on the dying family: a quarter fewer contributions are lost, for 3 % of time; more brings nothing.
_LOW_BATTERY_TRANSFERS = 4.0
FULL_CPU_PERCENT = 95.0
# Periods of use come this much more often than over a whole day: rounds run while people are about. The figures are
# flat between 1 and 3.
RUSH = 2.0
# Whoever receives is exposed to its user for its own transfer and for about so many typical ones before it.
EXPOSED_TRANSFERS = 3.0
# Time of waiting counts double: what is expected may come late, and a pair that works is no longer in the way.
WAITING_COUNTS = 2.0
# Time that a device comes later makes it as much less costly in the layout, so that energy alone lets nobody wait.
LATE_SAVES = 0.6
_LATEST_S = 1e9


class Greedy:
    """The policy for one view, in seconds. `scheduler.layout` is its sibling for many chains at once, in transfers.

    What is learned starts from that one, so it keeps its own ways with gaps and low batteries: the two may disagree.

    risk: weighs the kind of use. waiting: may wait for a better partner. energy: seconds a joule above the mean.

    battery: relieves devices whose battery is low.
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
        mean_j = fmean(device.energy_j for device in view.devices)
        coming = view.devices if self._waiting else free
        known = [self._weigh(device, view, typical_s, mean_j) for device in coming]
        costliest_first = sorted(known, key=lambda one: (-one.rank_s, one.free_at_s))
        found = _first_hop(costliest_first) if self._waiting else None
        if self._waiting and found is None and view.may_wait():
            return Wait(f"{self.name}: better partners than the {len(free)} free ones are expected soon")
        there = [one for one in costliest_first if one.free_at_s == 0.0]
        sender, receiver = found or (there[0], there[-1])
        return Pair(
            sender.peer_id,
            receiver.peer_id,
            f"{self.name}: {sender.peer_id} costs more ({sender.cost_s:.2f} s)"
            f" than {receiver.peer_id} ({receiver.cost_s:.2f} s)",
        )

    def _weigh(self, device: DeviceView, view: ChainView, typical_s: float, mean_j: float) -> _Weighed:
        link_s = view.size_mb / device.link_mb_s if device.link_mb_s else typical_s
        pauses = pauses_per_second(device.kind) if self._risk else 0.0
        near_busy = bool(device.in_use) or device.cpu_percent >= FULL_CPU_PERCENT
        low = self._battery and is_low(device)
        cost_s = (
            link_s
            + pauses * (link_s + EXPOSED_TRANSFERS * typical_s)
            + self._energy * (device.energy_j - mean_j)
            + typical_s * (near_busy + _LOW_BATTERY_TRANSFERS * low)
        )
        free_s = expected_free_s(device, typical_s)
        hop_s, rank_s = link_s * (1.0 + pauses), cost_s - LATE_SAVES * min(free_s, _LATEST_S)
        return _Weighed(device.peer_id, cost_s, hop_s, rank_s, WAITING_COUNTS * free_s)


@dataclass(slots=True)
class _Weighed:
    """cost_s: of keeping it as a receiver. hop_s: its transfer, with the pauses to expect. rank_s: senders first, from
    the highest down. free_at_s: from now on."""

    peer_id: str
    cost_s: float
    hop_s: float
    rank_s: float
    free_at_s: float


def is_low(device: DeviceView) -> bool:
    """On battery, and little of it."""
    return device.battery_percent is not None and device.battery_percent < LOW_BATTERY_PERCENT and not device.charging


def typical_transfer_s(view: ChainView) -> float:
    """Over the median of the known links; 1 second if none is known."""
    links = [device.link_mb_s for device in view.devices if device.link_mb_s]
    return view.size_mb / median(links) if links else 1.0


def pauses_per_second(kind: UsageKind) -> float:
    """Seconds of interruption to expect for each second of work on a device of this kind."""
    return _PAUSES_PER_SECOND[kind]


def expected_free_s(device: DeviceView, typical_s: float) -> float:
    """Seconds until the device is expected to be free; infinite if it never is, or if nothing is known of it."""
    match device.state:
        case DeviceState.FREE:
            return 0.0
        case DeviceState.TRAINING:
            return device.eta_ready_s or inf
        case DeviceState.BUSY:
            return expected_rest_s(device.kind, device.busy_for_s, typical_s) or inf
        case DeviceState.GET if device.op_left_s:
            pause_s = expected_rest_s(device.kind, device.busy_for_s, typical_s) if device.busy_for_s else 0.0
            return device.op_left_s + pause_s
        case _:
            return inf


def too_few(view: ChainView) -> str:
    training = sum(device.state is DeviceState.TRAINING for device in view.devices)
    busy = sum(device.state is DeviceState.BUSY for device in view.devices)
    return f"waiting: fewer than two are free, {training} of {len(view.devices)} still train, {busy} are busy"


_PAUSES_PER_SECOND = {
    kind: 0.0 if isinf(mean_gap_s(kind)) else RUSH * expected_busy_s(kind) / mean_gap_s(kind) for kind in UsageKind
}


def _first_hop(costliest_first: list[_Weighed]) -> tuple[_Weighed, _Weighed] | None:
    """Lays out all hops, one sender after the other, and returns the first that starts now, or None.

    A sender goes where its hop and the receiver's own way on end first; a hop may fill a gap that was left before
    another.
    """
    due = [one for one in costliest_first if one.free_at_s < inf]
    windows = {one.peer_id: [(one.free_at_s, inf)] for one in due}
    for place, sender in enumerate(due):
        ready_s = windows[sender.peer_id][-1][0]
        is_last = place == len(due) - 2
        best_s, best = inf, None
        for receiver in due[place + 1 :]:
            hop_s = max(sender.hop_s, receiver.hop_s)
            for number, (from_s, until_s) in enumerate(windows[receiver.peer_id]):
                start_s = from_s if from_s > ready_s else ready_s
                if start_s + hop_s <= until_s:
                    way_s = start_s + hop_s + (0.0 if is_last else receiver.cost_s)
                    if way_s < best_s:
                        best_s, best = way_s, (receiver, number, start_s, start_s + hop_s)
                    break
        if best is None:
            continue
        receiver, number, start_s, end_s = best
        if start_s == 0.0:
            return sender, receiver
        from_s, until_s = windows[receiver.peer_id][number]
        windows[receiver.peer_id][number : number + 1] = [(from_s, start_s), (end_s, until_s)]
    return None
