"""The segments that one device gives another: those that wait, are under way within a window, or must be repeated.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from mdl.protocol.delta import Contributor
from mdl.protocol.segments import has_bit

# Patience before a retransmission: so many times a recent confirmation's time, doubled up to so many times.
_RTO_FACTOR, _MOST_DOUBLINGS = 4.0, 4
# An uplink's speed is measured over so many seconds and bytes (two lanes' windows); anything less is a burst.
_SEEN_S, _SEEN_BYTES = 0.5, 1 << 18
# The window keeps a link busy until a confirmation is back, at the speed of its slower end. A device that only receives
# is served first, and may have more waiting.
_WINDOW_S, _LEAF_WINDOW_S = 0.02, 0.06
# Largest window of a lane; also where no speed is known. More would wait in queues beside others' values.
MOST_UNDER_WAY = 1 << 17
# If a word takes longer than a window lasts, the way is long. The window then grows by what is confirmed, up to so many
# bytes, until confirmations take a quarter longer than the quickest one (LEDBAT goes by a delay, too: RFC 6817).
_MOST_ON_LONG_WAYS, _QUEUED = 1 << 22, 0.25
# A link that takes longer than this for one segment to each device is crowded. Its lanes share the room of so many
# segments: else connections fight for a few packets' room in its queue, and each loses some. One at a time would leave
# the link idle while it is confirmed.
_CROWDED_S, _SEGMENTS_SHARED = 0.25, 3
# Anything that is over sooner tells of processors, not of links.
_INSTANT_S = 0.05
_SMOOTHING = 0.25

Parcel: TypeAlias = tuple[bool, int]  # (True for a result, segment)


def window_of(mb_s: float, is_leaf: bool, most_bytes: int) -> int:
    """Return the bytes that may be under way to a device. mb_s: of the link's slower end, in MB/s; 0.0: not known."""
    seconds = _LEAF_WINDOW_S if is_leaf else _WINDOW_S
    return min(int(mb_s * 1e6 * seconds), most_bytes) if mb_s > 0 else most_bytes


@dataclass
class Lane:
    """The parcels for one device. is_ready: it says that it follows the order. under_way: parcel -> time of sending.

    is_ours: this device's own link limits the speed. way_s: time of a word there and back, where nothing waits; 0.0:
    not known. quickest_s: the quickest confirmation; 0.0: there was none.
    """

    peer: Contributor
    window_bytes: int
    is_leaf: bool
    is_ours: bool = False
    pieces: deque[int] = field(default_factory=deque)
    results: deque[int] = field(default_factory=deque)
    under_way: dict[Parcel, float] = field(default_factory=dict)
    bytes_under_way: int = 0
    is_ready: bool = False
    is_heard: bool = False
    answer_s: float = 0.0
    way_s: float = 0.0
    quickest_s: float = 0.0
    doublings: int = 0
    said_again: set[Parcel] = field(default_factory=set)
    is_filled: bool = False

    def __post_init__(self) -> None:
        self._first_window_bytes = self.window_bytes

    def begin(self, has: bytes) -> None:
        """Begin: the device follows the order. has: one bit for each segment that need not go there (any more)."""
        self.is_ready = True
        self.pieces = deque(segment for segment in self.pieces if not has_bit(has, segment))
        self.results = deque(segment for segment in self.results if not has_bit(has, segment))

    def is_done(self) -> bool:
        return not (self.pieces or self.results or self.under_way)

    def is_long_way(self) -> bool:
        """Return True if a word takes longer than a window lasts: a slow link alone is no long way."""
        return self.way_s > _WINDOW_S

    def next(self) -> Parcel | None:
        """Return the next parcel. Pieces go first, since their owner's result waits for them."""
        if self.pieces:
            return False, self.pieces.popleft()
        return (True, self.results.popleft()) if self.results else None

    def take_late(self, retry_s: float, now: float) -> list[Parcel]:
        """Return parcels that were sent long ago and may be lost: from now on they are under way again."""
        patience_s = max(2 * retry_s, _RTO_FACTOR * self.answer_s) * 2**self.doublings
        late = [parcel for parcel, sent_at in self.under_way.items() if now - sent_at >= patience_s]
        if late:
            self.doublings = min(self.doublings + 1, _MOST_DOUBLINGS)
            self.window_bytes = self._first_window_bytes
            self.said_again.update(late)
        self.under_way |= dict.fromkeys(late, now)
        return late

    def confirm(self, parcel: Parcel, size_bytes: int, now: float) -> bool:
        sent_at = self.under_way.pop(parcel, None)
        if sent_at is None:
            return False
        took_s, was_full = now - sent_at, self.bytes_under_way + size_bytes > self.window_bytes
        self.bytes_under_way -= size_bytes
        self.answer_s += _SMOOTHING * (took_s - self.answer_s) if self.answer_s else took_s
        self.doublings = 0
        if parcel not in self.said_again:  # else nobody knows which one this confirms
            self._adapt(took_s, size_bytes, was_full)
        return True

    def _adapt(self, took_s: float, size_bytes: int, was_full: bool) -> None:
        """Adapt the window on a long way, by the delays of confirmations.

        The measured speed tells little there: it is only what the window let go.
        """
        self.quickest_s = min(self.quickest_s, took_s) if self.quickest_s else took_s
        if not self.is_long_way():
            return
        if took_s > (1 + _QUEUED) * self.quickest_s:
            self.window_bytes = max(self.window_bytes - size_bytes, self._first_window_bytes)
            self.is_filled = True  # more in this exchange would only wait
        elif was_full and not self.is_filled:
            self.window_bytes = max(self.window_bytes, min(self.window_bytes + size_bytes, _MOST_ON_LONG_WAYS))


@dataclass
class Uplink:
    """The speed at which this device sends, in MB/s: the best over a while that one exchange's confirmations show.

    0.0: not known. If a model is so small that no exchange takes that while, those of several rounds add up. On a long
    way a lane begins with the window that the last one to this device has ended with. ways_s: peer id -> time of a word
    there and back, where it is known. is_crowded: in this exchange.
    """

    mb_s: float = 0.0
    _since: float | None = None
    _noted_at: float = 0.0
    _bytes: int = 0
    ways_s: Mapping[str, float] = field(default_factory=dict)
    is_crowded: bool = False
    _seconds_before: float = 0.0
    _bytes_before: int = 0
    _lanes: dict[Contributor, Lane] = field(default_factory=dict)
    _lanes_before: dict[Contributor, Lane] = field(default_factory=dict)
    _ours: list[Lane] = field(default_factory=list)

    def begin(self) -> None:
        """Begin another exchange.

        The figures of one too short to tell by itself are added to the next one's.
        """
        seconds = 0.0 if self._since is None else self._noted_at - self._since
        if seconds >= _INSTANT_S and not self.mb_s:
            self._seconds_before, self._bytes_before = self._seconds_before + seconds, self._bytes_before + self._bytes
        self.mb_s, self._since, self._bytes = 0.0, None, 0
        self._lanes, self._lanes_before = {}, self._lanes

    def open(self, own_mb_s: float, lanes: Collection[Lane], segment_bytes: int) -> None:
        """Take the lanes of the exchange that has begun. own_mb_s: speed of this device's link, 0.0: not known."""
        for lane in lanes:
            lane.way_s = self.ways_s.get(lane.peer.peer_id, 0.0)
            if lane.is_long_way():
                before = self._lanes.get(lane.peer) or self._lanes_before.get(lane.peer) or lane
                lane.window_bytes, lane.is_ours = max(lane.window_bytes, before.window_bytes), False
            self._lanes[lane.peer] = lane
        self._ours = [lane for lane in lanes if lane.is_ours]
        self.is_crowded = len(self._ours) * segment_bytes > _CROWDED_S * 1e6 * own_mb_s > 0

    def has_room(self, lane: Lane, segment_bytes: int) -> bool:
        """Return True if one more segment may be under way in the window and on a crowded link.

        The window always has room for one. A lane that had to repeat takes no room on the link: its device may be gone,
        and the others would wait for it.
        """
        if lane.under_way and lane.bytes_under_way + segment_bytes > lane.window_bytes:
            return False
        if not (self.is_crowded and lane.is_ours):
            return True
        shared = sum(each.bytes_under_way for each in self._ours if not each.doublings)
        return shared < _SEGMENTS_SHARED * segment_bytes

    def rank(self, lane: Lane) -> tuple[int, int]:
        """Return the lane's rank on a crowded link, the least goes first; all are equal on another link."""
        return (lane.bytes_under_way, -len(lane.pieces)) if self.is_crowded else (0, 0)

    def note(self, size_bytes: int, now: float) -> None:
        self._noted_at = now
        if self._since is None:
            self._since = now  # confirmations before it began to count tell nothing
            return
        self._bytes += size_bytes
        seconds, size_bytes = now - self._since + self._seconds_before, self._bytes + self._bytes_before
        if seconds >= _SEEN_S and size_bytes >= _SEEN_BYTES and now - self._since >= _INSTANT_S:
            self.mb_s = max(self.mb_s, size_bytes / 1e6 / seconds)
            self._since, self._bytes, self._seconds_before, self._bytes_before = now, 0, 0.0, 0
