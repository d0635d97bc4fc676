"""Limits that a mesh learns from the receivers' reports on its devices' own deltas, and deltas unlike all others. Pure.

One device judges few others, and cannot tell lies from other data by these; all devices together can. Less than a third
of them cannot move a limit far, and where devices have different data the limit is far away.

The effect of one delta on the losses of several devices tells lies from other data: a lie raises all of them, other
data raise some and lower others. So only devices count that agree with half of the others on the same deltas; if these
are no majority, data differ too much to tell.

Suspicion in a mesh and quarantine of the suspected, from its devices' reports on each other.

A refused delta accuses its device. A refused mean of several devices only makes them doubted: the next delta of each is
judged alone. Suspicion fades: it halves in HALF_LIFE rounds. Half of a mesh must suspect a device before it is left out
of rounds. So a minority cannot exclude a device, and a device with data of its own, which some others refuse, stays. A
device that is left out has no say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, exp2
from statistics import median

import msgspec

from mdl.bounds import MAX_LENGTH, MAX_LOSS, Length, Loss, PeerId, Round, Share, Text, within

# Rounds that count: each device comes alone in about every second one. Fewer than FEW devices give no limit.
RECENT, FEW = 2, 3
# Standard deviations from the median; and a cosine above the second number is never held against a device.
_DEVIATIONS, AGAINST = 4.0, -0.2
# A delta may be so many times as long as the longest of the shortest two thirds. On UCI HAR an honest one is 1.8
# times the median, also where classes differ much (docs/design-notes.md).
LONGER = 2.0
# 1.4826 median absolute deviations are a standard deviation of normal values.
NORMAL = 1.4826


class OwnDeltaSeen(msgspec.Struct, frozen=True):
    """A receiver's report on a device's own delta that came alone, merged or not.

    rise: how much it would raise the loss of the receiver's windows, as a share of that of guessing, ln(classes); None:
    not tested.
    angle: its cosine to the last global delta; None: not known.
    """

    rise: Loss | None = None
    angle: Loss | None = None


class Limits(msgspec.Struct, frozen=True):
    """The limits for a round's deltas.

    angle: the least cosine to the last global delta.
    length: the greatest; 0.0: not known.
    """

    angle: Loss = AGAINST
    length: Length = 0.0


@dataclass
class MeshKnowledge:
    """An agent's knowledge of its mesh. angles: peer id -> round, and the delta's cosine to the last result."""

    angles: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(self, round_id: int, seen: Mapping[str, OwnDeltaSeen]) -> set[str]:
        """Add the reports of a round; return the devices that stand out, now that all of them are known."""
        self.angles |= {who: (round_id, each.angle) for who, each in seen.items() if each.angle is not None}
        least = self.least_angle(round_id + 1)
        return {who for who, each in seen.items() if each.angle is not None and each.angle < least}

    def least_angle(self, round_id: int) -> float:
        """Return the least cosine allowed in this round, from the RECENT rounds before it."""
        self.angles = {who: each for who, each in self.angles.items() if each[0] >= round_id - RECENT}
        angles = [angle for _, angle in self.angles.values()]
        least = median(angles) - _DEVIATIONS * spread(angles) if len(angles) >= FEW else AGAINST
        return within(least, -MAX_LOSS, AGAINST)


def greatest_length(lengths: Collection[float]) -> float:
    """Return the greatest length allowed, from the devices' reports of their own deltas; 0.0: too few reports."""
    if len(lengths) < FEW:
        return 0.0
    return within(LONGER * sorted(lengths)[ceil(2 * len(lengths) / 3) - 1], 0.0, MAX_LENGTH)


def spread(values: Iterable[float]) -> float:
    """Return a standard deviation that less than half of the values cannot move: by median absolute deviation."""
    known = list(values)
    middle = median(known)
    return NORMAL * median(abs(value - middle) for value in known)


# Two devices agree if their reports on the same deltas differ by no more than this share of the deltas' usual effect on
# losses, or of the loss of guessing. Rises beyond the last number times that of guessing are not told apart.
_AGREE, _CLOSE, _WORST = 0.6, 0.03, 10.0
# Fewer devices may agree by chance, and tell little of how much honest deltas differ.
FEWEST = 5
# A delta stands out so many standard deviations above the median, and above it by this share of the loss of guessing.
_DEVIATIONS_ABOVE, _RISE = 4.0, 0.2


class Word(msgspec.Struct, frozen=True):
    """One device's report on another's delta: both peer ids, and rise as in `Seen`."""

    judge: str
    sender: str
    rise: float


def find_odd(words: Collection[Word]) -> dict[str, str] | None:
    """Return the devices that stand out, by peer id, with the reason; None if that cannot be told.

    The median of several reports on one device counts.
    """
    words = [msgspec.structs.replace(word, rise=within(word.rise, -_WORST, _WORST)) for word in words]
    trusted = find_agreeing(words)
    heard = [word for word in words if word.judge in trusted]
    usual = {sender: median(word.rise for word in heard if word.sender == sender) for sender in _senders(heard)}
    theirs = [rise for sender, rise in usual.items() if sender in trusted]
    if len(theirs) < FEWEST:
        return None
    limit = median(theirs) + max(_DEVIATIONS_ABOVE * spread(theirs), _RISE)
    return {
        sender: f"it raises the loss of others' windows by {rise:.0%} of guessing; the limit is {limit:.0%}"
        for sender, rise in usual.items()
        if rise > limit
    }


def find_agreeing(words: Collection[Word]) -> frozenset[str]:
    """Return the devices that agree with half of those that tested the same deltas; none if they are no majority."""
    size = median(abs(word.rise) for word in words) if words else 0.0
    differ: dict[tuple[str, str], list[float]] = {}
    for sender in _senders(words):
        for one, other in combinations([word for word in words if word.sender == sender], 2):
            for pair in ((one.judge, other.judge), (other.judge, one.judge)):
                differ.setdefault(pair, []).append(abs(one.rise - other.rise))
    agree: dict[str, list[bool]] = {}
    for (judge, _), gaps in differ.items():
        agree.setdefault(judge, []).append(median(gaps) <= max(_AGREE * size, _CLOSE))
    trusted = frozenset(judge for judge, answers in agree.items() if 2 * sum(answers) >= len(answers))
    return trusted if 2 * len(trusted) > len({word.judge for word in words}) else frozenset()


def _senders(words: Iterable[Word]) -> list[str]:
    return sorted({word.sender for word in words})


HALF_LIFE = 10
# A device suspects another from SUSPECTED on: after one refusal of its own work alone. An excluded device stays out
# down to STILL. Part in a refused mean makes it DOUBTED at most. Below FAINT a suspicion is forgotten.
SUSPECTED, STILL, DOUBTED, FAINT = 0.5, 0.25, 0.2, 0.05
# The beginning of the reason where what it gives is not the sum of the deltas in it, by their checksums.
ALTERED = "not the sum of its deltas: "
# Likewise where it gives a whole result of a round.
ALTERED_RESULT = f"{ALTERED}its result of round "
# Devices that one device suspects at a time; the least suspected are forgotten.
MOST_SUSPECTS = 64


class Suspicion(msgspec.Struct, frozen=True):
    """One device's suspicion of another: `weight` (0..1) in round `round_id`, for the last of these reasons."""

    weight: float
    round_id: int
    reason: str

    def now(self, round_id: int) -> float:
        return self.weight * exp2(min(0, self.round_id - round_id) / HALF_LIFE)


class Accusation(msgspec.Struct, frozen=True):
    """A device's accusation of another one after refusing its work, as it travels.

    peer_id: the other.
    weight: 1 for work of this device alone, less if others had a part in it or it was long ago.
    round_id: the round of the weight.
    reason: of the last refusal, in words.
    """

    peer_id: PeerId
    weight: Share
    round_id: Round
    reason: Text = ""


@dataclass
class Suspects:
    """The suspicions of one device. known: peer id -> what there is against it."""

    known: dict[str, Suspicion] = field(default_factory=dict)

    def accuse(self, peer_ids: Iterable[str], round_id: int, reason: str, blame: float = 1.0) -> None:
        """Record that the joint work of these is refused; among several the culprit is not known."""
        accused = list(peer_ids)
        for peer_id in accused:
            known = self._weight(peer_id, round_id)
            weight = known + blame if len(accused) == 1 else max(known, DOUBTED)
            self._put(peer_id, weight, round_id, reason)

    def clear(self, peer_ids: Iterable[str], round_id: int) -> None:
        """Halve the suspicion against these, since their work is as it should be."""
        for peer_id in peer_ids:
            if known := self.known.get(peer_id):
                self._put(peer_id, known.now(round_id) / 2, round_id, known.reason)

    def _weight(self, peer_id: str, round_id: int) -> float:
        known = self.known.get(peer_id)
        return known.now(round_id) if known else 0.0

    def _put(self, peer_id: str, weight: float, round_id: int, reason: str) -> None:
        self.known.pop(peer_id, None)
        if weight >= FAINT:
            self.known[peer_id] = Suspicion(min(weight, 1.0), round_id, reason)
        if len(self.known) > MOST_SUSPECTS:
            del self.known[min(self.known, key=lambda each: self.known[each].now(round_id))]


def accusers_needed(devices: int) -> int:
    """Return how many devices must refuse one's work in a round: more than a third of them, two at least."""
    return max(2, devices // 3 + 1)


def suspects_needed(devices: int) -> int:
    """Return how many devices must suspect one before it is left out of the rounds to come: half, two at least."""
    return max(2, (devices + 1) // 2)


@dataclass
class Quarantine:
    """The devices left out of the rounds of a mesh, as its agent sees it. out: peer id -> reason, in words."""

    out: dict[str, str] = field(default_factory=dict)

    def look(self, said: Mapping[str, Mapping[str, Suspicion]], round_id: int) -> dict[str, str]:
        """Return the devices left out from round_id on, with reasons. said: accuser -> accused -> suspicion.

        A device that is out is not judged, so that suspicion fades: it comes back after 2 HALF_LIFE rounds at the
        latest.
        """
        needed = suspects_needed(len(said))
        for peer_id in [peer for peer in self.out if len(accusers(peer, said, round_id, STILL)) < needed]:
            del self.out[peer_id]
        # The most accused first, among them the most accusing: a liar refuses everybody, and everybody refuses it.
        for peer_id in sorted(said, key=lambda peer: (-len(accusers(peer, said, round_id)), -len(said[peer]))):
            suspecting = [who for who in accusers(peer_id, said, round_id) if who not in self.out]
            if peer_id not in self.out and len(suspecting) >= needed:
                surest = max(suspecting, key=lambda who: said[who][peer_id].now(round_id))
                reason = said[surest][peer_id].reason
                self.out[peer_id] = f"{len(suspecting)} devices refused its work; {surest}: {reason}"
        return dict(self.out)


def accusers(
    peer_id: str, said: Mapping[str, Mapping[str, Suspicion]], round_id: int, least: float = SUSPECTED
) -> list[str]:
    """Return the other devices that suspect this one at least so much."""
    return [
        accuser
        for accuser, suspects in said.items()
        if accuser != peer_id and peer_id in suspects and suspects[peer_id].now(round_id) >= least
    ]
