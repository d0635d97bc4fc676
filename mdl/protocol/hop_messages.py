"""The messages about one hop (MDLdroid 3.2.2): the agent orders, cancels and frees; its receiver asks its sender."""

from __future__ import annotations

from mdl.bounds import Checksum, HopId, Round, Segment, Term, Theta
from mdl.defence.limits import Limits
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import AgentMessage
from mdl.protocol.vocabulary import Contributors, Message

# A decision's reason begins with this if the delta is held for poison: the agent has another device judge it, too.
SUSPECT = "refused: suspect: "
# A sum of at most so many bytes is sent once the agent has ordered it; a larger one once its receiver asks for it.
PUSHED_BYTES = 1 << 20
# A receiver's reason to give up a hop if its sender cannot be reached any more; the agent looks for another way.
NOTHING_CAME = "nothing came"


class HopOrdered(AgentMessage, frozen=True):
    """To the receiver of a hop: fetch the sender's partial sum and merge it; to its sender: give it.

    segment: of the model; 0 as long as a model is one.
    hop_id: unique in the mesh: a term's own numbers.
    sender: the process that is to be asked.
    limits: the limits that it is judged by, if it is.
    is_look: measure it and tell, and merge nothing of it.
    theta: the weight that the sender has told for its partial sum; 0: not told.
    checksum: of that sum, as its contributors have told theirs; None: not all have.
    receiver: the process that the sender gives it to without being asked; None: the receiver asks.
    """

    segment: Segment
    hop_id: HopId
    sender: Contributor
    limits: Limits = Limits()
    is_look: bool = False
    theta: Theta = 0.0
    checksum: Checksum | None = None
    receiver: Contributor | None = None


class HopCancelled(AgentMessage, frozen=True):
    """To the receiver of a hop: abort it unless it is merged already, and report which (docs/protocol-hops.md).

    segment: as in HopOrdered.
    hop_id: as in HopOrdered.
    sender: as in HopOrdered, for a receiver that never heard of it.
    """

    segment: Segment
    hop_id: HopId
    sender: Contributor


class HopReleased(AgentMessage, frozen=True):
    """To the sender of a hop: it did not count, or its receiver is lost with it; hold again (docs/protocol-hops.md).

    segment: as in HopOrdered.
    hop_id: as in HopOrdered.
    """

    segment: Segment
    hop_id: HopId


class DeltaWanted(Message, frozen=True):
    """Receiver to sender: ready for your partial sum. Nothing large is sent before this.

    round_id: the open round.
    attempt: the term that opened it.
    segment: as in HopOrdered.
    hop_id: the hop that the partial sum is given to, and to no other.
    """

    round_id: Round
    attempt: Term
    segment: Segment
    hop_id: HopId


class DeltaMessage(Message, frozen=True):
    """Sender to receiver of a hop: the partial sum; carries values, int32, shape (P,).

    round_id: the open round.
    segment: as in HopOrdered.
    hop_id: the hop it is given to.
    theta: summed weight of its contributors.
    contributors: the processes with deltas in it.
    """

    round_id: Round
    segment: Segment
    hop_id: HopId
    theta: Theta
    contributors: Contributors
