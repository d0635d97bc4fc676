"""A device that stands elsewhere than the mesh, and goes there: by a word that it missed, or with another's model."""

from __future__ import annotations

from enum import Enum
from math import inf

from mdl.bounds import ROUND_LEAP
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.membership.majority import has_in_common
from mdl.peers.roles.trainer.model_state import Standing, base_of
from mdl.peers.roles.trainer.round_state import Part
from mdl.protocol.delta import Contributor, check_size
from mdl.protocol.grid import Vector
from mdl.protocol.round_messages import CatchUp, ModelMessage

# A model on its way is fetched to its end, although the mesh has a later one by then, as long as some of it has come in
# so many seconds: where rounds are shorter than this device's transfers, it would never have a whole one.
_MOVING_S = 5.0


class Way(Enum):
    """The ways by which a device comes to where the mesh stands.

    stay: it is there, further, or under way. rename: it has the very same model, on another lineage. apply: it has
    staged the result, and missed only the word. fetch: it needs the model.
    """

    STAY = "stay"
    RENAME = "rename"
    APPLY = "apply"
    FETCH = "fetch"


class CatchingUp:
    """See the module. target: the place and source of the model it fetches. missed: its part in the round it missed."""

    def __init__(self, standing: Standing) -> None:
        self.target: CatchUp | None = None
        self.missed: Part | None = None
        self._standing = standing
        self._moved_at = -inf

    def note_moving(self, sender: Contributor, now: float) -> None:
        """Note that some of the model has come."""
        if self.target and sender == self.target.source:
            self._moved_at = now

    def find_way(self, target: CatchUp, part: Part | None, now: float) -> Way:
        """Return the way to the target. Raises RemoteProtocolError for a target that no mesh can have come to."""
        standing = self._standing
        same_lineage = target.lineage == standing.lineage
        same_model = (target.round_id, target.digest) == (standing.round_id, standing.digest)
        late = same_lineage and (same_model or target.round_id < standing.round_id)
        if target.round_id > standing.round_id + ROUND_LEAP:
            raise RemoteProtocolError(f"round {target.round_id}, where this device stands at {standing.round_id}")
        if late or self.target == target:
            return Way.STAY
        if self.target and target.lineage == self.target.lineage and now - self._moved_at < _MOVING_S:
            return Way.STAY
        if same_model and has_in_common(standing.lineage, target.lineage, target.round_id):
            return Way.RENAME
        staged = part.spread.staged if part and part.round_id == target.round_id else None
        # If no device's model changes, results of other contributors have the same digest.
        if same_lineage and staged and base_of(staged) == target.base:
            return Way.APPLY  # if that gives the model that it should: see Progress.apply
        return Way.FETCH

    def go(self, target: CatchUp, part: Part | None) -> None:
        """Fetch the model; the open round goes on without this device."""
        self.target, self.missed, self._moved_at = target, part or self.missed, -inf

    def is_arrived(self, message: ModelMessage, values: Vector, digest: bytes) -> bool:
        """Return True if this is the wanted model. Raises RemoteProtocolError if values and message disagree."""
        wanted = self.target
        if wanted is None or (wanted.round_id, wanted.digest) != (message.round_id, message.digest):
            return False
        if message.history.lineage != wanted.lineage:
            return False
        check_size(values, self._standing.state.size)
        if digest != message.digest:
            raise RemoteProtocolError("parameters that do not match their digest")
        return True

    def end(self) -> Part | None:
        """End catching up: the model is there, or the device is in a round after all. Return the part it missed."""
        missed, self.target, self.missed, self._moved_at = self.missed, None, None, -inf
        return missed
