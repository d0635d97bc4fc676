"""Deaths of devices while many iterations run side by side. Their hops are undone; loads that they carried return to
the devices that gave them. Deaths are few, so each is handled by itself.
"""

from __future__ import annotations

from math import inf

import numpy as np

from mdl.sim.timing.batch_state import DEAD, DONE, NONE, SEND, State, leave_hop, turn_edges
from mdl.sim.timing.packing import Bools, Packed


def bury(state: State, packed: Packed, moved: Bools) -> None:
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


def _abort(state: State, row: int, index: int) -> None:
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


def _release(state: State, packed: Packed, row: int, index: int) -> None:
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
