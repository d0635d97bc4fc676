"""From moments at places to a person's stays, and from stays to sequences for the M-RNN (Colla 2.2 and 4.1).

Time is cut into windows of 10 minutes, each with the place of most of its moments; neighbouring windows at one place
are a stay. A sequence is the stays of a day and the moment of the question "where then?". A step's six features are
whole numbers: the stay's place and duration, and hour, minute, weekday and gap of the next moment. For the last step
the next moment is that of the question. Knows nothing of files.
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
_MINUTES_A_WINDOW = WINDOW_S // 60
# The value of every feature of a missing step: no code, and no row of an embedding.
NO_STAY = -1


@dataclass(frozen=True)
class Stays:
    """A person's stays in order of time, each int64 (n,).

    place: 0..places-1. start: first window, counted from the local midnight of 1 January 1970. duration: windows from
    the first to the last, at least 1.
    """

    place: Integers
    start: Integers
    duration: Integers

    def __len__(self) -> int:
        return len(self.place)

    @property
    def day(self) -> Integers:
        """The local day on which each stay begins."""
        return self.start // WINDOWS_A_DAY


def find_stays(local_time_s: Integers, place: Integers, longest_hole: int) -> Stays:
    """Find stays in moments, both int64 (m,), in any order. A place below 0 is nowhere: it ends a stay.

    longest_hole: windows without a moment that a stay bridges; phones do not report every 10 minutes.
    """
    window, where = _vote(local_time_s // WINDOW_S, place)
    follows = np.zeros(len(window), dtype=bool)
    follows[1:] = (where[1:] == where[:-1]) & (np.diff(window) <= longest_hole + 1)
    first = np.flatnonzero(~follows)
    last = np.append(first[1:], len(window)) - 1 if len(first) else first
    somewhere = where[first] >= 0
    first, last = first[somewhere], last[somewhere]
    return Stays(where[first], window[first], window[last] + 1 - window[first])


def keep_active_days(stays: Stays, fewest: int) -> Stays:
    """Return the stays of days with at least `fewest` of them: on other days the phone was off, or its owner away."""
    days, day, count = np.unique(stays.day, return_inverse=True, return_counts=True)
    return take_stays(stays, (count >= fewest)[day]) if len(days) else stays


def moments_in(stays: Stays, local_time_s: Integers) -> NDArray[np.bool_]:
    """Return True, (n,), for the moments in a window of 10 minutes that a stay covers. local_time_s: int64 (n,)."""
    if not len(stays):
        return np.zeros(len(local_time_s), np.bool_)
    window = local_time_s // WINDOW_S
    last = np.searchsorted(stays.start, window, side="right") - 1
    found: NDArray[np.bool_] = (last >= 0) & (window < (stays.start + stays.duration)[last])
    return found


def take_stays(stays: Stays, rows: NDArray[np.bool_]) -> Stays:
    """Return the stays where `rows` is true."""
    return Stays(stays.place[rows], stays.start[rows], stays.duration[rows])


def encode_steps(stays: Stays, asked: Integers) -> Integers:
    """Return codes int64 (n, 6) in the order of FEATURES, each below the sizes that `feature_sizes` gives.

    asked: the window of the moment that follows each stay, int64 (n,): the next stay's start, or any later one.
    Durations and gaps longer than a day count as a day.
    """
    of_day = asked % WINDOWS_A_DAY
    return np.stack(
        [
            stays.place,
            of_day // WINDOWS_AN_HOUR,
            of_day % WINDOWS_AN_HOUR * _MINUTES_A_WINDOW,
            # 1 January 1970 was a Thursday; Monday is 0.
            (asked // WINDOWS_A_DAY + 3) % 7,
            np.clip(stays.duration, 1, WINDOWS_A_DAY) - 1,
            np.clip(asked - stays.start - stays.duration, 0, WINDOWS_A_DAY - 1),
        ],
        axis=1,
    )


def feature_sizes(places: int) -> tuple[int, ...]:
    """Return the number of codes of each feature, in the order of FEATURES (Colla 2.2)."""
    return (places, 24, 60, 7, WINDOWS_A_DAY, WINDOWS_A_DAY)


def make_sequences(stays: Stays, steps: int) -> tuple[Floats, Integers]:
    """Return x: codes as float32 (n - 1, 6, steps), oldest first; y: the place of the next stay, int64 (n - 1,).

    A day's stays before each stay, growing one by one (2.2): those that began at most a day before it, at most `steps`
    of them, and the last one in any case. Steps after the last are NO_STAY.
    """
    asked = stays.start[1:]
    codes = encode_steps(take_stays(stays, np.arange(len(stays)) < len(asked)), asked)
    last = np.arange(len(asked))
    first = np.searchsorted(stays.start, asked - WINDOWS_A_DAY)
    first = np.minimum(np.maximum(first, last + 1 - steps), last)
    x = np.full((len(asked), len(FEATURES), steps), NO_STAY, np.float32)
    for row in last:
        x[row, :, : row + 1 - first[row]] = codes[first[row] : row + 1].T
    return x, stays.place[1:].copy()


def ask_next(stays: Stays, asked: int, steps: int) -> Floats:
    """Return the one sequence, float32 (1, 6, steps), that asks for the place at window `asked` after these stays."""
    known = Stays(np.append(stays.place, 0), np.append(stays.start, asked), np.append(stays.duration, 1))
    return make_sequences(known, steps)[0][-1:]


def last_steps(x: NDArray[np.float32]) -> Integers:
    """Return the codes of each sequence's last step, int64 (n, 6). x: (n, 6, steps)."""
    last = np.maximum((x[:, 0] != NO_STAY).sum(axis=1) - 1, 0)
    codes: Integers = x[np.arange(len(x)), :, last].astype(np.int64)
    return codes


def _vote(window: Integers, place: Integers) -> tuple[Integers, Integers]:
    """Return each window once, in order, with the place of most of its moments; the smaller number in a tie."""
    pairs, votes = np.unique(np.stack([window, place]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -votes, pairs[0]))
    first = np.unique(pairs[0][order], return_index=True)[1]
    return pairs[0][order][first], pairs[1][order][first]
