"""Hops around cuts and limits: changes a policy's decision to a pair that is connected and allowed. Pure.

Policies order by cost. They need not know cuts, nor devices with no room for one more delta within their owners' limits
(Eq. 4). A policy's pair may be apart, break a limit, or leave a holder behind that no other holder can reach. Then the
pair nearest to its choice is taken: the same sender, else the same receiver, else any.
"""

from __future__ import annotations

from mdl.scheduler.policies.chain import FULL, ChainView, Decision, DeviceState, Pair, Wait

# The devices that hold a load now or will: all but those that have given it away or are about to.
_HOLDS = (DeviceState.TRAINING, DeviceState.FREE, DeviceState.BUSY, DeviceState.GET)


def go_around(view: ChainView, decision: Decision) -> Decision:
    """Return the decision, or the allowed one nearest to it; a pair that is apart only if nothing else is left.

    A limit holds in any case: a hop that would break it is never ordered, and the reason of the wait says so.
    """
    full = {device.peer_id for device in view.devices if not device.may_receive}
    if isinstance(decision, Wait) or not (view.apart or full):
        return decision
    pair = nearest_allowed(view, decision.sender, decision.receiver)
    if pair == (decision.sender, decision.receiver):
        return decision
    why = f"{decision.sender} and {decision.receiver} have a cut between them"
    if decision.receiver in full:
        why = f"{decision.receiver}: {FULL}"
    if pair is not None:
        return Pair(*pair, f"{why} ({decision.reason})")
    if view.may_wait() or decision.receiver in full:
        return Wait(f"{why}: waiting for another partner")
    return decision


def nearest_allowed(view: ChainView, sender: str, receiver: str) -> tuple[str, str] | None:
    """Return the allowed pair of free devices nearest to this one; None if no pair is allowed.

    A hop is allowed if both reach each other, the receiver's limits permit it, and the remaining holders are no more
    split than before. So a device that is the only way between two others must not send.
    """
    free = [device.peer_id for device in view.devices if device.state is DeviceState.FREE]
    holders = [device.peer_id for device in view.devices if device.state in _HOLDS]
    parts = _parts(view, holders)
    may_send = {peer for peer in free if _parts(view, [other for other in holders if other != peer]) <= parts}
    may_get = {device.peer_id for device in view.devices if device.may_receive}
    allowed = [
        (one, other)
        for one in free
        for other in free
        if one != other and one in may_send and other in may_get and not view.cut(one, other)
    ]
    return min(allowed, key=lambda pair: (pair[0] != sender, pair[1] != receiver), default=None)


def _parts(view: ChainView, holders: list[str]) -> int:
    """Count the groups of holders that cannot reach each other."""
    left, parts = set(holders), 0
    while left:
        parts += 1
        border = [left.pop()]
        while border:
            peer = border.pop()
            near = {other for other in left if not view.cut(peer, other)}
            left -= near
            border += near
    return parts
