"""What a trainer tells the person in front of it: a line for each step of a round. Looks at a node, changes nothing."""

from __future__ import annotations

import logging

from mdl.machine import (
    Effect,
    Evaluated,
    Event,
    LocalDeltaReady,
    PeerFound,
    Received,
    ResourcesSampled,
    SaveModel,
    TrainLocally,
)
from mdl.messages import CatchUp, DeltaMessage, Role, RoundOpened

logger = logging.getLogger("mdl")

# Without an agent by then, the user should hear what is missing.
_PATIENCE_S = 4.0


class Narrator:
    """`observe` of a runtime that drives a trainer."""

    def __init__(self, mesh_name: str) -> None:
        self._mesh_name = mesh_name
        self._started: float | None = None
        self._has_agent = False

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        self._started = now if self._started is None else self._started
        match event:
            case PeerFound(info=info):
                self._has_agent |= info.role is Role.AGENT
                logger.info("found %s (%s) at %s:%d", info.peer_id, info.role.value, info.host, info.port)
            case ResourcesSampled() if not self._has_agent and now - self._started >= _PATIENCE_S:
                self._has_agent = True  # said once
                logger.info(
                    "no agent of mesh %r answers yet; start one with `mdl agent` on any device", self._mesh_name
                )
            case LocalDeltaReady(round_id=round_id, training=training):
                took = f"{training.samples} windows in {training.seconds:.1f} s"
                logger.info("round %d: trained on %s, loss %.3f", round_id, took, training.loss)
            case Received(sender=sender, message=DeltaMessage(round_id=round_id, theta=theta)):
                logger.info("round %d: received %s's partial mean, theta %g", round_id, sender.peer_id, theta)
            case Received(message=CatchUp(round_id=round_id, source=source)):
                logger.info("fetching the model of round %d from %s", round_id, source.peer_id)
            case Received(message=RoundOpened(round_id=round_id, members=members)) if _starts(effects):
                logger.info("round %d: training with %d peers", round_id, len(members))
            case Evaluated(round_id=round_id, evaluation=evaluation) if evaluation.n:
                share = f"{evaluation.accuracy:.1%} on this device's {evaluation.n} test windows"
                logger.info("round %d: accuracy %s", round_id, share)
        for effect in effects:
            if isinstance(effect, SaveModel):
                logger.info("round %d: the mesh's model is here", effect.round_id)


def _starts(effects: list[Effect]) -> bool:
    return any(isinstance(effect, TrainLocally) for effect in effects)
