"""From what the agent knows to what a policy sees, and the order of the broadcast tree by resources (3.2.3)."""

from __future__ import annotations

from mdl.delta import Contributor
from peers.members import Member, Members
from peers.rounds import HopState, RoundLedger
from scheduler.chain import ChainView, DeviceState, DeviceView


def chain_view(ledger: RoundLedger, members: Members, now: float) -> ChainView:
    """The round as a policy sees it; devices in the order of their ids."""
    free = set(ledger.free())
    relaxed = _nobody_else_to_come(ledger, members, free)
    senders = {hop.sender for hop in ledger.undecided()}
    receivers = {hop.receiver for hop in ledger.undecided()}
    size_mb = 0.0
    devices = []
    for peer in sorted(ledger.members):
        member = members.get(peer)
        holding = ledger.holding(peer)
        if member is None or peer in ledger.lost:
            state = DeviceState.DEAD
        elif peer in senders:
            state = DeviceState.SEND
        elif peer in receivers:
            state = DeviceState.GET
        elif peer in free:
            state = DeviceState.BUSY if is_busy(member) and not relaxed else DeviceState.FREE
        else:
            state = DeviceState.DONE if holding else DeviceState.TRAINING
        if member:
            size_mb = member.report.size * 4 / 1e6
        devices.append(_device_view(ledger, peer, member, state))
    return ChainView(now, size_mb, tuple(devices))


def order_broadcast(
    recipients: list[Contributor], sources: list[Contributor], members: Members
) -> tuple[Contributor, ...]:
    """Those who have the result first, then the rest, richest first: early positions feed most children."""
    rest = [peer for peer in recipients if peer not in sources]
    return tuple(sources) + tuple(sorted(rest, key=lambda peer: poverty(members.get(peer))))


def is_busy(member: Member) -> bool:
    """Somebody is using the device: it comes last."""
    resources = member.report.resources
    return resources is not None and bool(resources.in_use)


def _device_view(ledger: RoundLedger, peer: Contributor, member: Member | None, state: DeviceState) -> DeviceView:
    if member is None:
        return DeviceView(peer.peer_id, state)
    resources = member.report.resources
    holding = ledger.holding(peer)
    decided = [hop for hop in ledger.hops.values() if peer in (hop.sender, hop.receiver)]
    merged_at = [hop.decided_at for hop in decided if hop.decided_at is not None]
    return DeviceView(
        peer.peer_id,
        state,
        link_mb_s=member.device.link_mb_s,
        free_since_s=max([ledger.ready_at.get(peer, 0.0), *merged_at]),
        n_agg=sum(hop.state is HopState.MERGED for hop in decided),
        theta=holding.theta if holding else 0.0,
        energy_j=member.device.energy_j,
        battery_percent=resources.battery_percent if resources else None,
        charging=resources.charging if resources else None,
        in_use=resources.in_use if resources else None,
        cpu_percent=resources.cpu_percent if resources else 0.0,
        free_memory_bytes=resources.free_memory_bytes if resources else 0,
    )


def _nobody_else_to_come(ledger: RoundLedger, members: Members, free: set[Contributor]) -> bool:
    """Only busy devices are left to pair: they are paired all the same, or the round would never end."""
    at_ease = {peer for peer in ledger.live() if (member := members.get(peer)) and not is_busy(member)}
    engaged = {peer for hop in ledger.undecided() for peer in (hop.sender, hop.receiver)}
    training = {peer for peer in ledger.live() if ledger.holding(peer) is None}
    return len(at_ease & (free | engaged | training)) < 2


def poverty(member: Member | None) -> tuple[bool, bool, float, float, str]:
    """Sorts the resource-richest first: at ease, not on a low battery, fast link, much memory."""
    if member is None or member.report.resources is None:
        return True, True, 0.0, 0.0, ""
    resources = member.report.resources
    low = resources.battery_percent is not None and resources.battery_percent < 30 and not resources.charging
    link_mb_s = member.device.link_mb_s or 0.0
    return is_busy(member), low, -link_mb_s, -resources.free_memory_bytes, member.contributor.peer_id
