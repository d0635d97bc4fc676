"""The timing model of `mdl.sim.timing.iteration` for many iterations at once, in NumPy. Pure.

Events, times and energies are the same as there. B iterations of up to N devices run side by side; state is a set of
arrays, so that copying rows (`take`) branches a simulation. Each row moves by itself: `start` orders hops in some rows,
`advance` takes others to their next event.

`pack` makes arrays of S scenarios, busy timelines padded. When a device dies, its hops are undone, and loads that they
carried return to the devices that gave them. Deaths are few, so each is handled by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import inf
from statistics import median

import numpy as np
import numpy.typing as npt

from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.devices.scenario import Scenario
from mdl.devices.usage import DeviceState, Periods
from mdl.errors import LocalProtocolError

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PackedScenarios:
    """Shape (S, N) unless said; a missing device of a row does not exist and takes no part.

    starts: (S, N, K + 1), the start of busy period k, infinite beyond the last. ends: the end of period k - 1. So with
    k periods begun, ends[k] is the end of the last of them and starts[k] the start of the next. dies_s: infinite if
    never. unit_s (S,): transfer time of the median link.
    """

    exists: Bools
    ready_s: Doubles
    link_mb_s: Doubles
    merge_mb_s: Doubles
    kind: Integers
    battery_percent: Doubles
    charging: Bools
    dies_s: Doubles
    energy_j: Doubles
    may_receive: Bools
    starts: Doubles
    ends: Doubles
    size_mb: Doubles
    latency_s: Doubles
    unit_s: Doubles

    def take(self, rows: Integers) -> PackedScenarios:
        """Copy these scenarios. rows: positions."""
        return PackedScenarios(*(getattr(self, field.name)[rows] for field in fields(self)))


def pack(scenarios: Sequence[Scenario], *, horizon_s: float = inf) -> PackedScenarios:
    """Pack scenarios. Periods that start after `horizon_s` are left out: exact if an iteration ends before."""
    rows, count = len(scenarios), max(len(scenario.devices) for scenario in scenarios)
    exists = np.zeros((rows, count), dtype=np.bool_)
    numbers = np.ones((9, rows, count))
    numbers[6] = inf
    timelines: list[tuple[int, int, Periods]] = []
    for row, scenario in enumerate(scenarios):
        exists[row, : len(scenario.devices)] = True
        numbers[:, row, : len(scenario.devices)] = np.array(
            [
                (
                    device.ready_s,
                    device.link_mb_s,
                    device.merge_mb_s,
                    device.kind,
                    device.battery_percent,
                    device.charging,
                    inf if device.dies_at_s is None else device.dies_at_s,
                    device.energy_j,
                    device.may_receive,
                )
                for device in scenario.devices
            ]
        ).T
        timelines += [(row, index, device.busy) for index, device in enumerate(scenario.devices) if device.busy]
    numbers[[0, 3, 7]] *= exists
    starts, ends = _pad(timelines, rows, count, horizon_s)
    ready_s, link, merge, kind, battery, charging, dies_s, energy_j, may_receive = numbers
    size_mb = np.array([scenario.size_mb for scenario in scenarios])
    latency_s = np.array([scenario.latency_s for scenario in scenarios])
    middle = np.array([median(device.link_mb_s for device in scenario.devices) for scenario in scenarios])
    return PackedScenarios(
        exists,
        ready_s,
        link,
        merge,
        kind.astype(np.int64),
        battery,
        (charging > 0) & exists,
        dies_s,
        energy_j,
        may_receive > 0,
        starts,
        ends,
        size_mb,
        latency_s,
        latency_s + size_mb / middle,
    )


def _pad(timelines: list[tuple[int, int, Periods]], rows: int, count: int, horizon_s: float) -> tuple[Doubles, Doubles]:
    arrays = []
    for row, index, periods in timelines:
        edges = np.fromiter(chain.from_iterable(periods), dtype=np.float64).reshape(-1, 2)
        arrays.append((row, index, edges[edges[:, 0] <= horizon_s]))
    longest = max((len(edges) for _, _, edges in arrays), default=0)
    starts = np.full((rows, count, longest + 1), inf)
    ends = np.full((rows, count, longest + 1), -inf)
    for row, index, edges in arrays:
        starts[row, index, : len(edges)] = edges[:, 0]
        ends[row, index, 1 : len(edges) + 1] = edges[:, 1]
    return starts, ends


Codes = npt.NDArray[np.int8]

# Codes of the states, in the order of DeviceState.
TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = range(len(DeviceState))
# Not gone, and in no hop.
NONE = 0


@dataclass
class BatchState:
    """Shape (B, N) unless said. A device that does not exist counts as done.

    gone: 0, DONE or DEAD. role: 0, SEND or GET. other: the other end of its hop, else -1. stalled_by: the partner that
    also holds it up while busy (itself if none). hop_end: end of its part of the hop. left, after: active seconds left
    of the transfer or merge that runs, and of the merge to come. place: busy periods begun. edge: the next start or end
    of one of its busy periods. By sender: sent_to, merged (end of the merge, -inf without a hop), cost_transfer,
    cost_merge.
    """

    which: Integers  # (B,): the scenario
    now: Doubles  # (B,)
    wasted: Doubles  # (B,)
    gone: Codes
    role: Codes
    other: Integers
    stalled_by: Integers
    ready: Doubles
    hop_end: Doubles
    left: Doubles
    after: Doubles
    place: Integers
    busy: Bools
    busy_since: Doubles
    edge: Doubles
    dies: Doubles
    theta: Doubles
    energy: Doubles
    n_agg: Integers
    free_since: Doubles
    sent_to: Integers
    merged: Doubles
    cost_transfer: Doubles
    cost_merge: Doubles
    lost: Bools


def fresh_state(packed: PackedScenarios, which: Integers) -> BatchState:
    """Return the start of these scenarios (B,): each device trains, or is ready."""
    exists = packed.exists[which]
    shape = exists.shape

    def full(value: float) -> Doubles:
        return np.full(shape, value)

    def none() -> Integers:
        return np.full(shape, -1)

    ready = packed.ready_s[which]
    return BatchState(
        which=which,
        now=np.zeros(len(which)),
        wasted=np.zeros(len(which)),
        gone=np.where(exists, NONE, DONE).astype(np.int8),
        role=np.zeros(shape, dtype=np.int8),
        other=none(),
        stalled_by=np.broadcast_to(np.arange(shape[1]), shape).copy(),
        ready=np.where(exists & (ready > 0.0), ready, inf),
        hop_end=full(inf),
        left=full(0.0),
        after=full(0.0),
        place=np.zeros(shape, dtype=np.int64),
        busy=np.zeros(shape, dtype=np.bool_),
        busy_since=full(inf),
        edge=packed.starts[which, :, 0].copy(),
        dies=packed.dies_s[which].copy(),
        theta=exists.astype(np.float64),
        energy=packed.energy_j[which].copy(),
        n_agg=np.zeros(shape, dtype=np.int64),
        free_since=ready.copy(),
        sent_to=none(),
        merged=full(-inf),
        cost_transfer=full(0.0),
        cost_merge=full(0.0),
        lost=np.zeros(shape, dtype=np.bool_),
    )


def turn_edges(state: BatchState, packed: PackedScenarios, moved: Bools) -> None:
    """Begin and end the busy periods that do so by now, in the rows that moved (B,)."""
    reached = np.where(moved, state.now, -inf)[:, None]
    rows, devices = (state.edge <= reached).nonzero()
    while len(rows):
        which, now = state.which[rows], state.now[rows]
        place = state.place[rows, devices]
        begun = packed.starts[which, devices, place] <= now
        place += begun
        until = packed.ends[which, devices, place]
        busy = until > now
        starts = packed.starts[which, devices, place]
        state.place[rows, devices], state.busy[rows, devices] = place, busy
        state.edge[rows, devices] = np.where(busy, until, starts)
        since = packed.starts[which, devices, np.maximum(place - 1, 0)]
        state.busy_since[rows, devices] = np.where(busy, since, inf)
        again = starts <= now
        rows, devices = rows[again], devices[again]


def leave_hop(state: BatchState, rows: Integers, devices: Integers) -> None:
    """Release these devices from their hops. rows, devices: positions, as many of each."""
    state.role[rows, devices], state.other[rows, devices], state.hop_end[rows, devices] = NONE, -1, inf
    state.stalled_by[rows, devices] = devices
    state.left[rows, devices] = state.after[rows, devices] = 0.0


def bury(state: BatchState, packed: PackedScenarios, moved: Bools) -> None:
    """Bury the devices that have died by now, in the rows that moved: (B,)."""
    reached = np.where(moved, state.now, -inf)[:, None]
    for row, index in zip(*(array.tolist() for array in (state.dies <= reached).nonzero()), strict=True):
        delivered = state.gone[row, index] == DONE
        state.gone[row, index] = DEAD
        state.dies[row, index] = state.ready[row, index] = state.edge[row, index] = inf
        if not delivered:
            _abort(state, row, index)
            state.lost[row, index] = True
            _release(state, packed, row, index)


def _abort(state: BatchState, row: int, index: int) -> None:
    """Undo the hop that the device takes part in; before the transfer's end the other one is free again."""
    if state.role[row, index] == NONE:
        return
    other = int(state.other[row, index])
    sender = index if state.role[row, index] == SEND else other
    state.merged[row, sender] = -inf
    state.wasted[row] += state.cost_transfer[row, sender]
    ends = [end for end in (index, other) if state.role[row, end] != NONE]
    for end in ends:
        state.free_since[row, end] = state.now[row]
    leave_hop(state, np.full(len(ends), row), np.array(ends))


def _release(state: BatchState, packed: PackedScenarios, row: int, index: int) -> None:
    """Give all loads that the device carried back to the devices that gave them, as far as those live."""
    for giver in np.flatnonzero(state.sent_to[row] == index).tolist():
        if state.merged[row, giver] > -inf:
            state.merged[row, giver] = -inf
            state.wasted[row] += state.cost_transfer[row, giver] + state.cost_merge[row, giver]
        state.sent_to[row, giver] = -1
        if state.gone[row, giver] == DEAD:
            state.lost[row, giver] = True
            _release(state, packed, row, giver)
            continue
        state.gone[row, giver] = NONE
        state.free_since[row, giver] = state.now[row]
        state.edge[row, giver] = -inf  # to be found again
        only = np.zeros(len(state.now), dtype=np.bool_)
        only[row] = True
        turn_edges(state, packed, only)


class Batch:
    """B iterations side by side: `idle` shows devices that may be paired, `start` orders hops, `advance` goes on."""

    def __init__(self, packed: PackedScenarios, which: Integers | None = None, state: BatchState | None = None) -> None:
        """Make one row for each of the packed scenarios, or for each of `which` (scenario numbers)."""
        self.packed = packed
        self._dying = bool((packed.dies_s < inf).any())
        self._place_of = np.arange(packed.exists.shape[1])
        if state is not None:
            self._state = state
            return
        which = np.arange(len(packed.exists)) if which is None else which
        self._state = fresh_state(packed, which)
        everywhere = np.ones(len(which), dtype=np.bool_)
        self._pass_time(everywhere)

    def __len__(self) -> int:
        return len(self._state.now)

    def take(self, rows: Integers | Bools) -> Batch:
        """Copy these rows. rows: positions, each any number of times, or a mask (B,)."""
        state = self._state
        return Batch(self.packed, state=BatchState(*(getattr(state, field.name)[rows] for field in fields(state))))

    @staticmethod
    def join(batches: Sequence[Batch]) -> Batch:
        """Join all rows of batches of the same packed scenarios, one after the other."""
        states = [batch._state for batch in batches]
        joined = (np.concatenate([getattr(state, field.name) for state in states]) for field in fields(BatchState))
        return Batch(batches[0].packed, state=BatchState(*joined))

    # -- the present state --------------------------------------------------------------------------------------------

    @property
    def which(self) -> Integers:
        """(B,): the packed scenario that each row plays."""
        return self._state.which

    @property
    def now_s(self) -> Doubles:
        """(B,): virtual seconds since the start."""
        return self._state.now

    @property
    def energy_j(self) -> Doubles:
        """(B, N): modelled, since the start."""
        return self._state.energy

    @property
    def theta(self) -> Doubles:
        """(B, N): weight of the partial sum that a device holds."""
        return self._state.theta

    @property
    def n_agg(self) -> Integers:
        """(B, N): hops that a device took part in."""
        return self._state.n_agg

    @property
    def free_since_s(self) -> Doubles:
        """(B, N): the time at which a device last became free."""
        return self._state.free_since

    @property
    def lost(self) -> Bools:
        """(B, N): devices with a contribution that a death took along."""
        return self._state.lost

    @property
    def wasted_s(self) -> Doubles:
        """(B,): seconds of work that deaths made useless."""
        return self._state.wasted

    def idle(self) -> Bools:
        """Return (B, N): the device may be paired now."""
        state = self._state
        free: Bools = ((state.gone | state.role) == NONE) & ~state.busy & (state.ready == inf)
        return free

    def states(self) -> Codes:
        """Return (B, N), int8: codes in the order of DeviceState."""
        state = self._state
        stand = np.where(state.ready < inf, TRAINING, np.where(state.busy, BUSY, FREE))
        return np.where(state.gone > 0, state.gone, np.where(state.role > 0, state.role, stand)).astype(np.int8)

    def may_wait(self) -> Bools:
        """Return (B,): True if a device trains, is busy or aggregates."""
        ending: Bools = ((self._state.gone == NONE) & ~self.idle()).any(axis=1)
        return ending

    def ended(self) -> Bools:
        """Return (B,): one holder is left and has merged everything."""
        state = self._state
        holds = state.gone == NONE
        ended: Bools = (holds.sum(axis=1) < 2) & ~(holds & (state.role > 0)).any(axis=1)
        return ended

    def makespan_s(self) -> Doubles:
        """Return (B,): the end of the last merge."""
        makespan: Doubles = np.maximum(self._state.merged.max(axis=1), 0.0)
        return makespan

    def busy_for_s(self) -> Doubles:
        """Return (B, N): the length of the present busy period so far, 0 without one."""
        state = self._state
        return np.where(state.busy, state.now[:, None] - state.busy_since, 0.0)

    def eta_ready_s(self) -> Doubles:
        """Return (B, N): seconds until training ends, 0 once it has."""
        state = self._state
        training = (state.ready < inf) & (state.gone == NONE)
        return np.where(training, np.where(training, state.ready, 0.0) - state.now[:, None], 0.0)

    def op_left_s(self) -> Doubles:
        """Return (B, N): active seconds left of a device's transfer or merge, and of the merge to come."""
        return np.maximum(self._state.left, 0.0) + self._state.after

    # -- a policy's actions -------------------------------------------------------------------------------------------

    def start(self, rows: Integers, senders: Integers, receivers: Integers) -> None:
        """Order one hop in each of these rows, now. rows, senders, receivers: positions, as many of each.

        Raises LocalProtocolError unless sender and receiver are two devices and both idle.
        """
        state, packed = self._state, self.packed
        idle = self.idle()
        if not (idle[rows, senders] & idle[rows, receivers] & (senders != receivers)).all():
            raise LocalProtocolError("a hop was ordered among devices that are not idle")
        which = state.which[rows]
        slower = np.minimum(packed.link_mb_s[which, senders], packed.link_mb_s[which, receivers])
        transfer = packed.latency_s[which] + packed.size_mb[which] / slower
        merge = packed.size_mb[which] / packed.merge_mb_s[which, receivers]
        now = state.now[rows]
        first, second = state.place[rows, senders], state.place[rows, receivers]
        sent = _active_end(packed, which, (senders, first), (receivers, second), now, transfer)
        merged = _active_end(packed, which, (receivers, second), (receivers, second), sent, merge)
        state.role[rows, senders], state.role[rows, receivers] = SEND, GET
        state.other[rows, senders], state.other[rows, receivers] = receivers, senders
        state.stalled_by[rows, senders], state.stalled_by[rows, receivers] = receivers, senders
        state.hop_end[rows, senders], state.hop_end[rows, receivers] = sent, merged
        state.left[rows, senders] = state.left[rows, receivers] = transfer
        state.after[rows, receivers] = merge
        state.merged[rows, senders] = merged
        state.cost_transfer[rows, senders], state.cost_merge[rows, senders] = transfer, merge

    def advance(self, moving: Bools | None = None) -> Bools:
        """Go on to the next event in these rows (B,); return the rows that had one."""
        state = self._state
        at = self._next_event()
        moved = at < inf
        if moving is not None:
            moved &= moving
        passed = np.where(moved, at - state.now, 0.0)[:, None]
        stalled = state.busy | np.take_along_axis(state.busy, state.stalled_by, axis=1)
        state.left -= passed * ((state.role > 0) & ~stalled)
        state.now = np.where(moved, at, state.now)
        reached = np.where(moved, at, -inf)[:, None]
        state.ready[state.ready <= reached] = inf
        self._pass_time(moved)
        ends = (state.hop_end <= reached).nonzero()
        if len(ends[0]):
            self._end_hops(*ends)
        return moved

    # -- inside -------------------------------------------------------------------------------------------------------

    def _next_event(self) -> Doubles:
        state = self._state
        at = np.minimum(np.minimum(state.ready, state.edge), state.hop_end)
        if self._dying:
            at = np.minimum(at, state.dies)
        soonest: Doubles = at.min(axis=1)
        return soonest

    def _pass_time(self, moved: Bools) -> None:
        """Turn the edges of busy periods, and bury the devices that died by now."""
        turn_edges(self._state, self.packed, moved)
        if self._dying:
            bury(self._state, self.packed, moved)

    def _end_hops(self, rows: Integers, devices: Integers) -> None:
        """End hops; transfers end before merges, as in the reference."""
        state = self._state
        sends = state.role[rows, devices] == SEND
        at, senders = rows[sends], devices[sends]
        receivers = state.other[at, senders]
        transfer = state.cost_transfer[at, senders]
        state.gone[at, senders] = DONE
        state.n_agg[at, senders] += 1
        state.energy[at, senders] += SEND_W * transfer
        state.energy[at, receivers] += RECEIVE_W * transfer
        state.theta[at, receivers] += state.theta[at, senders]
        state.sent_to[at, senders] = receivers
        state.ready[at, senders] = state.edge[at, senders] = inf
        leave_hop(state, at, senders)
        state.stalled_by[at, receivers] = receivers
        state.left[at, receivers], state.after[at, receivers] = state.after[at, receivers], 0.0
        at, receivers = rows[~sends], devices[~sends]
        state.n_agg[at, receivers] += 1
        state.energy[at, receivers] += MERGE_W * state.cost_merge[at, state.other[at, receivers]]
        state.free_since[at, receivers] = state.hop_end[at, receivers]
        leave_hop(state, at, receivers)


def _active_end(
    packed: PackedScenarios,
    which: Integers,
    one: tuple[Integers, Integers],
    two: tuple[Integers, Integers],
    start: Doubles,
    work: Doubles,
) -> Doubles:
    """Return the end of work that pauses while either device is busy. one, two: (device, busy periods begun)."""
    (first, first_place), (second, second_place) = one, two
    first_place, second_place = first_place.copy(), second_place.copy()
    at, left, end = start.copy(), work.copy(), np.empty_like(start)
    open_rows = np.arange(len(start))
    while len(open_rows):
        scenario, now = which[open_rows], at[open_rows]
        until, following = now.copy(), np.full(len(now), inf)
        for devices, places in ((first, first_place), (second, second_place)):
            device, place = devices[open_rows], places[open_rows]
            while (begun := packed.starts[scenario, device, place] <= now).any():
                place += begun
            places[open_rows] = place
            until = np.maximum(until, packed.ends[scenario, device, place])
            following = np.minimum(following, packed.starts[scenario, device, place])
        blocked = until > now
        fits = ~blocked & (left[open_rows] <= following - now)
        done = open_rows[fits]
        end[done] = at[done] + left[done]
        on = ~blocked & ~fits
        left[open_rows[on]] -= (following - now)[on]
        at[open_rows[on]] = following[on]
        at[open_rows[blocked]] = until[blocked]
        open_rows = open_rows[~fits]
    return end
