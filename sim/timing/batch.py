"""The timing model of `sim.timing.iteration` for many iterations at once, in NumPy: the same events, times and
energies. Pure.

B iterations of up to N devices run side by side; state is a set of arrays, so that copying rows (`take`) branches a
simulation. What moves is decided per row: `start` hops in some rows, `advance` others to their next event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf

import numpy as np
import numpy.typing as npt

from mdl.devices.device_state import DeviceState
from mdl.devices.power import MERGE_W, RECEIVE_W, SEND_W
from mdl.errors import LocalProtocolError
from sim.timing.packing import Bools, Doubles, Integers, Packed

Codes = npt.NDArray[np.int8]

# Codes of the states, in the order of DeviceState.
TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = range(len(DeviceState))
_NONE = 0


@dataclass
class _State:
    """Shape (B, N) unless said. A device that does not exist counts as done.

    gone: 0, DONE or DEAD. role: 0, SEND or GET. other: the other end of its hop, else -1. stalled_by: the device whose
    busy periods hold it up too (itself if none). hop_end: end of its part of the hop. left, after: active seconds left
    of the transfer or merge that runs, and of the merge to come. place: busy periods begun. edge: when its next busy
    period starts or the present one ends. By sender: sent_to, merged (end of the merge, -inf without a hop),
    cost_transfer, cost_merge.
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


class Batch:
    """B iterations side by side: `idle` says who may be paired, `start` orders hops, `advance` goes on."""

    def __init__(self, packed: Packed, which: Integers | None = None, state: _State | None = None) -> None:
        """One row for each of the packed scenarios, or for each of `which` (scenario numbers)."""
        self.packed = packed
        self._dying = bool((packed.dies_s < inf).any())
        self._place_of = np.arange(packed.exists.shape[1])
        if state is not None:
            self._state = state
            return
        which = np.arange(len(packed.exists)) if which is None else which
        self._state = _fresh(packed, which)
        everywhere = np.ones(len(which), dtype=np.bool_)
        self._turn_edges(everywhere)
        self._bury(everywhere)

    def __len__(self) -> int:
        return len(self._state.now)

    def take(self, rows: Integers | Bools) -> Batch:
        """A copy of these rows; a row may be taken more than once."""
        state = self._state
        return Batch(self.packed, state=_State(*(getattr(state, field.name)[rows] for field in fields(state))))

    @staticmethod
    def join(batches: Sequence[Batch]) -> Batch:
        """All rows of batches of the same packed scenarios, one after the other."""
        states = [batch._state for batch in batches]
        joined = (np.concatenate([getattr(state, field.name) for state in states]) for field in fields(_State))
        return Batch(batches[0].packed, state=_State(*joined))

    # -- what is so now -----------------------------------------------------------------------------------------------

    @property
    def which(self) -> Integers:
        return self._state.which

    @property
    def now_s(self) -> Doubles:
        return self._state.now

    @property
    def energy_j(self) -> Doubles:
        return self._state.energy

    @property
    def theta(self) -> Doubles:
        return self._state.theta

    @property
    def n_agg(self) -> Integers:
        return self._state.n_agg

    @property
    def free_since_s(self) -> Doubles:
        return self._state.free_since

    @property
    def lost(self) -> Bools:
        return self._state.lost

    @property
    def wasted_s(self) -> Doubles:
        return self._state.wasted

    def idle(self) -> Bools:
        state = self._state
        free: Bools = ((state.gone | state.role) == _NONE) & ~state.busy & (state.ready == inf)
        return free

    def states(self) -> Codes:
        """Codes in the order of DeviceState."""
        state = self._state
        stand = np.where(state.ready < inf, TRAINING, np.where(state.busy, BUSY, FREE))
        return np.where(state.gone > 0, state.gone, np.where(state.role > 0, state.role, stand)).astype(np.int8)

    def may_wait(self) -> Bools:
        """(B,): somebody trains, is busy or aggregates."""
        ending: Bools = ((self._state.gone == _NONE) & ~self.idle()).any(axis=1)
        return ending

    def ended(self) -> Bools:
        """(B,): one holder is left and has merged everything."""
        state = self._state
        holds = state.gone == _NONE
        ended: Bools = (holds.sum(axis=1) < 2) & ~(holds & (state.role > 0)).any(axis=1)
        return ended

    def makespan_s(self) -> Doubles:
        """(B,): when the last merge ended."""
        makespan: Doubles = np.maximum(self._state.merged.max(axis=1), 0.0)
        return makespan

    def busy_for_s(self) -> Doubles:
        state = self._state
        return np.where(state.busy, state.now[:, None] - state.busy_since, 0.0)

    def eta_ready_s(self) -> Doubles:
        state = self._state
        training = (state.ready < inf) & (state.gone == _NONE)
        return np.where(training, np.where(training, state.ready, 0.0) - state.now[:, None], 0.0)

    def op_left_s(self) -> Doubles:
        return np.maximum(self._state.left, 0.0) + self._state.after

    # -- what a policy does -------------------------------------------------------------------------------------------

    def start(self, rows: Integers, senders: Integers, receivers: Integers) -> None:
        """Order one hop in each of these rows, now. Raises LocalProtocolError unless both are idle and two devices."""
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
        """Go on to the next event in these rows (B,); returns where there was one."""
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
        self._turn_edges(moved)
        self._bury(moved)
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

    def _turn_edges(self, moved: Bools) -> None:
        """Busy periods that start or end by now."""
        state, packed = self._state, self.packed
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

    def _end_hops(self, rows: Integers, devices: Integers) -> None:
        """Transfers end before merges, as in the reference."""
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
        self._leave_hop(at, senders)
        state.stalled_by[at, receivers] = receivers
        state.left[at, receivers], state.after[at, receivers] = state.after[at, receivers], 0.0
        at, receivers = rows[~sends], devices[~sends]
        state.n_agg[at, receivers] += 1
        state.energy[at, receivers] += MERGE_W * state.cost_merge[at, state.other[at, receivers]]
        state.free_since[at, receivers] = state.hop_end[at, receivers]
        self._leave_hop(at, receivers)

    def _leave_hop(self, rows: Integers, devices: Integers) -> None:
        state = self._state
        state.role[rows, devices], state.other[rows, devices], state.hop_end[rows, devices] = _NONE, -1, inf
        state.stalled_by[rows, devices] = devices
        state.left[rows, devices] = state.after[rows, devices] = 0.0

    # -- deaths are few: one at a time --------------------------------------------------------------------------------

    def _bury(self, moved: Bools) -> None:
        if not self._dying:
            return
        state = self._state
        reached = np.where(moved, state.now, -inf)[:, None]
        for row, index in zip(*(array.tolist() for array in (state.dies <= reached).nonzero()), strict=True):
            delivered = state.gone[row, index] == DONE
            state.gone[row, index] = DEAD
            state.dies[row, index] = state.ready[row, index] = state.edge[row, index] = inf
            if not delivered:
                self._abort(row, index)
                state.lost[row, index] = True
                self._release(row, index)

    def _abort(self, row: int, index: int) -> None:
        """The hop it is part of is undone; before the transfer's end the other one is free again."""
        state = self._state
        if state.role[row, index] == _NONE:
            return
        other = int(state.other[row, index])
        sender = index if state.role[row, index] == SEND else other
        state.merged[row, sender] = -inf
        state.wasted[row] += state.cost_transfer[row, sender]
        ends = [end for end in (index, other) if state.role[row, end] != _NONE]
        for end in ends:
            state.free_since[row, end] = state.now[row]
        self._leave_hop(np.full(len(ends), row), np.array(ends))

    def _release(self, row: int, index: int) -> None:
        """All loads that it carried are with those who gave them again, as far as they live."""
        state = self._state
        for giver in np.flatnonzero(state.sent_to[row] == index).tolist():
            if state.merged[row, giver] > -inf:
                state.merged[row, giver] = -inf
                state.wasted[row] += state.cost_transfer[row, giver] + state.cost_merge[row, giver]
            state.sent_to[row, giver] = -1
            if state.gone[row, giver] == DEAD:
                state.lost[row, giver] = True
                self._release(row, giver)
                continue
            state.gone[row, giver] = _NONE
            state.free_since[row, giver] = state.now[row]
            state.edge[row, giver] = -inf  # to be found again
            only = np.zeros(len(self), dtype=np.bool_)
            only[row] = True
            self._turn_edges(only)


def _fresh(packed: Packed, which: Integers) -> _State:
    exists = packed.exists[which]
    shape = exists.shape

    def full(value: float) -> Doubles:
        return np.full(shape, value)

    def none() -> Integers:
        return np.full(shape, -1)

    ready = packed.ready_s[which]
    return _State(
        which=which,
        now=np.zeros(len(which)),
        wasted=np.zeros(len(which)),
        gone=np.where(exists, _NONE, DONE).astype(np.int8),
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


def _active_end(
    packed: Packed,
    which: Integers,
    one: tuple[Integers, Integers],
    two: tuple[Integers, Integers],
    start: Doubles,
    work: Doubles,
) -> Doubles:
    """When work that stands still while either device is busy ends. Each: (device, busy periods begun by the start)."""
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
