"""The timing model of one iteration, by hops or in segments, and of the broadcast, in plain Python. Pure.

A hop i -> j starts when both are idle. The transfer takes latency + size / min(link_i, link_j), then j merges for size
/ merge_j; work on a device stands still while it is busy; one partner at a time. Afterwards i is done and j holds both.
A device with an empty battery takes its own contribution with it; a device that gave it a load holds that load again
(docs/protocol-hops.md, fault rule 3). The reference for `mdl.sim.timing.batch`, which does the same for many scenarios
at once.

In segments (MDLdroid has none; `scheduler/policies/segment_plan.py`): each device gives the owners its pieces, each
owner merges its segments and gives the results to all. Links are full duplex and carry all that waits: no windows, no
losses. A result goes as soon as all its pieces are there. Work on a device stands still while it is busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import DeviceState, Periods, active_end_s, active_s, periods_begun
from mdl.errors import LocalProtocolError
from mdl.protocol.segments import tree_children


@dataclass(frozen=True)
class TimedHop:
    """One hop. sent_s: the end of the transfer; merged_s: the end of the merge; both include all pauses."""

    sender: int
    receiver: int
    start_s: float
    sent_s: float
    merged_s: float
    transfer_s: float
    merge_s: float


@dataclass
class _Device:
    given: ScenarioDevice
    theta: float = 1.0
    energy_j: float = 0.0
    n_agg: int = 0
    received: int = 0
    gone: DeviceState | None = None
    hop: TimedHop | None = None
    free_since_s: float = 0.0
    sent_to: int | None = None
    got_from: list[int] = field(default_factory=list)


class Iteration:
    """Plays one scenario: `start` hops among the idle, `advance` to the next moment of a change.

    hops: those that were merged or are under way. lost: devices with no contribution of their own in the result.
    wasted_s: active seconds of hops that a death undid.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now_s = 0.0
        self.hops: list[TimedHop] = []
        self.lost: list[int] = []
        self.wasted_s = 0.0
        self._devices = [
            _Device(given, energy_j=given.energy_j, free_since_s=given.ready_s) for given in scenario.devices
        ]
        self._bury(0.0)

    # -- the present state --------------------------------------------------------------------------------------------

    def state(self, index: int) -> DeviceState:
        device = self._devices[index]
        if device.gone is not None:
            return device.gone
        if device.hop is not None:
            return DeviceState.SEND if device.hop.sender == index else DeviceState.GET
        if device.given.ready_s > self.now_s:
            return DeviceState.TRAINING
        return DeviceState.FREE if self._period(index) is None else DeviceState.BUSY

    def idle(self) -> list[int]:
        """Return the devices that may be paired now."""
        return [index for index in range(len(self._devices)) if self.state(index) is DeviceState.FREE]

    def may_wait(self) -> bool:
        """Return True if a device trains, is busy or aggregates: waiting ends."""
        ending = (DeviceState.TRAINING, DeviceState.BUSY, DeviceState.SEND, DeviceState.GET)
        return any(self.state(index) in ending for index in range(len(self._devices)))

    def busy_for_s(self, index: int) -> float:
        """Return the seconds for which the device has been busy without a break; 0 if it is not."""
        period = self._period(index)
        return self.now_s - period[0] if period else 0.0

    def op_left_s(self, index: int) -> float:
        """Return the active work that is left of the device's hop, for its own part in it."""
        hop = self._devices[index].hop
        if hop is None:
            return 0.0
        pair = (self._busy(hop.sender), self._busy(hop.receiver))
        left_s = max(0.0, hop.transfer_s - active_s(pair, hop.start_s, min(self.now_s, hop.sent_s)))
        if self.now_s >= hop.sent_s:
            left_s = 0.0
        if index == hop.sender:
            return left_s
        own = (pair[1],)
        done_s = active_s(own, hop.sent_s, self.now_s) if self.now_s > hop.sent_s else 0.0
        return left_s + max(0.0, hop.merge_s - done_s)

    def theta(self, index: int) -> float:
        return self._devices[index].theta

    def energy_j(self, index: int) -> float:
        return self._devices[index].energy_j

    def n_agg(self, index: int) -> int:
        return self._devices[index].n_agg

    def received(self, index: int) -> int:
        """Return the number of its hops in which it received."""
        return self._devices[index].received

    def free_since_s(self, index: int) -> float:
        return self._devices[index].free_since_s

    @property
    def holders(self) -> list[int]:
        return [index for index, device in enumerate(self._devices) if device.gone is None]

    @property
    def ended(self) -> bool:
        """Return True if one holder is left and has merged everything (or no device is left)."""
        holders = self.holders
        return len(holders) < 2 and all(self._devices[index].hop is None for index in holders)

    @property
    def makespan_s(self) -> float:
        """Return the end of the last merge."""
        return max((hop.merged_s for hop in self.hops), default=0.0)

    def fork(self) -> Iteration:
        """Copy the iteration; the copy goes its own way from here."""
        copy = Iteration.__new__(Iteration)
        copy.scenario, copy.now_s, copy.wasted_s = self.scenario, self.now_s, self.wasted_s
        copy.hops, copy.lost = self.hops.copy(), self.lost.copy()
        copy._devices = [replace(device, got_from=device.got_from.copy()) for device in self._devices]
        return copy

    # -- a policy's actions -------------------------------------------------------------------------------------------

    def start(self, sender: int, receiver: int) -> TimedHop:
        """Order a hop now. Raises LocalProtocolError unless the two are different devices and both idle."""
        idle = self.idle()
        if sender == receiver or sender not in idle or receiver not in idle:
            raise LocalProtocolError(f"hop {sender} -> {receiver} at {self.now_s:.3f} s: both must be idle")
        hop = self.time_hop(sender, receiver, self.now_s)
        self.hops.append(hop)
        for index in (sender, receiver):
            self._devices[index].hop = hop
        return hop

    def time_hop(self, sender: int, receiver: int, start_s: float) -> TimedHop:
        """Time a hop that starts then (with knowledge of the busy periods)."""
        scenario = self.scenario
        first, second = scenario.devices[sender], scenario.devices[receiver]
        transfer_s = scenario.latency_s + scenario.size_mb / min(first.link_mb_s, second.link_mb_s)
        merge_s = scenario.size_mb / second.merge_mb_s
        sent_s = active_end_s((first.busy, second.busy), start_s, transfer_s)
        merged_s = active_end_s((second.busy,), sent_s, merge_s)
        return TimedHop(sender, receiver, start_s, sent_s, merged_s, transfer_s, merge_s)

    def advance(self) -> bool:
        """Go on to the next moment at which a state changes; False if nothing will change any more."""
        at_s = min((self._next_s(index) for index in range(len(self._devices))), default=inf)
        if at_s == inf:
            return False
        self.now_s = at_s
        self._bury(at_s)
        for index, device in enumerate(self._devices):
            hop = device.hop
            if hop is not None and index == hop.sender and hop.sent_s <= at_s:
                self._end_transfer(hop)
        for index, device in enumerate(self._devices):
            hop = device.hop
            if hop is not None and index == hop.receiver and hop.merged_s <= at_s:
                self._end_merge(hop)
        return True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _next_s(self, index: int) -> float:
        device = self._devices[index]
        if device.gone is DeviceState.DEAD:
            return inf
        dies_s = device.given.dies_at_s if device.given.dies_at_s is not None else inf
        if device.gone is DeviceState.DONE:
            return dies_s if device.sent_to is not None and dies_s > self.now_s else inf
        found = [dies_s]
        if device.given.ready_s > self.now_s:
            found.append(device.given.ready_s)
        if device.hop is not None:
            found.append(device.hop.sent_s if index == device.hop.sender else device.hop.merged_s)
        busy = self._busy(index)
        place = periods_begun(busy, self.now_s)
        if place < len(busy):
            found.append(busy[place][0])
        if place and busy[place - 1][1] > self.now_s:
            found.append(busy[place - 1][1])
        return min(at_s for at_s in found if at_s > self.now_s)

    def _end_transfer(self, hop: TimedHop) -> None:
        sender, receiver = self._devices[hop.sender], self._devices[hop.receiver]
        sender.hop, sender.gone, sender.sent_to = None, DeviceState.DONE, hop.receiver
        sender.n_agg += 1
        sender.energy_j += SEND_W * hop.transfer_s
        receiver.energy_j += RECEIVE_W * hop.transfer_s
        receiver.theta += sender.theta
        receiver.got_from.append(hop.sender)

    def _end_merge(self, hop: TimedHop) -> None:
        receiver = self._devices[hop.receiver]
        receiver.hop, receiver.free_since_s = None, hop.merged_s
        receiver.n_agg += 1
        receiver.received += 1
        receiver.energy_j += MERGE_W * hop.merge_s

    def _bury(self, at_s: float) -> None:
        for index, device in enumerate(self._devices):
            dies_s = device.given.dies_at_s
            if dies_s is None or dies_s > at_s or device.gone is DeviceState.DEAD:
                continue
            delivered = device.gone is DeviceState.DONE
            device.gone = DeviceState.DEAD
            if delivered:
                continue  # its load has travelled on, and is freed again only if the receiver dies too
            self._abort(index)
            self.lost.append(index)
            self._release(index, at_s)

    def _abort(self, index: int) -> None:
        """Undo the hop that the device takes part in; before the transfer's end the other one is free again."""
        hop = self._devices[index].hop
        if hop is None:
            return
        self.hops.remove(hop)
        self.wasted_s += hop.transfer_s
        for end in (hop.sender, hop.receiver):
            if self._devices[end].hop is hop:
                self._devices[end].hop = None
                self._devices[end].free_since_s = self.now_s

    def _release(self, index: int, at_s: float) -> None:
        """Give all loads that the device carried back to the devices that gave them, as far as those live."""
        for giver in self._devices[index].got_from:
            device = self._devices[giver]
            hop = next((hop for hop in self.hops if (hop.sender, hop.receiver) == (giver, index)), None)
            if hop is not None:
                self.hops.remove(hop)
                self.wasted_s += hop.transfer_s + hop.merge_s
            if device.gone is DeviceState.DEAD:
                self.lost.append(giver)
                self._release(giver, at_s)
            else:
                device.gone, device.sent_to, device.free_since_s = None, None, at_s
        self._devices[index].got_from = []

    def _busy(self, index: int) -> Periods:
        return self.scenario.devices[index].busy

    def _period(self, index: int) -> tuple[float, float] | None:
        busy = self._busy(index)
        place = periods_begun(busy, self.now_s)
        return busy[place - 1] if place and busy[place - 1][1] > self.now_s else None


# A delta flows in this many steps: a result goes out while the next pieces come in. Plans have 5 to 160 segments.
_STEPS = 32
# Order, answer and the first piece, before anything flows.
_MESSAGES = 3
# An owner's link takes this much longer than its bytes do: it is full both ways at once, and lanes to several others
# wait for each other (measured over predicted without it: docs/results.md, "Rounds in segments on the model").
_FULL_BOTH_WAYS = 1.15


def exchange_end_s(
    scenario: Scenario, shares: Sequence[float], members: Sequence[int], start_s: float, coded: float = 1.0
) -> float:
    """Return the time at which all members have the result, if all hold their deltas at start_s.

    shares: of each device, by its index. coded: bytes on the way, over those of float32; merges are float32 again.

    The later of two times counts: the last result has followed its last piece, and each link has carried its bytes,
    M (1 + (N-2) s) each way.
    """
    travels_mb = scenario.size_mb * coded
    begin_s = start_s + _MESSAGES * scenario.latency_s
    flown_s = _last_result_s(scenario, shares, members, begin_s, travels_mb)
    carried_s = [flown_s]
    for index in members:
        device, share = scenario.devices[index], shares[index]
        megabytes = travels_mb * (1.0 + (len(members) - 2) * share) * (_FULL_BOTH_WAYS if share else 1.0)
        carried_s.append(active_end_s((device.busy,), begin_s, megabytes / device.link_mb_s))
    return max(carried_s) + scenario.latency_s


def _last_result_s(
    scenario: Scenario, shares: Sequence[float], members: Sequence[int], begin_s: float, travels_mb: float
) -> float:
    """Go step by step: a result waits for the slowest piece, then for each owner's merges, then for its receivers."""
    devices, others = scenario.devices, len(members) - 1
    owners = [index for index in members if shares[index] > 0.0]
    sent_s, merged_s, given_s, got_s = (dict.fromkeys(members, begin_s) for _ in range(4))

    def work(index: int, at_s: float, megabytes: float, mb_s: float) -> float:
        return active_end_s((devices[index].busy,), at_s, megabytes / _STEPS / mb_s)

    for _ in range(_STEPS):
        for index in members:
            sent_s[index] = work(index, sent_s[index], travels_mb * (1.0 - shares[index]), devices[index].link_mb_s)
        piece_s = max(sent_s.values())
        for index in owners:
            times = shares[index] * others
            merged_mb, given_mb = scenario.size_mb * times, travels_mb * times
            merged_s[index] = work(index, max(merged_s[index], piece_s), merged_mb, devices[index].merge_mb_s)
            given_s[index] = work(index, max(given_s[index], merged_s[index]), given_mb, devices[index].link_mb_s)
        result_s = max(given_s[index] for index in owners)
        for index in members:
            begun_s = max(got_s[index], piece_s)
            got_s[index] = work(index, begun_s, travels_mb * (1.0 - shares[index]), devices[index].link_mb_s)
            got_s[index] = max(got_s[index], result_s)
    return max(got_s.values())


def broadcast_end_s(scenario: Scenario, root: int, members: Sequence[int], start_s: float) -> float:
    """Return when all members have the result that the root has at start_s: down the binomial tree, child by child.

    The fastest links are the inner nodes; the root feeds the slowest directly (3.2.3). A busy child delays its parent
    by no more than that child's own hop.
    """
    devices = scenario.devices
    rest = sorted((index for index in members if index != root), key=lambda index: -devices[index].link_mb_s)
    places = range(1, len(rest) + 1)
    leaves = sorted((place for place in places if not tree_children(place, len(rest) + 1)), key=_depth, reverse=True)
    at = {0: root, **dict(zip([place for place in places if place not in leaves] + leaves, rest, strict=True))}
    has_s, ends_s = {0: start_s}, [start_s]
    for place in range(len(at)):
        free_s = has_s[place]
        for child in tree_children(place, len(at)):
            parent, other = devices[at[place]], devices[at[child]]
            transfer_s = scenario.latency_s + scenario.size_mb / min(parent.link_mb_s, other.link_mb_s)
            free_s = has_s[child] = active_end_s((parent.busy, other.busy), free_s, transfer_s)
            ends_s.append(free_s)
    return max(ends_s)


def _depth(place: int) -> int:
    return place.bit_count()
