"""The state of the iterations of `mdl.sim.timing.batch`: a set of arrays, and changes that hops and deaths share."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from mdl.devices.device_state import DeviceState
from mdl.sim.timing.packing import Bools, Doubles, Integers, Packed

Codes = npt.NDArray[np.int8]

# Codes of the states, in the order of DeviceState.
TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = range(len(DeviceState))
# Not gone, and in no hop.
NONE = 0


@dataclass
class State:
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


def fresh_state(packed: Packed, which: Integers) -> State:
    """Return the start of these scenarios (B,): each device trains, or is ready."""
    exists = packed.exists[which]
    shape = exists.shape

    def full(value: float) -> Doubles:
        return np.full(shape, value)

    def none() -> Integers:
        return np.full(shape, -1)

    ready = packed.ready_s[which]
    return State(
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


def turn_edges(state: State, packed: Packed, moved: Bools) -> None:
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


def leave_hop(state: State, rows: Integers, devices: Integers) -> None:
    """Release these devices from their hops. rows, devices: positions, as many of each."""
    state.role[rows, devices], state.other[rows, devices], state.hop_end[rows, devices] = NONE, -1, inf
    state.stalled_by[rows, devices] = devices
    state.left[rows, devices] = state.after[rows, devices] = 0.0
