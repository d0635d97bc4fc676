"""The waits of a node, in words: the agent it obeys, what is missing, and when each of its timers is due. Pure.

They help to see from outside why a mesh does not get on: `mdl sim run` tells them of each device of a stuck one.
"""

from __future__ import annotations

from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.membership.member import Member
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.protocol.vocabulary import Lineage

# Members that are named of each agent; a mesh of more is told by these.
_MOST_TOLD = 16


def tell_waits(peer: Peer, now: float) -> str:
    """Return one line on a node at this moment of its own clock."""
    term, agent = peer.authority()
    told = [_tell_trainer(peer.trainer, now)] if peer.trainer else ["no trainer"]
    if peer.agent:
        told.append(_tell_agent(peer.agent, now))
    elif agent:
        told.append(f"obeys {agent} under term {term}, gives it up in {_left(peer.succession.deadline(now), now)}")
    else:
        told.append(f"obeys nobody, last term {term}, may lead in {_left(peer.succession.deadline(now), now)}")
    return f"{peer.me.peer_id}/{peer.me.incarnation}: {'; '.join(told)}"


def _tell_trainer(trainer: Trainer, now: float) -> str:
    part, standing = trainer.part, trainer.standing
    told = [f"at {standing.round_id} of {_name(standing.lineage)}"]
    if part is None:
        told.append("in no round")
    else:
        told.append(f"{part.activity().value} in round {part.round_id}")
        told += [f"hop {order.hop_id} from {order.sender.peer_id} comes in"] if (order := part.incoming) else []
    if not standing.votes(part is not None and part.spread.staged is not None):
        told.append("has no vote")
    if wish := _tell_wish(trainer):
        told.append(f"asks for {wish}")
    return ", ".join([*told, f"reports or asks again in {_left(trainer.voice.deadline(), now)}"])


def _tell_wish(trainer: Trainer) -> str:
    """Return what it asks another device for again and again; "" if nothing."""
    part, wanted = trainer.part, trainer.catching_up_to
    if wanted:
        return f"the model of round {wanted.round_id} from {wanted.source.peer_id}"
    if part and part.incoming:
        return f"the delta of hop {part.incoming.hop_id} from {part.incoming.sender.peer_id}"
    if part and part.spread.parent and part.spread.staged is None:
        return f"the result of round {part.round_id} from {part.spread.parent.peer_id}"
    return ""


def _tell_agent(agent: MobileAgent, now: float) -> str:
    conducted = agent.round
    told = [f"leads under term {agent.term}: {agent.phase.value}"]
    if conducted:
        base = " ".join(conducted.base)
        told.append(
            f"round {conducted.ledger.round_id} of base {base}, moved {now - conducted.progressed_at:.1f} s ago"
        )
        told += [
            f"hop {hop.hop_id} {hop.sender.peer_id} -> {hop.receiver.peer_id} undecided"
            for hop in conducted.ledger.undecided()
        ]
    if agent.waiting_for:
        told.append(f"waits for {agent.waiting_for}")
    members = agent.members.everyone()[:_MOST_TOLD]
    told += [_tell_member(member, agent, now) for member in members if member.peer_id != agent.me.peer_id]
    return ", ".join([*told, f"acts in {_left(agent.deadline(), now)}"])


def _tell_member(member: Member, agent: MobileAgent, now: float) -> str:
    report = member.report
    told = [f"heard {now - member.heard_at:.1f} s ago" + ("" if member.alive else ", taken for lost")]
    if report.agent != agent.me.peer_id:
        told.append(f"obeys {report.agent or 'nobody'}")
    elif report.term < agent.term:
        told.append("has not promised this term")
    told.append(f"at {report.round_id} {report.activity.value}")
    if report.staged:
        told.append(f"staged under term {report.staged.term}")
    if not report.votes:
        told.append("no vote")
    return f"{member.peer_id} ({', '.join(told)})"


def _name(lineage: Lineage) -> str:
    return lineage[-1].name if lineage else "no mesh"


def _left(due: float | None, now: float) -> str:
    return "no time" if due is None else f"{max(0.0, due - now):.1f} s"
