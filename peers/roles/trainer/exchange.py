"""A delta that travels in segments, on one device (reduce-scatter and all-gather with shares by bandwidth). Pure.

Each contributor gives the owner of a segment its piece. The owner merges the pieces, one at a time as in a hop, and
gives the mean to all, while pieces of the next segment come in. If the trained model can give the own delta again, the
result takes its place, segment by segment: its piece is not needed once the segment's result is here. Else the own
delta stays whole, and the result grows beside it (`GrowingResult`). Parcels for another device wait in a `Lane`, with a
window of bytes under way; what is not confirmed is sent again. All tell each other the checksums of their pieces, so
that each result is checked (`mdl/protocol/checksum.py`). If a contributor is lost, the others go on: in the segments
that have its piece its work counts, and the others come about without it (`go_on`).

After an exchange that came to no end, only the gaps of a result are fetched (`GappedResult`). The values that are here
need not be believed. The order names the result by its digest, and the values are hashed once the last gap is filled.
If they are another result's after all, all of it is fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from mdl.defence.limits import ALTERED
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.guard import DeltaGuard
from mdl.protocol.checksum import add_up, checksums_by_segment, piece_values
from mdl.protocol.coding import part_of_bytes
from mdl.protocol.delta import THETA_ROUNDING, Contributor, PartialSum, check_size, pair_aggregate
from mdl.protocol.grid import Grid, Sums, Vector, check_sums, coding_in
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    GlobalMessage,
    GlobalWanted,
    PieceMessage,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.segments import SegmentCut, has_bit, partials_of, places_of, to_bits
from mdl.protocol.vocabulary import Partials

# Values that are asked for at once, 16 MB: they take so much memory beside the result, and milliseconds to copy.
MOST_AT_ONCE = 1 << 22


class GrowingResult:
    """The result of an exchange. values: int32 (P,). lacking: its segments that are not here.

    Values that are still read may not change under their reader: the result then comes about in other memory from there
    on (`leave`). A large one is not copied at once: at 800 MB that would hold up the device's heartbeats for half a
    second. Each `follow` copies some, and segments that are touched are copied first. behind: the segments that are to
    be copied.
    """

    def __init__(self, values: Sums, cut: SegmentCut) -> None:
        self.values = values
        self.lacking = set(range(cut.segments))
        self.behind: set[int] = set()
        self._left = values
        self._cut = cut

    @property
    def is_whole(self) -> bool:
        return not (self.lacking or self.behind)

    @property
    def received_bytes(self) -> int:
        return 4 * self._cut.values * (self._cut.segments - len(self.lacking))

    def gaps(self) -> deque[tuple[int, int]]:
        """Return the gaps: values that are not here, or not in their place."""
        return join_gaps(map(self._cut.bounds, sorted(self.lacking | self.behind)))

    def part(self, segment: int) -> Sums:
        """Return a segment's values, or the memory for them."""
        bounds = self._cut.bounds(segment)
        if segment in self.behind:
            self.behind.discard(segment)
            self.values[bounds] = self._left[bounds]
        return self.values[bounds]

    def leave(self) -> None:
        """Leave the values that are here unchanged for their readers, and go on in other memory."""
        while self.follow():
            pass
        self._left, self.values = self.values, np.empty_like(self.values)
        self.behind = set(range(self._cut.segments))
        self.follow()

    def follow(self) -> bool:
        """Copy up to MOST_AT_ONCE values of what was left; return True if there are more."""
        for segment in islice(sorted(self.behind), max(1, MOST_AT_ONCE // self._cut.values)):
            self.part(segment)
        if not self.behind:
            self._left = self.values
        return bool(self.behind)


@dataclass
class GappedResult:
    """See the module. digest: of the result that is ordered. values: int32 (P,). gaps: (start, stop), in order."""

    digest: bytes
    values: Sums
    gaps: deque[tuple[int, int]]

    def ask(self, round_id: int) -> GlobalWanted:
        """Return the request for the first gap."""
        start, stop = self.gaps[0]
        return GlobalWanted(round_id, start, stop)

    def fill(self, message: GlobalMessage, values: Sums) -> bool:
        """Fill the gap asked for; return False if it is another one. Raises RemoteProtocolError for a wrong size."""
        start, stop = message.start, message.stop
        if not self.gaps or (start, stop) != self.gaps[0]:
            return False
        check_size(values, stop - start)
        self.values[start:stop] = values
        self.gaps.popleft()
        return True

    def part_ways(self) -> None:
        """Copy what is changed in place: this object is a copy of another one (`sim/mesh/search.py`)."""
        self.values = self.values.copy() if self.gaps else self.values


def join_gaps(lacking: Iterable[slice]) -> deque[tuple[int, int]]:
    """Return the gaps: neighbouring slices are joined, up to MOST_AT_ONCE values."""
    gaps: deque[tuple[int, int]] = deque()
    for each in lacking:
        if gaps and gaps[-1][1] == each.start and each.stop - gaps[-1][0] <= MOST_AT_ONCE:
            gaps[-1] = gaps[-1][0], each.stop
        else:
            gaps.append((each.start, each.stop))
    return gaps


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


class SegmentExchange:
    """See the module. own: None if it contributes nothing. uplink: its speeds, as earlier exchanges have shown them.

    guard: judges the pieces that come to this owner; None: they are not judged. is_in_place: the result takes the place
    of the own delta. lacks_own: it waits for that (`take_own`). result: as far as it is here.
    grid: of the round; None: nothing is judged. checksums: of the own delta's pieces; (): not known.

    Raises RemoteProtocolError for an order with other segments than those of a model of `size` values, or another grid
    than the own delta's.
    """

    def __init__(
        self,
        order: BroadcastOrdered,
        me: Contributor,
        own: PartialSum | None,
        size: int,
        retry_s: float,
        most_under_way: int = MOST_UNDER_WAY,
        uplink: Uplink | None = None,
        guard: DeltaGuard | None = None,
        is_in_place: bool = False,
        grid: Grid | None = None,
        checksums: tuple[int, ...] = (),
    ) -> None:
        self._own = own if me in order.contributors else None
        if self._own and self._own.room != order.room:
            raise RemoteProtocolError(f"an exchange on a grid with room {order.room}, not {self._own.room}")
        self.is_in_place = is_in_place and self._own is not None
        self.lacks_own = self._goes_on = self._is_refused = False
        self.uplink = uplink or Uplink()
        self.uplink.begin()
        self._me, self._grid = me, grid
        self._guard = guard
        self._retry_s, self._most_under_way = retry_s, most_under_way
        self._follow(order, size)
        if order.segment_values % piece_values(size):
            raise RemoteProtocolError(f"segments of {order.segment_values} values, which have no checksums")
        self._checksums = checksums_by_segment(checksums, size, order.segment_values) if self._own else ()
        self._told = {me: self._checksums}
        # (contributor, or None of a result; segment) -> the giver, and what it gave before that could be checked.
        self._unchecked: dict[
            tuple[Contributor | None, int], tuple[Contributor, PieceMessage | SegmentMessage, int]
        ] = {}
        values = self._own.values if self._own and self.is_in_place else np.empty(size, np.int32)
        self.result = GrowingResult(values, self._cut)
        self._merging: dict[int, PartialSum] = {}
        self._without: dict[int, tuple[int, ...]] = {}  # segment -> numbers of the lost devices that are not in it

    def bounds(self, segment: int) -> slice:
        """Return the bounds of a segment's values. Raises RemoteProtocolError if there is none of this number."""
        return self._cut.bounds(segment)

    @property
    def is_whole(self) -> bool:
        """True once all of the result is here."""
        return self.result.is_whole

    @property
    def is_unchecked(self) -> bool:
        """True while some values could not be checked as they came."""
        return bool(self._unchecked)

    @property
    def is_checked(self) -> bool:
        """True unless the result has to wait for checksums of contributors, or was refused as a whole.

        It waits without end for those of lost ones: the agent has the others begin anew.
        """
        return not (self._is_refused or self._lacks_checksums() or self._unproven())

    @property
    def partial(self) -> Partials:
        """The lost devices that are in some of the result's segments, and the segments that lack them."""
        return partials_of(self.order.lost, self._without, self._cut.segments, self._cut.values)

    def lacking(self) -> tuple[str, ...]:
        """Return the peer ids of the contributors with pieces that this owner still waits for.

        And of the lost ones with pieces in a sum here that have told it no checksums: that sum cannot be checked.
        """
        waits = [] if self.is_whole else [peer.peer_id for peer in self._lanes if self._lacks_piece_of(peer)]
        return (*waits, *(peer.peer_id for peer in self._unproven()))

    def _unproven(self) -> list[Contributor]:
        untold = [(n, each.contributor) for n, each in enumerate(self.order.lost) if each.contributor not in self._told]
        return [peer for number, peer in untold if self._has_some_of(number, peer)]

    def _has_some_of(self, number: int, peer: Contributor) -> bool:
        """Return True if pieces of this lost device, by its number among the lost, are in a sum here."""
        here = (segment for segment in range(self._cut.segments) if segment not in self.result.lacking)
        is_in_result = any(number not in self._without.get(segment, ()) for segment in here)
        return is_in_result or any(peer in merged.contributors for merged in self._merging.values())

    def is_over(self) -> bool:
        """Return True once the result is whole here and every peer has its part of it from this device."""
        return self.is_whole and self.is_checked and all(lane.is_done() for lane in self._lanes.values())

    def begin(self) -> list[Send]:
        """Merge the own pieces of the segments it owns, and tell the others that it is ready for theirs."""
        sends = [Send(lane.peer.peer_id, self._ready(lane.peer)) for lane in self._lanes.values()]
        for segment in self._owned:
            if segment in self.result.lacking:
                self._merge_own(segment)
        return sends

    def go_on(self, order: BroadcastOrdered) -> list[Send]:
        """Go on with the same exchange without the devices that this order has lost.

        Merged pieces stay, and the segments of the lost devices begin anew. If the result has taken the own delta's
        place, wait until that is here again: segments that begin anew need its pieces.
        Raises RemoteProtocolError if it is not the same exchange.
        """
        before, known = self._cut, self.order.lost
        if order.lost[: len(known)] != known:
            raise RemoteProtocolError("an exchange that goes on with devices that it has lost")
        if (order.segment_values, places_of(order)) != (before.values, places_of(self.order)):
            raise RemoteProtocolError("an exchange that goes on with other shares")
        if self.is_whole or (self.is_in_place and not self.lacks_own):
            self.result.leave()  # it may be hashed, staged, or on its way to a lost device
        self.lacks_own, self._goes_on = self.is_in_place, True
        self._follow(order, before.size)
        for segment in range(before.segments):
            if self._cut.owner(segment) != before.owner(segment):
                self.result.lacking.add(segment)
                self._unchecked.pop((None, segment), None)
                self._merging.pop(segment, None)
                self._without.pop(segment, None)
        self._look_again()  # those that are lost tell nothing any more
        for lane in self._lanes.values():
            lane.results.extend(segment for segment in self._owned if segment not in self.result.lacking)
        return [] if self.lacks_own else self.begin()

    def take_own(self, own: PartialSum) -> list[Send]:
        """Take back the own delta after the result had taken its place: they lie apart from here on."""
        has_waited, self.lacks_own = self.lacks_own, False
        self._own, self.is_in_place = own, False
        for segment, merged in self._merging.items():
            if merged.contributors == {self._me}:
                self._merging[segment] = replace(merged, values=own.values[self._cut.bounds(segment)])
        return self.begin() if has_waited else []

    def part_ways(self) -> None:
        """Copy what is changed in place: this object is a copy of another one (`sim/mesh/search.py`)."""
        if not self.is_whole:
            self.result.leave()
        for segment, merged in self._merging.items():
            if self.is_in_place or merged.contributors != {self._me}:
                self._merging[segment] = replace(merged, values=self.result.part(segment))

    def hear_ready(self, sender: Contributor, message: SegmentsReady, now: float) -> list[Send]:
        """Begin to send to this peer. Tell it again, once, that this device is ready: it may have begun later."""
        lane = self._lanes.get(sender)
        if lane is None:
            return []
        if message.checksums and len(message.checksums) != self._cut.segments:
            raise RemoteProtocolError(f"{len(message.checksums)} checksums of {self._cut.segments} segments")
        if sender in self._contributors and not message.checksums:
            raise RemoteProtocolError(f"{sender.peer_id} does not tell the checksums of its delta")
        if sender not in self._told:
            self._told[sender] = message.checksums
            self._look_again()
        if self.lacks_own:
            return []
        is_known = (lane.is_heard or lane.is_ready) and not message.asks
        again = [] if is_known else [Send(sender.peer_id, self._ready(sender))]
        if message.has or not lane.is_ready:  # its values may have come before its word that it is ready
            lane.begin(message.has)
        return again + self._fill(lane, now)

    def take_piece(
        self, sender: Contributor, message: PieceMessage, values: Vector, now: float, checksum: int | None = None
    ) -> list[Send]:
        """Merge a contributor's piece (as owner). Raises RemoteProtocolError for one that is not as it should be.

        checksum: of its values; None: it is not checked.
        """
        lane, segment = self._lanes.get(sender), message.segment
        if self.lacks_own:
            return []
        if lane is None or sender not in self._contributors or segment not in self._is_owned:
            raise RemoteProtocolError(f"a piece of segment {segment}, which is not this device's to merge")
        lane.is_heard = lane.is_ready = True
        taken = self._taken(sender, segment, is_result=False)
        mine = self._merging.get(segment)
        if self._has_piece(sender, segment):
            return [taken]  # it was confirmed before, and that was lost
        self._check_theta(sender, message.theta)
        self._check_sum(message, sender, checksum)
        sums, part = self._read(values, segment), self.result.part(segment)
        if not self._admits(sender, segment, sums, message.theta):
            return []
        check_sums(sums, message.theta, self.order.room)
        theirs = PartialSum(sums, message.theta, frozenset([sender]), self.order.room)
        if mine is None:
            part[:] = sums
            self._merging[segment] = replace(theirs, values=part)
        else:
            self._merging[segment] = pair_aggregate(mine, theirs, part)
        self._finish(segment)
        if segment in self.result.lacking:
            return [taken, *self._fill(lane, now)]
        return [taken, *self._fill_all(now)]

    def take_result(
        self, sender: Contributor, message: SegmentMessage, values: Vector, now: float, checksum: int | None = None
    ) -> list[Send]:
        """Take a segment's result from its owner, which has this device's piece then. checksum: as in `take_piece`.

        Raises RemoteProtocolError for one that is not as it should be.
        """
        lane, segment = self._lanes.get(sender), message.segment
        self._cut.bounds(segment)  # raises if there is none of this number
        if lane is None or self._cut.owner(segment) != self._place_of[sender]:
            raise RemoteProtocolError(f"segment {segment} from {sender.peer_id}, which does not own it")
        lane.is_heard = lane.is_ready = True
        if any(number >= len(self.order.lost) for number in message.without):
            raise RemoteProtocolError(f"segment {segment} without a device that nobody has lost")
        if self.lacks_own:
            return []
        if segment in self.result.lacking:
            self._check_sum(message, sender, checksum)
        has_piece = self._confirm(lane, (False, segment), now)
        if segment in self.result.lacking:
            theta = self._theta_without(message.without)
            sums = self._read(values, segment)
            check_sums(sums, theta, self.order.room)
            self.result.part(segment)[:] = sums
            self.result.lacking.discard(segment)
            if message.without:
                self._without[segment] = message.without
        taken = self._taken(sender, segment, is_result=True)
        return [taken, *self._fill(lane, now)] if has_piece else [taken]

    def hear_taken(self, sender: Contributor, message: SegmentTaken, now: float) -> list[Send]:
        """Note that a parcel has arrived: the next ones may go."""
        lane, parcel = self._lanes.get(sender), (message.is_result, message.segment)
        if lane is None or self.lacks_own or not self._confirm(lane, parcel, now):
            return []
        return self._fill(lane, now)

    def on_time(self, now: float) -> list[Send]:
        """Say again what may have been lost; its room on a crowded link is for the others."""
        sends: list[Send] = []
        lacking = self._lacks_checksums()
        for lane in () if self.lacks_own else self._lanes.values():
            if lane.peer in lacking or (not lane.is_heard and self._needs(lane.peer)):
                sends.append(Send(lane.peer.peer_id, self._ready(lane.peer, lane.peer in lacking)))
            sends += [self._parcel(lane, parcel) for parcel in lane.take_late(self._retry_s, now)]
        return sends if self.lacks_own else sends + self._fill_all(now)

    def _check_sum(self, message: PieceMessage | SegmentMessage, giver: Contributor, checksum: int | None) -> None:
        """Raise RemoteProtocolError for an altered sum; or note that it is to be checked."""
        if checksum is None:
            return
        is_altered = self._is_altered(message, giver, checksum)
        if is_altered:
            raise RemoteProtocolError(self._accuse_of_altering(giver))
        if is_altered is None:
            key = giver if isinstance(message, PieceMessage) else None
            self._unchecked[key, message.segment] = giver, message, checksum

    def _is_altered(self, message: PieceMessage | SegmentMessage, giver: Contributor, checksum: int) -> bool | None:
        """Return True if these values are not the sum that they should be, by their checksum.

        None: that is not known before other contributors tell their checksums.
        """
        summed = frozenset((giver,))
        lost: tuple[Contributor, ...] = ()
        if isinstance(message, SegmentMessage):
            summed = self._contributors
            lost = tuple(each.contributor for n, each in enumerate(self.order.lost) if n not in message.without)
        if any(peer not in self._told for peer in lost):
            return False
        if not self._told.keys() >= summed:
            return None
        told, start = [self._told[peer] for peer in (*summed, *lost)], self._cut.bounds(message.segment).start
        return (message.start, checksum) != (start, add_up(each[message.segment] for each in told))

    def _accuse_of_altering(self, giver: Contributor) -> str:
        """Accuse the giver; return the reason."""
        problem = f"{ALTERED}its part of round {self.order.round_id}'s exchange"
        if self._guard:
            self._guard.accuse([giver], problem)
        return problem

    def refuse(self) -> None:
        """Refuse the result, which has another checksum than the sum of all; accuse its owner if there is one."""
        self._is_refused = True
        owners = [peer for peer, owned in self._owned_by.items() if owned]
        if len(owners) == 1:
            self._accuse_of_altering(owners[0])

    def _look_again(self) -> None:
        """Check what has come before the checksums of all its contributors were known."""
        for parcel, (giver, message, checksum) in list(self._unchecked.items()):
            is_altered = self._is_altered(message, giver, checksum)
            if is_altered is None:
                continue
            del self._unchecked[parcel]
            if is_altered:
                self._accuse_of_altering(giver)
                if isinstance(message, SegmentMessage):
                    self.result.lacking.add(message.segment)

    def _check_theta(self, sender: Contributor, theta: float) -> None:
        """Raise RemoteProtocolError for another theta than the sender has told the agent; accuse the sender."""
        told = self._thetas.get(sender, theta)
        if theta > 0 and abs(theta - told) <= THETA_ROUNDING * told:
            return
        problem = f"a piece of {sender.peer_id} has theta {theta:g}, where it had told {told:g}"
        if self._guard:
            self._guard.accuse([sender], problem)
        raise RemoteProtocolError(problem)

    def _follow(self, order: BroadcastOrdered, size: int) -> None:
        """Set up by this order: the owners of the segments, and what this device has to give to each peer."""
        table, guard, own = places_of(order), self._guard, self._own
        self._place_of = {peer: place for place, (peer, _) in enumerate(table)}
        lost, self.order = tuple(each.place for each in order.lost), order
        self._ballot = order.round_id, order.term, order.version
        self._cut = SegmentCut(size, order.segment_values, tuple(owns for _, owns in table), lost)
        self._contributors = frozenset(order.contributors)
        coding = coding_in(order.room)
        self._is_packed = coding != "none"
        self._part_of_piece = part_of_bytes(coding)
        self._part_of_result = part_of_bytes(coding, len(self._contributors))
        self._most_bytes = self._bytes((True, 0))
        is_told = len(order.thetas) == len(order.contributors)
        self._thetas = dict(zip(order.contributors, order.thetas, strict=True)) if is_told else {}
        self._owned = self._cut.owned(self._place_of[self._me])
        self._is_owned = frozenset(self._owned)
        self._judge = None
        if guard and guard.judges and own and self._grid:
            owned = [*map(self._cut.bounds, self._owned)]
            self._judge = guard.judge_pieces(self._grid.to_mean(own.values, own.theta), owned, order.limits)
        place, count = order.order.index(self._me), len(order.order)
        others = [(place + step) % count for step in range(1, count)]
        self._owned_by = {peer: self._cut.owned(self._place_of[peer]) for peer in order.order}
        links = order.link_mb_s if len(order.link_mb_s) == count else (0.0,) * count
        self._lanes = {order.order[other]: self._lane(other, links[place], links[other]) for other in others}
        self.uplink.open(links[place], self._lanes.values(), self._most_bytes)

    def _lane(self, other: int, own_mb_s: float, mb_s: float) -> Lane:
        peer, is_leaf = self.order.order[other], not self.order.owns[other]
        # Two segments, so that one is on its way while one is confirmed.
        most = max(self._most_under_way, 2 * self._most_bytes)
        pieces = deque(self._owned_by[peer] if self._own is not None else ())
        return Lane(peer, window_of(min(own_mb_s, mb_s), is_leaf, most), is_leaf, 0 < own_mb_s <= mb_s, pieces)

    def _merge_own(self, segment: int) -> None:
        """Begin an owned segment with the own piece: not copied, but merged with the next one where it lies."""
        if self._own is not None and segment not in self._merging:
            own = self._own
            self._merging[segment] = PartialSum(self._piece(segment), own.theta, own.contributors, own.room)
        if segment in self._merging:
            self._finish(segment)

    def _needs(self, peer: Contributor) -> bool:
        """Return True if this device still lacks something that the peer has to give."""
        if any(segment in self.result.lacking for segment in self._owned_by[peer]):
            return True
        return self._lacks_piece_of(peer)

    def _lacks_piece_of(self, peer: Contributor) -> bool:
        """Return True if a segment that this device owns still needs a piece of the peer's."""
        return peer in self._contributors and any(not self._has_piece(peer, segment) for segment in self._owned)

    def _has_piece(self, peer: Contributor, segment: int) -> bool:
        """Return True if a segment that this device owns needs nothing of the peer's any more."""
        merged = self._merging.get(segment)
        return segment not in self.result.lacking or (merged is not None and peer in merged.contributors)

    def _read(self, values: Vector, segment: int) -> Sums:
        """Return a segment's sums. Raises RemoteProtocolError for another number of values."""
        bounds = self._cut.bounds(segment)
        check_size(values, bounds.stop - bounds.start)
        return values.view(np.int32)

    def _admits(self, sender: Contributor, segment: int, sums: Sums, theta: float) -> bool:
        """Return True if this piece may be merged, or none are judged."""
        if self._guard is None or self._judge is None or self._grid is None:
            return True
        bounds = self._cut.bounds(segment)
        return self._guard.admits(self._judge, sender, bounds, self._grid.to_mean(sums, theta, bounds.start))

    def _theta_without(self, without: tuple[int, ...]) -> float:
        """Return the weight behind a segment's result that lacks these of the lost devices, by their numbers."""
        return self.order.theta + sum(each.theta for n, each in enumerate(self.order.lost) if n not in without)

    def _finish(self, segment: int) -> None:
        """Give a segment to everybody once all contributors are in it. Raises RemoteProtocolError for a wrong theta."""
        merged, lost = self._merging[segment], self.order.lost
        if not self._contributors <= merged.contributors:
            return
        without = tuple(n for n, each in enumerate(lost) if each.contributor not in merged.contributors)
        theta = self._theta_without(without)
        if abs(merged.theta - theta) > THETA_ROUNDING * theta:
            raise RemoteProtocolError(f"segment {segment} has theta {merged.theta}, not {theta}")
        del self._merging[segment]
        exact = self.result.part(segment)
        if merged.contributors == {self._me}:
            exact[:] = merged.values  # nobody else's piece came: it still lies there
        if without:
            self._without[segment] = without
        self.result.lacking.discard(segment)
        for lane in self._lanes.values():
            lane.results.append(segment)

    def _fill_all(self, now: float) -> list[Send]:
        """Start parcels to all, first to devices that own nothing: they wait for results alone.

        On a crowded link, lanes with the least under way come next.
        """
        lanes = sorted(self._lanes.values(), key=lambda lane: (not lane.is_leaf, self.uplink.rank(lane)))
        return [send for lane in lanes for send in self._starting(lane, now)]

    def _fill(self, lane: Lane, now: float) -> list[Send]:
        """Start parcels of this lane; on a crowded link of the others, too: the room that this one leaves is theirs."""
        return self._fill_all(now) if self.uplink.is_crowded else list(self._starting(lane, now))

    def _starting(self, lane: Lane, now: float) -> Iterator[Send]:
        """Start as many parcels as the window has room for; there is always room for one segment."""
        while lane.is_ready and self.uplink.has_room(lane, self._most_bytes):
            parcel = lane.next()
            if parcel is None:
                return
            lane.under_way[parcel] = now
            lane.bytes_under_way += self._bytes(parcel)
            yield self._parcel(lane, parcel)

    def _parcel(self, lane: Lane, parcel: Parcel) -> Send:
        is_result, segment = parcel
        peer_id = lane.peer.peer_id
        if is_result:
            without = self._without.get(segment, ())
            result = SegmentMessage(*self._ballot, segment, without, self._cut.bounds(segment).start, self._is_packed)
            return Send(peer_id, result, self.result.part(segment).view(np.float32))
        assert self._own is not None
        start = self._cut.bounds(segment).start
        piece = PieceMessage(*self._ballot, segment, self._own.theta, start, self._is_packed)
        return Send(peer_id, piece, self._piece(segment).view(np.float32))

    def _piece(self, segment: int) -> Sums:
        """Return a piece of the own delta: it lies where the result will be, if that takes its place."""
        assert self._own is not None
        return self.result.part(segment) if self.is_in_place else self._own.values[self._cut.bounds(segment)]

    def _confirm(self, lane: Lane, parcel: Parcel, now: float) -> bool:
        """Note that a parcel has arrived; return False if that is known."""
        size_bytes = self._bytes(parcel)
        if is_news := lane.confirm(parcel, size_bytes, now):
            self.uplink.note(size_bytes, now)
        return is_news

    def _lacks_checksums(self) -> list[Contributor]:
        """Return the contributors that must tell their checksums before the result can be named.

        Two devices that own nothing need not reach each other, and tell each other none.
        """
        if not any(peer is None for peer, _ in self._unchecked):
            return []
        untold = (peer for peer in self.order.contributors if peer not in self._told)
        return [peer for peer in untold if self._owned or self._owned_by[peer]]

    def _ready(self, peer: Contributor, asks: bool = False) -> SegmentsReady:
        has = b""
        if self._goes_on:  # else it has nothing yet
            here = [segment for segment in self._owned_by[peer] if segment not in self.result.lacking]
            merged = [segment for segment in self._owned if self._has_piece(peer, segment)]
            has = to_bits(here + merged, self._cut.segments)
        return SegmentsReady(*self._ballot, has, self._checksums, asks)

    def _taken(self, sender: Contributor, segment: int, is_result: bool) -> Send:
        return Send(sender.peer_id, SegmentTaken(*self._ballot, segment, is_result))

    def _bytes(self, parcel: Parcel) -> int:
        """Return the bytes that a parcel takes on its way, about so many if it is packed."""
        is_result, segment = parcel
        bounds, part = self._cut.bounds(segment), self._part_of_result if is_result else self._part_of_piece
        return max(4, int(4 * part * (bounds.stop - bounds.start)))
