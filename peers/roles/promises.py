"""What this device has promised (docs/protocol.md, rule 5), and whether its disk knows it yet."""

from __future__ import annotations

from mdl.protocol.vocabulary import Ballot
from peers.roles.membership.succession import Succession
from peers.roles.trainer.trainer import Trainer


class Promises:
    """See the module. saved: the ballot that is on the disk."""

    def __init__(self, saved: Ballot) -> None:
        self._saved = saved
        self._saved_reached = {entry.fork: entry.round_id for entry in saved.reached}

    def unsaved(self, trainer: Trainer, succession: Succession) -> Ballot | None:
        """The ballot, if the disk does not know it yet; it counts as saved from here on."""
        saved, term, reached = self._saved, succession.term, trainer.standing.reached
        agent = "" if trainer.staged_term == term else succession.spoken_by
        if term == saved.term and agent == saved.agent and reached == self._saved_reached:
            return None
        self._saved, self._saved_reached = trainer.standing.ballot(term, agent), dict(reached)
        return self._saved
