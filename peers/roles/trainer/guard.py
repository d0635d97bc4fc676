"""What a device learns of the others' deltas, and whom it suspects (MDLdroid 5: a poisoning check at each device).

The measuring is work on vectors (`mdl/protocol/vector_work.py`), the limits are `mdl/defence/judge.py`; here is what is
remembered from one round to the next. It decides nothing about a round: a refused delta is a hop that is aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from math import log

import msgspec
import numpy as np

from mdl.bounds import MAX_LOSS, printable, within
from mdl.defence.judge import ALONE
from mdl.defence.limits import Limits, Seen
from mdl.defence.marks import Marks, draw_places, length, look_at
from mdl.defence.pieces import PieceJudge
from mdl.defence.reputation import Accusation, Suspects
from mdl.peers.roles.trainer.model_state import Standing
from mdl.peers.roles.trainer.voice import Voice
from mdl.protocol.delta import Contributor, ModelDelta, Vector
from mdl.protocol.vector_work import Check, DeltasMerged

logger = logging.getLogger(__name__)


class Defence(msgspec.Struct, frozen=True):
    """is_on: partial means are judged. tests: with windows of this device, too. seed: of where angles are measured.

    clips: as in `Check`.
    """

    is_on: bool = False
    tests: bool = False
    seed: int = 0
    clips: bool = True


class Guard:
    """See the module. suspects: of this device. told: why it is left out of rounds itself, "" if it is not."""

    def __init__(self, settings: Defence, standing: Standing, voice: Voice) -> None:
        self.suspects = Suspects()
        self.told = ""
        self._settings = settings
        self._standing = standing
        self._voice = voice
        self._places = draw_places(standing.parameters.size, np.random.default_rng(settings.seed))
        self._last: Vector | None = None
        self._own_norm: tuple[int, float] = (0, 0.0)  # round, and the length of the own delta in it

    @property
    def judges(self) -> bool:
        """Whether it looks at what comes, for which it needs the own delta."""
        return self._settings.is_on

    def check(
        self, contributors: frozenset[Contributor], is_own: bool, limits: Limits, is_look: bool = False
    ) -> Check | None:
        """What a partial mean of these is judged by; None: it is not.

        is_own: this device holds its own delta alone. limits: as the agent tells them. is_look: with own windows, too.
        """
        standing, round_id = self._standing, self._standing.round_id + 1
        own_norm = self._own_norm[1] if self._own_norm[0] == round_id else None
        if not self._settings.is_on or (own_norm is None and not is_own):
            return None
        rounds = max(standing.rounds_since_counted(each.peer_id) for each in contributors)
        parameters = standing.parameters if is_look and self._settings.tests else None
        return Check(limits, rounds, own_norm, self._places, self._last, parameters, self._settings.clips)

    def note(self, contributors: frozenset[Contributor], done: DeltasMerged) -> None:
        """What came of it: suspicion follows its contributors."""
        if done.marks is None:
            return
        peer_ids = [each.peer_id for each in contributors]
        if done.marks.own_norm is not None:
            self._own_norm = done.round_id, done.marks.own_norm
        if done.verdict.is_refused:
            self.suspects.accuse(peer_ids, done.round_id, done.verdict.reason, done.verdict.blame)
        elif done.merged is not None and done.verdict.scale == 1.0 and len(peer_ids) == 1:
            self.suspects.clear(peer_ids, done.round_id)

    def accuse(self, peers: Iterable[Contributor], reason: str) -> None:
        """Hold against each of these what it did in this round, whether deltas are judged or not; reports tell."""
        for peer in peers:
            logger.warning("round %d: %s: %s", self._standing.round_id + 1, peer.peer_id, reason)
            self.suspects.accuse([peer.peer_id], self._standing.round_id + 1, reason)
            self._voice.has_changed = True

    def tell(self, contributors: frozenset[Contributor], marks: Marks | None) -> Seen | None:
        """What the agent hears of an own delta that came alone, refused or not."""
        if marks is None or len(contributors) != 1:
            return None
        rise = None if marks.rise is None else marks.rise / log(max(marks.classes, 2))
        return Seen(_bounded(rise), _bounded(marks.cosine_global))

    def judge_pieces(self, own: ModelDelta | None, owned: list[slice], limits: Limits) -> PieceJudge | None:
        """Of the devices whose pieces of these segments this one merges; None: they are not judged."""
        if not self._settings.is_on or own is None:
            return None
        norm = length(own.values)
        times = max(ALONE, limits.length / norm) if norm else ALONE  # a slice differs more than a whole delta
        return PieceJudge(own.values, owned, self._places, self._last, times)

    def admits(self, judge: PieceJudge | None, sender: Contributor, bounds: slice, values: Vector) -> bool:
        """Whether a device's piece may be merged; whose is not is suspected from here on, and the agent is told."""
        if judge is None:
            return True
        peer_id, standing = sender.peer_id, self._standing
        is_known = peer_id in judge.refused
        reason = judge.look(peer_id, standing.rounds_since_counted(peer_id), bounds, values)
        if reason and not is_known:
            self.suspects.accuse([peer_id], standing.round_id + 1, reason)
            self._voice.has_changed = True
        return not reason

    def note_global(self, values: Vector) -> None:
        """The result of the round that is about to be applied: the next one is compared with it."""
        if self._settings.is_on:
            self._last = look_at(values, self._places).copy()

    def accusations(self) -> tuple[Accusation, ...]:
        return tuple(
            Accusation(peer_id, within(each.weight, 0.0, 1.0), each.round_id, printable(each.reason))
            for peer_id, each in self.suspects.known.items()
        )


def _bounded(value: float | None) -> float | None:
    """What is no number is as bad as it gets."""
    return None if value is None else within(value, -MAX_LOSS, MAX_LOSS)
