"""Who belongs to the mesh: the agent's table of trainers, their last reports, and who stands at the mesh's model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mdl.delta import Contributor
from mdl.messages import MAX_MEMBERS, Activity, PeerReport
from scheduler.devices import DeviceBook


@dataclass
class Member:
    """One trainer as the agent hears it. problem: why it cannot take part, for the user.

    late_since: when the agent first waited for it to fetch the mesh's model, until it stands there.
    """

    contributor: Contributor
    report: PeerReport
    heard_at: float
    joined_at: float
    alive: bool = True
    problem: str = ""
    late_since: float | None = None
    device: DeviceBook = field(default_factory=DeviceBook)

    @property
    def at(self) -> tuple[int, bytes]:
        return self.report.round_id, self.report.digest


class Members:
    """peer id -> Member. A restarted peer replaces its old incarnation and keeps its device's book."""

    def __init__(self) -> None:
        self._table: dict[str, Member] = {}

    def hear(self, sender: Contributor, report: PeerReport, now: float) -> Member | None:
        """The member, or None if the report is older than what is known."""
        known = self._table.get(sender.peer_id)
        if known and known.contributor.incarnation > sender.incarnation:
            return None
        if known and known.contributor == sender:
            if report.sequence <= known.report.sequence:
                return None
            known.report, known.heard_at = report, now
            known.alive = report.activity is not Activity.LEFT
            return known
        if known is None and len(self._table) >= MAX_MEMBERS:
            return None
        device = known.device if known else DeviceBook()
        alive = report.activity is not Activity.LEFT
        member = Member(sender, report, now, now, alive, device=device)
        self._table[sender.peer_id] = member
        return member

    def expire(self, now: float, lost_after_s: float) -> None:
        for member in self._table.values():
            if now - member.heard_at >= lost_after_s:
                member.alive = False

    def everyone(self) -> list[Member]:
        return [self._table[peer_id] for peer_id in sorted(self._table)]

    def alive(self) -> list[Member]:
        """Those heard lately whose model fits."""
        return [member for member in self.everyone() if member.alive and not member.problem]

    def get(self, contributor: Contributor) -> Member | None:
        member = self._table.get(contributor.peer_id)
        return member if member and member.contributor == contributor else None

    def refuse_other_models(self) -> None:
        """The model of whoever joined first is the mesh's; a different one is named and refused."""
        alive = self.alive()
        if not alive:
            return
        first = min(alive, key=lambda member: (member.joined_at, member.contributor)).report
        for member in alive:
            report = member.report
            if (report.schema_hash, report.size) != (first.schema_hash, first.size):
                member.problem = (
                    f"your model ({report.model}, {report.size:,} values) differs from the mesh's "
                    f"({first.model}, {first.size:,} values)"
                )

    def newest_model(self) -> tuple[int, bytes] | None:
        """The latest round that anyone alive is at, and the digest most of them have there; None without members."""
        alive = self.alive()
        if not alive:
            return None
        latest = max(member.at[0] for member in alive)
        digests = Counter(member.at[1] for member in alive if member.at[0] == latest)
        return latest, max(digests, key=lambda digest: (digests[digest], digest))
