"""The promises of this device (docs/protocol-disk.md, rule 5), and whether its disk knows them yet."""

from __future__ import annotations

from mdl.peers.roles.membership.succession import Succession
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.protocol.machine import Effect, Event, SaveBallot, Send, WorkFailed
from mdl.protocol.vocabulary import Ballot


class Promises:
    """See the module. saved: the ballot that is on the disk."""

    def __init__(self, saved: Ballot) -> None:
        self._saved = saved
        self._saved_reached = {entry.fork: entry.round_id for entry in saved.reached}
        self._is_refused = False

    def save_first(self, event: Event, effects: list[Effect], trainer: Trainer, succession: Succession) -> list[Effect]:
        """Return the effects with the ballot that their messages tell of first; no message once a disk refused one.

        The device leaves then; if it has a round to apply, after that.
        """
        if type(event) is WorkFailed and event.effect == SaveBallot.__name__:
            self._is_refused = True
        if self._is_refused:
            return [effect for effect in effects if type(effect) is not Send]
        ballot = self._unsaved(trainer, succession)
        return [SaveBallot(ballot), *effects] if ballot else effects

    def _unsaved(self, trainer: Trainer, succession: Succession) -> Ballot | None:
        """Return the ballot, if the disk does not know it yet; it counts as saved from here on."""
        saved, standing, term = self._saved, trainer.standing, succession.term
        agent = "" if trainer.staged_term == term else succession.spoken_by
        said = term, agent, standing.starts, standing.begun, standing.accepted
        before = saved.term, saved.agent, saved.starts, saved.begun, saved.accepted
        if said == before and standing.reached == self._saved_reached:
            return None
        self._saved, self._saved_reached = standing.ballot(term, agent), dict(standing.reached)
        return self._saved
