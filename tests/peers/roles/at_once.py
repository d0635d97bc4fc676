"""A trainer whose work on whole vectors takes no time, for tests of what comes before and after that work."""

from __future__ import annotations

import msgspec

from mdl.peers.roles.trainer.model_state import Standing
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.protocol.delta import ModelDelta, digest_of
from mdl.protocol.machine import Effect, Event, Received
from mdl.protocol.messages import DIGESTED
from mdl.protocol.vector_work import VECTOR_WORK, ApplyDelta, Outer, apply_result


class TrainerAtOnce(Trainer):
    """Digests and parameters are there in the very step that asks for them; so are those of values that come in."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.message, DIGESTED) and event.values is not None:
            event = msgspec.structs.replace(event, digest=event.digest or digest_of(event.values))
        effects, events = [], [event]
        for each in events:
            for effect in super().handle(each, now):
                if work := VECTOR_WORK.get(type(effect)):
                    events.append(work(effect))
                else:
                    effects.append(effect)
        return effects


def apply_at_once(standing: Standing, result: ModelDelta, eta: float = 1.0) -> None:
    applied = apply_result(ApplyDelta(standing.round_id + 1, standing.state, result.values, Outer(eta)))
    standing.apply(result, applied.state, applied.digest)
