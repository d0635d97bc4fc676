"""From moments at places to a person's stays, and from stays to sequences for the M-RNN (Colla, section 5's data).

Time is cut into windows of 10 minutes, each with the place that most of its moments name; neighbouring windows at one
place are a stay. A stay's features are whole numbers: place, hour, minute (the window within the hour), weekday,
duration and gap (both in windows). Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdl.data.windows import Floats, Integers

FEATURES = ("place", "hour", "minute", "weekday", "duration", "gap")
WINDOW_S = 600
WINDOWS_A_DAY = 86_400 // WINDOW_S
WINDOWS_AN_HOUR = 3_600 // WINDOW_S
# Place codes below this are not places: 0 is "before the record begins", and 1 is kept free, so that models have the
# paper's number of parameters (docs/colla-notes.md).
FIRST_PLACE_CODE = 2


@dataclass(frozen=True)
class Stays:
    """A person's stays in order of time, each int64 (n,).

    place: 0..places-1. start: first window, counted from the local midnight of 1 January 1970. duration: windows from
    the first to the last, at least 1. gap: windows between the end of the stay before and this one's start.
    """

    place: Integers
    start: Integers
    duration: Integers
    gap: Integers

    def __len__(self) -> int:
        return len(self.place)

    @property
    def day(self) -> Integers:
        """The local day each stay begins on."""
        return self.start // WINDOWS_A_DAY


def find_stays(local_time_s: Integers, place: Integers, longest_hole: int) -> Stays:
    """Stays from moments, both int64 (m,), in any order. A place below 0 is nowhere: it ends a stay.

    longest_hole: windows without a moment that a stay bridges; phones do not report every 10 minutes.
    """
    window, where = _vote(local_time_s // WINDOW_S, place)
    follows = np.zeros(len(window), dtype=bool)
    follows[1:] = (where[1:] == where[:-1]) & (np.diff(window) <= longest_hole + 1)
    first = np.flatnonzero(~follows)
    last = np.append(first[1:], len(window)) - 1 if len(first) else first
    somewhere = where[first] >= 0
    first, last = first[somewhere], last[somewhere]
    start, end = window[first], window[last] + 1
    gap = np.zeros(len(start), np.int64)
    gap[1:] = start[1:] - end[:-1]
    return Stays(where[first], start, end - start, gap)


def keep_active_days(stays: Stays, fewest: int) -> Stays:
    """The stays of days with at least `fewest` of them: on other days the phone was off, or its owner away."""
    days, day, count = np.unique(stays.day, return_inverse=True, return_counts=True)
    return take_stays(stays, (count >= fewest)[day]) if len(days) else stays


def take_stays(stays: Stays, rows: NDArray[np.bool_]) -> Stays:
    """The stays where `rows` is true; their gaps stay what they were."""
    return Stays(stays.place[rows], stays.start[rows], stays.duration[rows], stays.gap[rows])


def encode_stays(stays: Stays) -> Integers:
    """Codes int64 (n, 6) in the order of FEATURES, each below the sizes that `feature_sizes` gives."""
    of_day = stays.start % WINDOWS_A_DAY
    return np.stack(
        [
            stays.place + FIRST_PLACE_CODE,
            of_day // WINDOWS_AN_HOUR,
            of_day % WINDOWS_AN_HOUR,
            # 1 January 1970 was a Thursday; Monday is 0.
            (stays.day + 3) % 7,
            np.clip(stays.duration, 1, WINDOWS_A_DAY),
            np.clip(stays.gap, 0, WINDOWS_A_DAY),
        ],
        axis=1,
    )


def feature_sizes(places: int) -> tuple[int, ...]:
    """How many codes each feature has, in the order of FEATURES; what is longer than a day counts as a day."""
    return (places + FIRST_PLACE_CODE, 24, WINDOWS_AN_HOUR, 7, WINDOWS_A_DAY + 1, WINDOWS_A_DAY + 1)


def make_sequences(stays: Stays, steps: int) -> tuple[Floats, Integers]:
    """x: codes as float32 (n - 1, 6, steps) of the stays before each stay; y: its place, int64 (n - 1,).

    A history shorter than `steps` is filled with zeros in front.
    """
    codes = encode_stays(stays)
    padded = np.concatenate([np.zeros((steps, len(FEATURES)), np.int64), codes])
    view = np.lib.stride_tricks.sliding_window_view(padded, steps, axis=0)[1 : len(codes)]
    return np.ascontiguousarray(view, dtype=np.float32), stays.place[1:].copy()


def _vote(window: Integers, place: Integers) -> tuple[Integers, Integers]:
    """Each window once, in order, with the place that most of its moments name; the smaller number where they tie."""
    pairs, votes = np.unique(np.stack([window, place]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -votes, pairs[0]))
    first = np.unique(pairs[0][order], return_index=True)[1]
    return pairs[0][order][first], pairs[1][order][first]
