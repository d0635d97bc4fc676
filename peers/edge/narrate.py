"""The lines that a trainer logs for its user, one for each step of a round. Looks at a node, changes nothing.

Messages that a leading node sends to itself never reach the driver: such steps are read from its effects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mdl.defence.judge import Verdict
from mdl.protocol.counts import show_score
from mdl.protocol.machine import (
    Effect,
    Evaluated,
    Event,
    LocalDeltaReady,
    PeerFound,
    Received,
    ResourcesSampled,
    SaveModel,
    Send,
    TrainLocally,
    TransferProgressed,
)
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    DeltaMessage,
    MemberQuarantined,
    ModelWanted,
    RoundOpened,
    SegmentMessage,
)
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vector_work import DeltasMerged
from mdl.protocol.vocabulary import Role

logger = logging.getLogger("mdl")

# Marks lines about a step within a round: `peers/loops.py` leaves them out where a line a round is enough.
_STEP = {"is_step": True}
PEER_COMMAND = "mdl peer --mesh NAME (mdl mesh show NAME shows the code); if it runs already, mdl peer --join HOST:PORT"
# If no peer is found by then, tell the user what is missing.
PATIENCE_S = 4.0
# A longer transfer is worth a line; progress is reported about once a second, from the first second on.
_SLOW_S = 5.0
_FIRST_PROGRESS_S = 1.0
# A user begins to wonder about a pause of this length.
_HELD_UP_S = 3.0
# A transfer that has not moved for so long is over; later bytes belong to another one (transport/wire/bulk.py).
_OVER_S = 10.0


@dataclass
class _Progress:
    """One transfer to this device. since, from_bytes: at its first sign. said: it was reported to the user."""

    since: float
    from_bytes: int
    size_bytes: int
    received_bytes: int
    moved_at: float
    said: bool = False


@dataclass
class _Segments:
    """A round in segments. wanted: how many segments others send; here: those received. since: time of the order."""

    order: BroadcastOrdered
    wanted: int
    since: float
    here: set[int] = field(default_factory=set)
    said: bool = False


class Narrator:
    """Logs the steps of a trainer: `look` observes its runtime. how_to_start: what to do on another device, in words.

    me: the device's peer id. stays_for: returns True if the device will be there for a round; it trains for no other.
    """

    def __init__(
        self,
        mesh_name: str,
        how_to_start: str = PEER_COMMAND,
        me: str = "",
        stays_for: Callable[[int], bool] = lambda round_id: True,
    ) -> None:
        self._mesh_name, self._how_to_start, self._me, self._stays_for = mesh_name, how_to_start, me, stays_for
        self._segments: _Segments | None = None
        self._started: float | None = None
        self._is_alone = True
        self._opened: RoundOpened | None = None
        self._held_up_by = ""
        self._held_up_since: float | None = None
        self._fetched: tuple[str, int] | None = None
        self._transfers: dict[str, _Progress] = {}

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        self._started = now if self._started is None else self._started
        match event:
            case PeerFound(info=info):
                self._is_alone &= info.role is Role.OBSERVER
                logger.info("found %s (%s) at %s:%d", info.peer_id, info.role.value, info.host, info.port)
            case ResourcesSampled() if self._is_alone and now - self._started >= PATIENCE_S:
                self._is_alone = False  # logged once
                logger.info("%s", describe_loneliness(self._mesh_name, self._how_to_start))
            case LocalDeltaReady(round_id=round_id, training=training):
                took = f"{training.samples} windows in {training.seconds:.1f} s"
                logger.info("round %d: trained on %s, loss %.3f", round_id, took, training.loss, extra=_STEP)
            case Received(sender=sender, message=DeltaMessage(round_id=round_id, theta=theta)):
                logger.info(
                    "round %d: received %s's partial sum, theta %g", round_id, sender.peer_id, theta, extra=_STEP
                )
            case Received(message=RoundOpened() as opened):
                self._opened = opened
            case DeltasMerged(round_id=round_id, verdict=Verdict(reason=reason)) if reason:
                logger.warning("round %d: a partial sum is suspect: %s", round_id, reason)
            case Received(message=MemberQuarantined(round_id=round_id, reason=reason)):
                logger.warning("round %d goes without this device's work: %s", round_id, reason)
            case Received(message=BroadcastOrdered() as order):
                self._begin_segments(order, now)
            case Received(message=SegmentMessage() as message):
                self._count(message, now)
            case TransferProgressed():
                self._follow(now, event)
            case Evaluated(round_id=round_id, evaluation=evaluation) if evaluation.n:
                score = evaluation.score
                told = "tested" if score is None else show_score(evaluation.targets, score)
                logger.info("round %d: %s on this device's %d test windows", round_id, told, evaluation.n)
        if isinstance(event, Received) and event.values is not None:
            self._transfers.pop(event.sender.peer_id, None)
        for effect in effects:
            self._tell(effect, now)

    def hear_waiting(self, now: float, held_up_by: str) -> None:
        """Log once what holds the mesh up, if it lasts; a pause should not look like a hang."""
        if held_up_by != self._held_up_by:
            self._held_up_by, self._held_up_since = held_up_by, now
        elif held_up_by and self._held_up_since is not None and now - self._held_up_since >= _HELD_UP_S:
            self._held_up_since = None
            logger.info("waiting for %s", held_up_by)

    def _tell(self, effect: Effect, now: float) -> None:
        match effect:
            case Send(message=RoundOpened() as opened):
                self._opened = opened  # this device leads
            case Send(message=BroadcastOrdered() as order):
                self._begin_segments(order, now)
            case TrainLocally(round_id=round_id) if self._stays_for(round_id):
                count = len(self._opened.members) if self._opened and self._opened.round_id == round_id else 0
                others = f" with {count} peer{'' if count == 1 else 's'}" if count else ""
                logger.info("round %d: training%s", round_id, others, extra=_STEP)
            case Send(receiver=source, message=ModelWanted(round_id=round_id)):
                if self._fetched != (source, round_id):  # a timer asks again
                    logger.info("fetching the model of round %d from %s", round_id, source)
                self._fetched = source, round_id
            case SaveModel(round_id=round_id):
                logger.info("round %d: the mesh's model is here", round_id, extra=_STEP)

    def _begin_segments(self, order: BroadcastOrdered, now: float) -> None:
        """Log once for each order with owners what becomes of this device's delta."""
        known = self._segments
        place = next((place for place, peer in enumerate(order.order) if peer.peer_id == self._me), None)
        if not order.owns or place is None or place >= len(order.owns):
            return
        if known and (known.order.term, known.order.version) == (order.term, order.version):
            return
        segments, own = sum(order.owns), order.owns[place]
        self._segments = _Segments(order, segments - own, now)
        merged = f"{own} of them merged here" if own else "none of them merged here"
        logger.info("round %d: the deltas travel in %d segments, %s", order.round_id, segments, merged, extra=_STEP)

    def _count(self, message: SegmentMessage, now: float) -> None:
        """Log the progress of a slow exchange of segments, once."""
        known = self._segments
        if known is None or (message.term, message.version) != (known.order.term, known.order.version):
            return
        known.here.add(message.segment)
        took_s, here = now - known.since, len(known.here)
        if known.said or took_s <= _SLOW_S or here >= known.wanted:
            return
        known.said = True
        told = (message.round_id, here, known.wanted, took_s)
        logger.info("round %d: %d of %d segments of others are here after %.0f s (a slow network?)", *told)

    def _follow(self, now: float, event: TransferProgressed) -> None:
        """Log the progress of each slow transfer, once: a slow network should not look like a hang."""
        sender, received = event.sender.peer_id, event.received_bytes
        known = self._transfers.get(sender)
        is_same = known and known.size_bytes == event.size_bytes and received >= known.received_bytes
        if known is None or not is_same or now - known.moved_at >= _OVER_S:
            self._transfers[sender] = _Progress(now, received, event.size_bytes, received, now)
            return
        known.received_bytes, known.moved_at = received, now
        took_s = now - known.since + _FIRST_PROGRESS_S
        if known.said or took_s <= _SLOW_S:
            return
        known.said = True
        rate_mb_s = (received - known.from_bytes) / (now - known.since) / 1e6
        logger.info(
            "receiving from %s: %.1f of %.1f MB after %.0f s, %.2f MB/s (a slow network?)",
            *(sender, received / 1e6, event.size_bytes / 1e6, took_s, rate_mb_s),
        )


def describe_loneliness(mesh_name: str, how_to_start: str) -> str:
    return f"nobody else of mesh {mesh_name!r} is found yet; on the other device: {how_to_start}"


def describe_round(summary: RoundSummary) -> str:
    """Return the line that describes a round of the mesh."""
    parts = [f"round {summary.round}", f"{len(summary.contributors)} contributors", f"{summary.total_s:.2f} s"]
    if summary.loss is not None:
        parts.append(f"loss {summary.loss:.3f}")
    if summary.score is not None:
        parts.append(show_score(summary.targets, summary.score))
    if summary.lost:
        parts.append(f"without {', '.join(summary.tell_lost())}")
    parts += [
        *summary.notices,
        *(f"{who} in quarantine ({why})" for who, why in summary.quarantined.items()),
    ]
    return ", ".join(parts)
