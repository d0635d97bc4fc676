"""Rounds that do not wait for the slowest: for training, for the result, for a device that fetches the model."""

from __future__ import annotations

import pytest

from mdl.peers.roles.agent.conductor import CLOSED, CLOSING, Phase
from mdl.peers.roles.agent.settings import TimeLimit
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import BroadcastOrdered, RoundClosed, RoundOpened
from mdl.protocol.vocabulary import Activity, TrainingReport
from tests.peers.roles.desk import A, B, C, D, Desk

LIMIT = TimeLimit(wait_for=0.6, grace_s=2.0, left_out_at_most=2)
TRAINED = TrainingReport(0.5, 8, 1.0)


def _desk(limit: TimeLimit = LIMIT, *peers: Contributor, rounds: int = 0) -> Desk:
    here = peers or (A, B, C)
    desk = Desk(rounds=rounds, min_peers=len(here), limit=limit)
    for peer in here:
        desk.report(peer)
    for peer in here:
        desk.join(peer)
    for member in desk.agent.members.everyone():
        member.device.training_s = 1.0
    return desk


def _lost(desk: Desk) -> dict[str, str]:
    assert desk.agent.ledger is not None
    return {peer.peer_id: why for peer, why in desk.agent.ledger.lost.items()}


def _merge_all(desk: Desk) -> None:
    """Each ordered hop of the open round is merged, until one device has all."""
    done: set[int] = set()
    while hops := [hop for hop in desk.hops() if hop.hop_id not in done and hop.round_id == _number(desk)]:
        for hop in hops:
            receiver = desk.receiver_of(hop)
            held = {*_held(desk, receiver), *_held(desk, hop.sender)}
            desk.merge(hop, receiver, *held - {receiver, hop.sender})
            done.add(hop.hop_id)


def _held(desk: Desk, peer: Contributor) -> tuple[Contributor, ...]:
    return desk.reports[peer].holding.contributors


def _number(desk: Desk) -> int:
    return int(desk.last(RoundOpened).round_id)


def _run_round(desk: Desk, *givers: Contributor) -> None:
    """These give, and have the result; the others fetch the model once the round is closed."""
    for peer in givers:
        desk.hold(peer, training=TRAINED)
    desk.pass_time(4.0, A, B, C)
    _merge_all(desk)
    desk.promise(A, B, C)
    order = desk.last(BroadcastOrdered).order
    for peer in order:
        desk.stage(peer)
    for peer in order:
        desk.apply(peer)
    newest = desk.reports[order[0]]
    place = {"round_id": newest.round_id, "digest": newest.digest, "base": newest.base, "lineage": newest.lineage}
    for peer in {A, B, C} - set(order):
        desk.report(peer, **place, activity=Activity.WAITING, open_round=0, open_term=0, open_as=0)


def test_enough_are_waited_for_and_the_rest_have_the_grace() -> None:
    desk = _desk()
    desk.hold(A)
    desk.pass_time(10.0, A, B, C)
    assert _lost(desk) == {}, "one of three is not enough"
    desk.hold(B)
    desk.pass_time(2.0, A, B, C)
    assert _lost(desk) == {}, "the grace, and a quarter of the time that the others took"
    desk.pass_time(2.0, A, B, C)
    assert list(_lost(desk)) == ["c"]
    assert _lost(desk)["c"].startswith("left out: 2 of 3 were ready after ")


def test_a_device_that_was_never_seen_to_train_has_longer() -> None:
    desk = _desk()
    member = desk.agent.members.get(C)
    assert member is not None
    member.device.training_s = None
    for peer in (A, B):
        desk.hold(peer)
    desk.pass_time(9.0, A, B, C)
    assert _lost(desk) == {}
    desk.pass_time(2.0, A, B, C)
    assert list(_lost(desk)) == ["c"]


def test_by_default_of_the_machines_everybody_is_waited_for() -> None:
    desk = _desk(TimeLimit())
    for peer in (A, B):
        desk.hold(peer)
    desk.pass_time(60.0, A, B, C)
    assert _lost(desk) == {}


def test_a_device_is_left_out_of_so_many_rounds_running_and_then_waited_for() -> None:
    desk = _desk()
    for number in (1, 2):
        _run_round(desk, A, B)
        assert [peer.peer_id for peer in desk.last(BroadcastOrdered).contributors] == ["a", "b"]
        assert _number(desk) == number + 1
        for peer in (A, B, C):
            desk.join(peer)
    for peer in (A, B):
        desk.hold(peer, training=TRAINED)
    desk.pass_time(60.0, A, B, C)
    assert _lost(desk) == {}, "it was left out of two rounds running"


@pytest.mark.parametrize("is_for_all", [False, True])
def test_a_round_closes_while_one_device_still_fetches_its_result(is_for_all: bool) -> None:
    desk = _desk(TimeLimit() if is_for_all else LIMIT, A, B, C, D)
    for peer in (A, B, C, D):
        desk.hold(peer)
    _merge_all(desk)
    desk.promise(A, B, C, D)
    slow = desk.last(BroadcastOrdered).order[-1]
    others = [peer for peer in (A, B, C, D) if peer != slow]
    for peer in others:
        desk.stage(peer)
    assert desk.agent.phase is Phase.BROADCASTING
    desk.pass_time(1.0, *others, slow)
    assert desk.agent.phase is Phase.BROADCASTING, "the grace is not over"
    desk.pass_time(4.0, *others, slow)
    if is_for_all:
        assert desk.agent.phase is Phase.BROADCASTING
        return
    assert desk.agent.phase in (CLOSING, CLOSED)
    assert slow.peer_id not in desk.told(RoundClosed)
    for peer in others:
        desk.apply(peer)
    desk.pass_time(1.0, *others, slow)
    opened = desk.last(RoundOpened)
    assert (opened.round_id, slow in opened.members) == (2, False), "the next round does not wait for it either"


def test_segments_go_on_without_a_device_whose_pieces_most_owners_lack() -> None:
    desk = Desk(rounds=0, min_peers=4, limit=LIMIT, exchange="shares")
    for peer in (A, B, C, D):
        desk.report(peer)
    for member in desk.agent.members.everyone():
        member.device.training_s, member.device.link_mb_s = 1.0, 4e-5  # 40 bytes take a second or two
    for peer in (A, B, C, D):
        desk.hold(peer)
    desk.promise(A, B, C, D)
    assert desk.agent.round is not None
    plan = desk.agent.round.plan
    assert plan is not None
    desk.pass_time(2.0 * plan.bound_s, A, B, C, D)
    for peer in (A, B, C):
        desk.report(peer, lacking=("d",))
    desk.report(D, lacking=("a", "b", "c"))
    assert desk.last(BroadcastOrdered).lost == ()
    desk.pass_time(LIMIT.grace_s + 1.0, A, B, C, D)
    order = desk.last(BroadcastOrdered)
    assert [each.contributor for each in order.lost] == [D]
    assert D not in order.order
    device = desk.agent.members.get(D)
    assert device is not None
    assert device.device.link_mb_s == 2e-5, "it is planned with half the speed from now on"


def test_while_devices_have_different_results_all_are_waited_for() -> None:
    desk = Desk(rounds=0, min_peers=4, limit=LIMIT, exchange="shares")
    for peer in (A, B, C, D):
        desk.report(peer)
    for peer in (A, B, C, D):
        desk.hold(peer)
    desk.promise(A, B, C, D)
    for peer, digest in ((A, b"delta"), (B, b"delta"), (C, b"another")):
        desk.stage(peer, digest=digest)
    desk.pass_time(6.0, A, B, C, D)
    assert desk.agent.phase is Phase.BROADCASTING
    assert desk.told(RoundClosed) == []


WORTH = TimeLimit(wait_for=0.51, grace_s=0.5, left_out_at_most=9, rule="best-ratio")


def _linked(links_mb_s: dict[Contributor, float], limit: TimeLimit = WORTH) -> Desk:
    """Devices with a delta of 4 MB that trained in a second before."""
    desk = Desk(rounds=0, min_peers=len(links_mb_s), limit=limit, exchange="shares")
    for peer in links_mb_s:
        desk.report(peer, size=1_000_000)
    for peer, mb_s in links_mb_s.items():
        member = desk.agent.members.get(peer)
        assert member is not None
        member.device.training_s, member.device.link_mb_s = 1.0, mb_s
    return desk


def test_a_device_whose_link_holds_up_the_others_is_left_out_though_it_can_give() -> None:
    desk = _linked({A: 10.0, B: 10.0, C: 10.0, D: 0.05})
    for peer in (A, B, C, D):
        desk.hold(peer)
    desk.pass_time(1.0, A, B, C, D)
    told = _lost(desk)
    assert list(told) == ["d"]
    assert told["d"] == "left out: its link of 0.05 MB/s would hold up the others; its work comes by round 10"


def test_devices_with_equal_links_are_all_worth_the_time() -> None:
    desk = _linked({A: 10.0, B: 9.0, C: 10.0, D: 8.0})
    for peer in (A, B, C, D):
        desk.hold(peer)
    desk.pass_time(1.0, A, B, C, D)
    assert _lost(desk) == {}


def test_a_device_that_is_due_is_waited_for_beyond_the_grace_and_a_late_one_is_not_for_ever() -> None:
    desk = _linked({A: 10.0, B: 10.0, C: 10.0, D: 10.0})
    device = desk.agent.members.get(D)
    assert device is not None
    device.device.training_s = 1.5
    desk.pass_time(1.0, A, B, C, D)
    for peer in (A, B, C):
        desk.hold(peer)
    desk.pass_time(0.7, A, B, C, D)
    assert _lost(desk) == {}, "it is 0.2 s late, and the grace was 0.5 s"
    desk.pass_time(6.0, A, B, C, D)
    assert list(_lost(desk)) == ["d"]


def test_the_rule_decides_once_in_a_round() -> None:
    desk = _linked({A: 10.0, B: 10.0, C: 10.0, D: 0.05})
    for peer in (A, B, C, D):
        desk.hold(peer)
    desk.pass_time(1.0, A, B, C, D)
    member = desk.agent.members.get(C)
    assert member is not None
    member.device.link_mb_s = 0.05
    desk.pass_time(5.0, A, B, C, D)
    assert list(_lost(desk)) == ["d"]


def test_without_a_measured_link_only_time_decides() -> None:
    desk = _linked({A: 0.0, B: 0.0, C: 0.0, D: 0.0})
    for peer in (A, B, C):
        desk.hold(peer)
    desk.pass_time(6.0, A, B, C, D)
    assert list(_lost(desk)) == ["d"]
    assert "link" not in _lost(desk)["d"]


def test_a_device_that_was_left_out_gets_the_result_if_the_decision_needs_it() -> None:
    """Two of the three that decide have given: one more hears of it, in case that one of these is lost."""
    desk = _desk(TimeLimit(wait_for=0.4, grace_s=0.5), A, B, C, D)
    for peer in (A, B):
        desk.hold(peer, training=TRAINED)
    desk.pass_time(9.0, A, B, C, D)
    _merge_all(desk)
    desk.promise(A, B, C, D)
    order = desk.last(BroadcastOrdered)
    assert [peer.peer_id for peer in order.contributors] == ["a", "b"]
    assert len(order.order) == 4, "all four decide, and two of them are no majority without c"


def test_a_device_that_comes_in_the_middle_gets_the_model_later() -> None:
    desk = _desk(LIMIT, A, B, C)
    for peer in (A, B, C):
        desk.hold(peer)
    desk.report(D, lineage=desk.reports[A].lineage, digest=desk.reports[A].digest)
    _merge_all(desk)
    desk.promise(A, B, C, D)
    assert D not in desk.last(BroadcastOrdered).order
