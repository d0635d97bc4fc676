"""The timing model of `mdl.sim.timing.iteration` for many iterations at once, in NumPy: the same events, times and
energies. Pure.

B iterations of up to N devices run side by side; state is a set of arrays, so that copying rows (`take`) branches a
simulation. Each row moves by itself: `start` orders hops in some rows, `advance` takes others to their next event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import inf

import numpy as np

from mdl.devices.power import MERGE_W, RECEIVE_W, SEND_W
from mdl.errors import LocalProtocolError
from mdl.sim.timing.batch_deaths import bury
from mdl.sim.timing.batch_state import (
    BUSY,
    DONE,
    FREE,
    GET,
    NONE,
    SEND,
    TRAINING,
    Codes,
    State,
    fresh_state,
    leave_hop,
    turn_edges,
)
from mdl.sim.timing.packing import Bools, Doubles, Integers, Packed


class Batch:
    """B iterations side by side: `idle` shows devices that may be paired, `start` orders hops, `advance` goes on."""

    def __init__(self, packed: Packed, which: Integers | None = None, state: State | None = None) -> None:
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
        return Batch(self.packed, state=State(*(getattr(state, field.name)[rows] for field in fields(state))))

    @staticmethod
    def join(batches: Sequence[Batch]) -> Batch:
        """Join all rows of batches of the same packed scenarios, one after the other."""
        states = [batch._state for batch in batches]
        joined = (np.concatenate([getattr(state, field.name) for state in states]) for field in fields(State))
        return Batch(batches[0].packed, state=State(*joined))

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
    packed: Packed,
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
