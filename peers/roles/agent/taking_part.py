"""The devices that take part in an open round, by the mesh's participation rule (`mdl.scheduler.rounds`). Pure.

The rule sees all live members: when each can give, the speed of its link, and how often it was left out. It decides
once in a round. Work of a device that is left out comes with a later round.
"""

from __future__ import annotations

from statistics import median

from mdl.peers.roles.agent.attendance import Attendance
from mdl.peers.roles.agent.ledger import RoundLedger
from mdl.peers.roles.agent.settings import TimeLimit
from mdl.peers.roles.membership.members import Members
from mdl.protocol.delta import Contributor
from mdl.scheduler.policies.device_book import DeviceBook, usual_link
from mdl.scheduler.rounds.participation import Close, DeviceSeen, RoundSeen
from mdl.scheduler.rounds.shipped import Bounds, mesh_rule

# A training that is due is expected to take this share of its usual time more. One that is late takes as long again as
# it is late: training times have no bound that an agent knows.
_LATE_SHARE = 0.1
# Links of a round in which nobody has measured any: alike, and without an exchange that would be worth a second.
_UNKNOWN_MB_S = 1e6


class TakingPart:
    """See the module."""

    def __init__(self, ledger: RoundLedger, members: Members, limit: TimeLimit, attendance: Attendance) -> None:
        self._ledger = ledger
        self._members = members
        self._limit = limit
        self._attendance = attendance
        bounds = Bounds(limit.wait_for, limit.grace_s, float(limit.left_out_at_most))
        self._rule = mesh_rule(limit.rule, bounds)
        self._is_closed = limit.is_for_all

    def leave_out(self, now: float) -> dict[Contributor, str]:
        """Return the devices to leave out from here on, and why; {}: none, or it is not decided yet."""
        if self._is_closed:
            return {}
        peers = {peer.peer_id: peer for peer in self._ledger.live()}
        seen = self._see(list(peers.values()), now)
        decision = self._rule.decide(seen)
        if not isinstance(decision, Close):
            return {}
        self._is_closed = True
        out = [each for each in seen.devices if each.device_id not in decision.devices]
        told = {peers[each.device_id]: self._tell(seen, each, peers[each.device_id], now) for each in out}
        return {peer: why for peer, why in told.items() if self._may_be_left(peer)}

    def _may_be_left(self, peer: Contributor) -> bool:
        """Return True if no other device's work would have to be given again without it."""
        holding = self._ledger.holding(peer)
        return holding is None or (holding.sent_hop is None and holding.contributors == (peer,))

    def _see(self, peers: list[Contributor], now: float) -> RoundSeen:
        members = {peer: member for peer in peers if (member := self._members.get(peer))}
        usual_mb_s = usual_link((member.device.link_mb_s for member in members.values()), _UNKNOWN_MB_S)
        took_s = [at - self._ledger.opened_at for peer in peers if (at := self._ledger.ready_at.get(peer)) is not None]
        others_s = median(took_s) if took_s else now - self._ledger.opened_at
        size = max((member.report.size for member in members.values()), default=0)
        return RoundSeen(
            number=self._ledger.round_id,
            open_s=now - self._ledger.opened_at,
            size_mb=4e-6 * size,
            latency_s=0.0,
            devices=tuple(
                self._see_device(peer, member.device, usual_mb_s, others_s, now) for peer, member in members.items()
            ),
            members=len(self._ledger.members),
        )

    def _see_device(
        self, peer: Contributor, book: DeviceBook, usual_mb_s: float, others_s: float, now: float
    ) -> DeviceSeen:
        """others_s: the time that others took; a device that nobody has seen train is expected to take as long."""
        ledger, attendance = self._ledger, self._attendance
        usual_s = book.training_s if book.training_s is not None else others_s
        ready_at = ledger.ready_at.get(peer) if ledger.holding(peer) else None
        left_out = attendance.left_out(peer.peer_id)
        spent_s = now - attendance.trains_since(peer, ledger.opened_at)
        return DeviceSeen(
            device_id=peer.peer_id,
            progress=float(ready_at is not None),
            ready_in_s=0.0 if ready_at is not None else _time_left_s(usual_s, spent_s),
            link_mb_s=book.link_mb_s or usual_mb_s,
            kind=book.kind(now),
            base_age=left_out,
            took_part=attendance.took_part(peer.peer_id),
            left_out=left_out,
            able_at_s=None if ready_at is None else max(0.0, ready_at - ledger.opened_at),
            is_new=book.training_s is None,
        )

    def _tell(self, seen: RoundSeen, device: DeviceSeen, peer: Contributor, now: float) -> str:
        """Tell why a device is left out, in one clause, and the round that waits for it at the latest."""
        latest = seen.number + self._limit.left_out_at_most - device.left_out
        later = f"its work comes by round {max(seen.number + 1, latest)}"
        if device.can_give:
            return f"its link of {device.link_mb_s:.2g} MB/s would hold up the others; {later}"
        told = f"{len(seen.able())} of {seen.members} were ready after {seen.open_s:.1f} s"
        member = self._members.get(peer)
        for_s = member.device.busy_for_s(now) if member else 0.0
        use = f" (in use for {for_s:.0f} s)" if for_s > 0.0 else ""
        need = "it still trained" if device.is_new else f"it needs about {device.ready_in_s:.1f} s more"
        return f"{told}, and {need}{use}; {later}"


def _time_left_s(usual_s: float, spent_s: float) -> float:
    """Return the expected seconds of training that are left, > 0."""
    return max(usual_s - spent_s, _LATE_SHARE * usual_s, spent_s - usual_s, 1e-3)
