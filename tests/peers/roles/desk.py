"""A `Desk` keeps the trainers' reports and what the agent said, so that a test hands reports and compares orders."""

from __future__ import annotations

from typing import Any

import msgspec

from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.run_end import RunKnowledge
from mdl.protocol.delta import Contributor, Partial
from mdl.protocol.machine import Effect, Event, Finish, Received, RecordRound, Send
from mdl.protocol.round_messages import BroadcastOrdered, HopOrdered, PeerReport, RoundOpened
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import Activity, Holding, HopDecision, HopOutcome, Staged
from mdl.scheduler.policies.registry import make_policy

A, B, C, D = (Contributor(name, 1) for name in "abcd")
FRESH = PeerReport(0, 1, 0, b"w0", "schema", "lenet", 10, Activity.WAITING, 0, agent="agent", checksum=0)


class Desk:
    """An agent, the last report of each trainer, and everything the agent has said, newest last."""

    def __init__(
        self, rounds: int = 1, min_peers: int = 2, policy: str = "fifo", goal: int = 0, **settings: Any
    ) -> None:
        options = AgentSettings(rounds=rounds, min_peers=min_peers, **settings)
        self.agent = MobileAgent(Contributor("agent", 1), make_policy(policy), options, taken=RunKnowledge(goal))
        self.reports: dict[Contributor, PeerReport] = {}
        self.said: list[tuple[str, Any]] = []
        self.newest: dict[type, Any] = {}
        self.recorded: list[RoundSummary] = []
        self.finish: Finish | None = None
        self.now = 0.0

    def hand(self, event: Event, after_s: float = 0.1) -> list[Effect]:
        self.now += after_s
        effects = self.agent.handle(event, self.now)
        self.said += [(effect.receiver, effect.message) for effect in effects if isinstance(effect, Send)]
        self.newest |= {type(effect.message): effect.message for effect in effects if isinstance(effect, Send)}
        self.recorded += [effect.summary for effect in effects if isinstance(effect, RecordRound)]
        self.finish = next((effect for effect in effects if isinstance(effect, Finish)), self.finish)
        return effects

    def report(self, peer: Contributor, after_s: float = 0.1, **changes: Any) -> list[Effect]:
        """The trainer's whole state, as it was before but for the changes."""
        known = self.reports.get(peer, FRESH)
        self.reports[peer] = msgspec.structs.replace(known, sequence=known.sequence + 1, **changes)
        return self.hand(Received(peer, self.reports[peer]), after_s)

    def join(self, peer: Contributor, **changes: Any) -> None:
        """It has heard RoundOpened, and takes part."""
        opened = self.last(RoundOpened)
        known: dict[str, Any] = {"activity": Activity.TRAINING, "term": self.agent.term, "votes": True}
        known |= {"open_round": opened.round_id, "open_term": opened.attempt, "open_as": opened.term}
        known |= {"lineage": opened.lineage, "goal": opened.planned_rounds}
        if opened.lineage != self.reports[peer].lineage:
            known["base"] = opened.base
        self.report(peer, **known | changes)

    def hold(self, peer: Contributor, *others: Contributor, sent_hop: int | None = None, **changes: Any) -> None:
        contributors = tuple(sorted({peer, *others}))
        holding = Holding(float(len(contributors)), contributors, sent_hop)
        self.join(peer, **{"activity": Activity.HOLDING, "holding": holding} | changes)

    def promise(self, *peers: Contributor) -> None:
        """They obey the agent's newest term, and so no older order any more."""
        for peer in peers:
            self.report(peer, term=self.agent.term)

    def start(self, *peers: Contributor) -> None:
        """All are there, the round is opened and all hold their own delta."""
        for peer in peers:
            self.report(peer)
        for peer in peers:
            self.hold(peer)

    def hops(self) -> list[HopOrdered]:
        """Orders so far, each once."""
        return list(dict.fromkeys(message for _, message in self.said if isinstance(message, HopOrdered)))

    def merge(self, hop: HopOrdered, receiver: Contributor, *others: Contributor) -> None:
        decision = HopDecision(hop.hop_id, hop.sender, HopOutcome.MERGED, 1.0, 40)
        self.hold(receiver, hop.sender, *others, hops=(*self.reports.get(receiver, FRESH).hops, decision))

    def receiver_of(self, hop: HopOrdered) -> Contributor:
        return next(Contributor(name, 1) for name, message in self.said if message == hop)

    def stage(
        self,
        peer: Contributor,
        *contributors: Contributor,
        digest: bytes = b"delta",
        uplink: float = 0.0,
        partial: tuple[Partial, ...] = (),
        **changes: Any,
    ) -> None:
        """It has the result, and says so to the order it follows."""
        order = self.last(BroadcastOrdered)
        who = tuple(sorted(contributors)) or order.contributors
        staged = Staged(digest, float(len(who)), who, order.term, order.version, partial)
        now: dict[str, Any] = {
            "link_mb_s": uplink,
            "open_round": order.round_id,
            "activity": Activity.STAGED,
            "term": self.agent.term,
        }
        self.report(peer, staged=staged, **now | changes)

    def apply(self, peer: Contributor, **changes: Any) -> None:
        """The round is closed, and it stands at the next model."""
        known = self.reports[peer]
        assert known.staged is not None
        base = tuple(contributor.peer_id for contributor in known.staged.contributors)
        done: dict[str, Any] = {
            "round_id": known.round_id + 1,
            "digest": f"w{known.round_id + 1}".encode(),
            "base": base,
        }
        done |= {"activity": Activity.WAITING, "open_round": 0, "open_term": 0, "open_as": 0, "term": self.agent.term}
        self.report(peer, **done | {"holding": None, "hops": (), "staged": None} | changes)

    def last(self, kind: type) -> Any:
        return self.newest[kind]

    def told(self, kind: type) -> list[str]:
        return [receiver for receiver, message in self.said if isinstance(message, kind)]

    def pass_time(self, seconds: float, *alive: Contributor) -> None:
        """So long nothing changes; everybody alive goes on reporting, twice a second."""
        for _ in range(round(seconds / 0.5)):
            for peer in alive:
                self.report(peer, after_s=0.5 / len(alive))

    def silence(self, lost: Contributor, *alive: Contributor, for_s: float = 4.0) -> None:
        """Everybody but `lost` goes on reporting."""
        for _ in range(int(for_s / 0.5)):
            for peer in alive:
                self.report(peer, after_s=0.5 / len(alive))
