"""Hops around cuts and limits: a policy's decision, kept to pairs that reach each other and may. Pure.

Policies order by cost and need not know of cuts, nor of devices whose owners' limits leave no room for one more delta
(Eq. 4). Where the policy's pair is apart, would break a limit, or would leave somebody behind whom nobody left can
reach, the pair nearest to its choice is taken: the same sender, else the same receiver, else any.
"""

from __future__ import annotations

from mdl.scheduler.policies.chain import FULL, ChainView, Decision, DeviceState, Pair, Wait

# Who holds a load now or will: everybody but those who have given it away or are about to.
_HOLDS = (DeviceState.TRAINING, DeviceState.FREE, DeviceState.BUSY, DeviceState.GET)


def go_around(view: ChainView, decision: Decision) -> Decision:
    """The decision, or the allowed one nearest to it; a pair that is apart only if it is all that is left.

    A limit holds in any case: a hop that would break it is never ordered, and the reason of the wait says so.
    """
    full = {device.peer_id for device in view.devices if not device.may_receive}
    if isinstance(decision, Wait) or not (view.apart or full):
        return decision
    pair = nearest_allowed(view, decision.sender, decision.receiver)
    if pair == (decision.sender, decision.receiver):
        return decision
    why = f"{decision.sender} and {decision.receiver} are to go around a cut"
    if decision.receiver in full:
        why = f"{decision.receiver}: {FULL}"
    if pair is not None:
        return Pair(*pair, f"{why} ({decision.reason})")
    if view.may_wait() or decision.receiver in full:
        return Wait(f"{why}: waiting for another partner")
    return decision


def nearest_allowed(view: ChainView, sender: str, receiver: str) -> tuple[str, str] | None:
    """Of the free devices' pairs that may go on, the nearest to this one; None if there is none.

    A hop may go on if both reach each other, the receiver's limits allow it, and all who hold a load afterwards still
    reach each other, if only over others: whoever is the only way between two devices must not be the one who sends.
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
    """Into how many groups that cannot reach each other the holders fall."""
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
