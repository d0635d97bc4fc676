"""Suspicion in a mesh and quarantine of the suspected, from its devices' reports on each other. Pure.

A refused delta accuses its device. A refused mean of several devices only makes them doubted: the next delta of each is
judged alone. Suspicion fades: it halves in HALF_LIFE rounds. Half of a mesh must suspect a device before it is left out
of rounds. So a minority cannot exclude a device, and a device with data of its own, which some others refuse, stays. A
device that is left out has no say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp2

import msgspec

from mdl.bounds import PeerId, Round, Share, Text

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
