"""The round as a policy sees it, made from the agent's knowledge."""

from __future__ import annotations

from collections import Counter

from mdl.peers.roles.agent.ledger import MERGED, Hop, RoundLedger
from mdl.peers.roles.membership.member import Member
from mdl.peers.roles.membership.members import Members
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import ResourceState
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView
from mdl.scheduler.policies.device_book import DeviceBook

_TRAINING, _FREE, _BUSY, _SEND, _GET, _DONE, _DEAD = DeviceState
_NOTHING_KNOWN = ResourceState(free_memory_bytes=0, cpu_percent=0.0)
# A step that is late is expected to take this share of its usual time again.
_LATE_SHARE = 0.1


def chain_view(ledger: RoundLedger, members: Members, now: float) -> ChainView:
    """Return the round as a policy sees it; devices in the order of their ids."""
    free = set(ledger.free())
    under_way: dict[Contributor, Hop] = {}
    for hop in ledger.undecided():
        under_way.setdefault(hop.sender, hop)
        under_way.setdefault(hop.receiver, hop)
    senders = {hop.sender for hop in ledger.undecided()}
    merges, received, free_since = _hops_so_far(ledger)
    size_mb = 0.0
    devices = []
    for peer in ledger.in_order:
        member = members.get(peer)
        if member is None:
            devices.append(DeviceView(peer.peer_id, _DEAD))
            continue
        holding = ledger.holding(peer)
        if peer in ledger.lost:
            state = _DEAD
        elif peer in senders:
            state = _SEND
        elif peer in under_way:
            state = _GET
        elif peer in free:
            state = _BUSY if member.is_busy and not _nobody_else_to_come(ledger, members, free) else _FREE
        else:
            state = _DONE if holding else _TRAINING
        size_mb = member.report.size * 4 / 1e6
        since_s = max(ledger.ready_at.get(peer, 0.0), free_since.get(peer, 0.0))
        theta = holding.theta if holding else 0.0
        hops = merges.get(peer, 0), received.get(peer, 0)
        left_s = _time_left(under_way[peer], members, now) if state is _SEND or state is _GET else 0.0
        devices.append(_device_view(ledger, member, state, hops, since_s, theta, left_s, now))
    apart = frozenset((one.peer_id, other.peer_id) for one, other in members.reach.apart(now))
    return ChainView(now, size_mb, tuple(devices), apart=apart)


def _hops_so_far(ledger: RoundLedger) -> tuple[Counter[Contributor], Counter[Contributor], dict[Contributor, float]]:
    """Return per member its merges, those that it received, and the time its last hop was decided."""
    merges: Counter[Contributor] = Counter()
    received: Counter[Contributor] = Counter()
    decided_at: dict[Contributor, float] = {}
    for hop in ledger.hops.values():
        if hop.state is MERGED:
            merges.update((hop.sender, hop.receiver))
            received[hop.receiver] += 1
        for peer in (hop.sender, hop.receiver):
            if hop.decided_at is not None:
                decided_at[peer] = max(decided_at.get(peer, 0.0), hop.decided_at)
    return merges, received, decided_at


def _device_view(
    ledger: RoundLedger,
    member: Member,
    state: DeviceState,
    hops: tuple[int, int],
    free_since_s: float,
    theta: float,
    left_s: float,
    now: float,
) -> DeviceView:
    resources, book = member.report.resources or _NOTHING_KNOWN, member.device
    return DeviceView(
        member.peer_id,
        state,
        book.link_mb_s,
        book.merge_mb_s,
        free_since_s,
        *hops,
        theta,
        book.energy_j,
        resources.battery_percent,
        resources.charging,
        resources.in_use,
        resources.cpu_percent,
        resources.free_memory_bytes,
        book.kind(now),
        busy_for_s=book.busy_for_s(now),
        eta_ready_s=_time_to_ready(book, now - ledger.opened_at) if state is _TRAINING else 0.0,
        op_left_s=left_s,
        may_receive=resources.may_take(member.report.size * 4),
    )


def _time_to_ready(book: DeviceBook, elapsed_s: float) -> float:
    """Return the expected seconds; a device that trains longer than usual is given a part of its usual time again."""
    usual_s = book.training_s if book.training_s is not None else elapsed_s
    return max(usual_s - elapsed_s, _LATE_SHARE * usual_s)


def _time_left(hop: Hop, members: Members, now: float) -> float:
    """Return the seconds left of a hop: by the values so far, else by the slower link's speed."""
    receiver = members.get(hop.receiver)
    elapsed_s = now - hop.ordered_at
    transfer = receiver.report.transfer if receiver else None
    if transfer and transfer.received_bytes:
        return elapsed_s * max(0.0, transfer.size_bytes / transfer.received_bytes - 1.0)
    ends = [member for end in (hop.sender, hop.receiver) if (member := members.get(end))]
    speeds = [member.device.link_mb_s for member in ends if member.device.link_mb_s]
    if not speeds:
        return 0.0
    usual_s = ends[0].report.size * 4 / 1e6 / min(speeds)
    return max(usual_s - elapsed_s, _LATE_SHARE * usual_s)


def _nobody_else_to_come(ledger: RoundLedger, members: Members, free: set[Contributor]) -> bool:
    """Return True if only busy devices are left to pair: they are paired, or the round would never end."""
    at_ease = {peer for peer in ledger.live() if (member := members.get(peer)) and not member.is_busy}
    engaged = {peer for hop in ledger.undecided() for peer in (hop.sender, hop.receiver)}
    training = set(ledger.live()).difference(ledger.held())
    return len(at_ease & (free | engaged | training)) < 2
