"""The mobile agent on a good day, and a round in which devices fail: hand reports, orders compared."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mdl.peers.roles.agent.conductor import Phase
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish, Received, Send, StopRequested, Tick
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    HopCancelled,
    HopOrdered,
    HopReleased,
    MemberRefused,
    MeshFinished,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from mdl.protocol.vocabulary import (
    Activity,
    Fork,
    Holding,
    HopDecision,
    HopOutcome,
    PeerInfo,
    Role,
    RoundEvaluation,
    TrainingReport,
)
from tests.peers.roles.desk import A, B, C, D, Desk


def _aggregated(**settings: Any) -> Desk:
    """Two devices whose one hop is merged: the broadcast is ordered."""
    desk = Desk(**settings)
    desk.start(A, B)
    (hop,) = desk.hops()
    desk.merge(hop, desk.receiver_of(hop))
    return desk


# -- gathering --------------------------------------------------------------------------------------------------------


def test_the_first_round_waits_for_min_peers() -> None:
    desk = Desk(min_peers=3)
    desk.report(A)
    desk.report(B)
    assert desk.agent.phase is Phase.GATHERING
    assert desk.agent.waiting_for == "1 more of 3 devices: nobody else is found"
    desk.report(C)
    assert desk.agent.phase is Phase.AGGREGATING
    opened = desk.last(RoundOpened)
    assert (opened.round_id, opened.digest, opened.members, opened.planned_rounds) == (1, b"w0", (A, B, C), 1)
    assert desk.told(RoundOpened) == ["a", "b", "c"]


def test_who_is_waited_for_is_named_and_why_it_is_no_help() -> None:
    desk = Desk(min_peers=6)
    for peer in (A, B, C, D):
        desk.report(peer)
    desk.report(B, schema_hash="other", model="alexnet")
    desk.report(C, away="on battery")
    desk.report(D, activity=Activity.LEFT)
    desk.agent.members.found = {"eve": PeerInfo("eve", 1, Role.TRAINER, "10.0.0.5", 7300)}
    desk.pass_time(20.0, B, C)
    told = desk.agent.waiting_for
    for part in (
        "6 more of 6 devices: ",
        "a has fallen silent",
        "b is refused: ",
        "c is paused (on battery)",
        "d has left",
        "eve is found and does not answer",
    ):
        assert part in told


def test_a_split_is_told_by_who_is_not_heard_and_since_when() -> None:
    desk = Desk(min_peers=2, rounds=0)
    for peer in (A, B, C):
        desk.report(peer)
    assert _status(desk).cuts == ()
    desk.agent.lineage = ()
    desk.pass_time(9.0, A, B)
    (told,) = _status(desk).cuts
    assert re.fullmatch(r"not heard: c for 1\d s", told)
    desk.agent.lineage = (Fork(7, 2, "a.1.9"),)
    (told,) = _status(desk).cuts
    assert told.endswith("; this side goes on by itself since round 7")


def _status(desk: Desk) -> MeshStatus:
    effects = desk.hand(Received(Contributor("eye", 1), StatusWanted()), 1.0)
    return next(each.message for each in effects if isinstance(each, Send) and isinstance(each.message, MeshStatus))


def test_a_round_is_announced_again_until_each_members_report_shows_it() -> None:
    desk = Desk()
    desk.report(A)
    desk.report(B)
    desk.join(A)
    desk.said.clear()
    desk.hand(Tick(), 0.6)
    assert desk.told(RoundOpened) == ["b"]


def test_the_same_is_not_said_again_within_the_retry_interval() -> None:
    desk = Desk()
    desk.report(A)
    desk.report(B)
    desk.said.clear()
    desk.hand(Tick(), 0.2)
    assert desk.said == []


def test_another_model_is_refused_naming_both_also_while_a_round_runs() -> None:
    desk = Desk()
    desk.start(A, B)
    desk.report(C, schema_hash="other", model="alexnet", size=99)
    refused = desk.last(MemberRefused)
    assert refused.reason == "your model (alexnet, 99 values) differs from the mesh's (lenet, 10 values)"
    assert desk.told(MemberRefused) == ["c"]


def test_who_stands_at_an_older_model_is_sent_to_one_who_has_the_newest() -> None:
    desk = Desk()
    desk.report(A, round_id=4, digest=b"w4")
    desk.report(B, round_id=2, digest=b"w2")
    assert desk.last(CatchUp) == CatchUp(desk.agent.term, 4, b"w4", A)
    assert desk.told(CatchUp) == ["b"]
    desk.report(B, round_id=4, digest=b"w4")
    assert desk.last(RoundOpened).round_id == 5


def test_a_round_waits_for_a_newcomer_that_fetches_the_model_but_not_for_ever() -> None:
    desk = Desk()
    desk.report(C, round_id=0, digest=b"old")
    desk.report(A, round_id=4, digest=b"w4")
    desk.report(B, round_id=4, digest=b"w4")
    assert desk.agent.waiting_for == "1 more to fetch the model"
    for _ in range(25):
        for peer in (A, B, C):
            desk.report(peer, after_s=0.15)
    assert desk.last(RoundOpened).members == (A, B)


def test_who_stands_at_a_later_round_of_no_lineage_is_brought_to_the_meshs_model() -> None:
    """It has the file cache of another time: a mesh that has begun is senior to it."""
    desk = Desk(rounds=2)
    desk.start(A, B)
    desk.report(C, round_id=9, digest=b"w9")
    desk.merge(desk.hops()[0], desk.receiver_of(desk.hops()[0]))
    for peer in (A, B):
        desk.stage(peer)
    for peer in (A, B):
        desk.apply(peer)
    assert desk.last(CatchUp).round_id == 1
    assert set(desk.told(CatchUp)) == {"c"}
    lineage = desk.reports[A].lineage
    desk.report(C, round_id=1, digest=b"w1", lineage=lineage, base=("a", "b"))
    opened = desk.last(RoundOpened)
    assert (opened.round_id, opened.members, opened.base, opened.lineage) == (2, (A, B, C), ("a", "b"), lineage)


def test_a_term_higher_than_its_own_makes_the_agent_speak_above_it_and_ask_everybody_anew() -> None:
    """It was started anew, and its devices remember an earlier time in office."""
    desk = Desk()
    desk.report(A, term=7)
    desk.report(B, term=3)
    assert desk.agent.term > 7
    assert desk.told(RoundOpened) == []
    for peer in (A, B):
        desk.report(peer, term=desk.agent.term)
    first = desk.last(RoundOpened)
    assert first.term > 7


def test_each_round_has_a_term_of_its_own() -> None:
    desk = _aggregated(rounds=2)
    first = desk.last(RoundOpened)
    for peer in (A, B):
        desk.stage(peer)
    for peer in (A, B):
        desk.apply(peer)
    second = desk.last(RoundOpened)
    assert (second.round_id, second.term > first.term, second.attempt) == (2, True, second.term)


# -- aggregating ------------------------------------------------------------------------------------------------------


def test_a_pair_is_ordered_as_soon_as_two_hold_while_others_still_train() -> None:
    desk = Desk(min_peers=3)
    for peer in (A, B, C):
        desk.report(peer)
    desk.hold(C)
    assert desk.hops() == []
    desk.hold(A)
    (hop,) = desk.hops()
    assert {hop.sender, desk.receiver_of(hop)} == {A, C}


def test_a_device_is_in_one_hop_at_a_time_and_several_hops_run_at_once() -> None:
    desk = Desk(min_peers=4)
    desk.start(A, B, C, D)
    ends = [peer for hop in desk.hops() for peer in (hop.sender, desk.receiver_of(hop))]
    assert sorted(ends) == [A, B, C, D]
    desk.hand(Tick(), 0.6)
    assert len(desk.hops()) == 2


def test_an_order_is_repeated_until_the_receiver_has_decided() -> None:
    desk = Desk()
    desk.start(A, B)
    (hop,) = desk.hops()
    receiver = desk.receiver_of(hop)
    desk.said.clear()
    desk.hand(Tick(), 0.6)
    assert [said for said in desk.said if isinstance(said[1], HopOrdered)] == [(receiver.peer_id, hop)]
    desk.merge(hop, receiver)
    desk.said.clear()
    desk.hand(Tick(), 0.6)
    assert desk.told(HopOrdered) == []


def test_an_aborted_hop_releases_its_sender_and_is_ordered_anew() -> None:
    desk = Desk()
    desk.start(A, B)
    (hop,) = desk.hops()
    receiver = desk.receiver_of(hop)
    desk.hold(hop.sender, sent_hop=hop.hop_id)
    aborted = HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED, reason="nothing came")
    desk.hold(receiver, hops=(aborted,))
    assert desk.last(HopReleased).hop_id == hop.hop_id
    assert desk.told(HopReleased) == [hop.sender.peer_id]
    desk.hold(hop.sender)
    assert len(desk.hops()) == 2
    assert desk.hops()[1].hop_id != hop.hop_id


def test_a_hop_that_shows_no_sign_of_life_is_cancelled_at_its_receiver() -> None:
    desk = Desk(stall_s=3.0)
    desk.start(A, B)
    (hop,) = desk.hops()
    desk.silence(C, A, B, for_s=3.5)
    assert (desk.last(HopCancelled).hop_id, desk.told(HopCancelled)[0]) == (hop.hop_id, desk.receiver_of(hop).peer_id)


def test_a_receiver_that_receives_is_given_its_time() -> None:
    desk = Desk(stall_s=3.0)
    desk.start(A, B)
    (hop,) = desk.hops()
    desk.hold(desk.receiver_of(hop), activity=Activity.RECEIVING)
    desk.silence(C, A, B, for_s=6.0)
    assert desk.told(HopCancelled) == []


def test_rule_3_a_lost_receivers_sender_is_released() -> None:
    desk = Desk(min_peers=3)
    desk.report(A)
    desk.report(B)
    desk.report(C)
    desk.hold(A)
    desk.hold(B)
    (hop,) = desk.hops()
    sender, receiver = hop.sender, desk.receiver_of(hop)
    desk.hold(sender, sent_hop=hop.hop_id)
    desk.silence(receiver, sender, C)
    assert desk.agent.live_members() == sorted([sender, C])
    assert desk.told(HopReleased)[0] == sender.peer_id


def test_a_hop_whose_sender_is_lost_is_cancelled_at_its_receiver() -> None:
    desk = Desk()
    desk.start(A, B)
    (hop,) = desk.hops()
    receiver = desk.receiver_of(hop)
    desk.silence(hop.sender, receiver)
    assert desk.told(HopCancelled)[0] == receiver.peer_id


def test_rule_4_a_restarted_trainer_is_lost_for_this_round() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    desk.report(Contributor("c", 2))
    assert desk.agent.live_members() == [A, B]


def test_a_policy_that_waits_for_ever_does_not_stop_a_round_that_can_go_on() -> None:
    desk = Desk(min_peers=3, policy="tree")
    for peer in (A, B, C):
        desk.report(peer)
    desk.hold(B)
    desk.hold(C)
    assert desk.hops() == []  # tree: both wait for the root
    desk.silence(A, B, C)
    (hop,) = desk.hops()
    assert {hop.sender, desk.receiver_of(hop)} == {B, C}


# -- broadcasting and closing -----------------------------------------------------------------------------------------


def test_the_last_holder_is_the_root_of_the_broadcast() -> None:
    desk = _aggregated()
    order = desk.last(BroadcastOrdered)
    assert order.order[0] == desk.receiver_of(desk.hops()[0])
    assert (order.version, order.theta, order.contributors) == (1, 2.0, (A, B))
    assert sorted(desk.told(BroadcastOrdered)) == ["a", "b"]
    assert desk.agent.phase is Phase.BROADCASTING


def test_nobody_is_told_to_apply_before_everybody_has_the_result() -> None:
    desk = _aggregated()
    desk.stage(A, A, B)
    assert desk.told(RoundClosed) == []
    desk.stage(B, A, B)
    assert desk.last(RoundClosed).digest == b"delta"
    assert sorted(desk.told(RoundClosed)) == ["a", "b"]


def test_a_root_that_is_lost_before_anyone_staged_makes_the_others_aggregate_again() -> None:
    desk = _aggregated()
    (hop,) = desk.hops()
    root, sender = desk.receiver_of(hop), hop.sender
    desk.hold(sender, sent_hop=hop.hop_id)
    desk.silence(root, sender)
    assert desk.last(HopReleased).hop_id == hop.hop_id
    desk.hold(sender)
    order = desk.last(BroadcastOrdered)
    assert (order.order, order.theta, order.contributors, order.version) == ((sender,), 1.0, (sender,), 2)


def test_a_root_that_is_lost_after_one_staged_leaves_the_broadcast_to_that_one() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    while len(desk.hops()) < 2:
        desk.merge(desk.hops()[0], desk.receiver_of(desk.hops()[0]))
    last = desk.hops()[1]
    root = desk.receiver_of(last)
    desk.merge(last, root, A, B, C)
    others = [peer for peer in (A, B, C) if peer != root]
    desk.stage(others[0], A, B, C)
    desk.silence(root, *others)
    order = desk.last(BroadcastOrdered)
    assert (order.order, order.version, order.contributors) == ((others[0], others[1]), 2, (A, B, C))
    desk.stage(others[1], A, B, C)
    assert desk.agent.phase is Phase.CLOSING


def test_a_round_is_recorded_with_theta_hops_bytes_and_the_summed_evaluations() -> None:
    desk = _aggregated()
    for peer in (A, B):
        desk.stage(peer, A, B)
    counts = (Evaluation((3, 1), (1, 0), (0, 1), 0.5, 5), Evaluation((0, 4), (1, 0), (0, 1), 0.5, 5))
    desk.report(A, training=TrainingReport(0.4, 10, 1.0, clipped=3))
    for peer, evaluation in zip((A, B), counts, strict=True):
        report = RoundEvaluation(1, evaluation)
        desk.apply(peer, training=TrainingReport(0.4, 10, 1.0), evaluation=report)
    (summary,) = desk.recorded
    assert summary.clipped == {"a": 3}
    assert "3 of 10 values of a clipped" in summary.notices
    assert (summary.round, summary.theta, summary.contributors) == (1, 2.0, ("a", "b"))
    assert len(summary.hops) == 1
    assert summary.bytes == 40 + 40
    assert summary.accuracy == pytest.approx(8 / 10)
    assert summary.digest == b"w1".hex()
    assert summary.seconds["total"] == pytest.approx(
        sum(value for phase, value in summary.seconds.items() if phase != "total"), abs=1e-5
    )


def test_the_last_line_waits_for_the_last_evaluation() -> None:
    desk = _aggregated()
    for peer in (A, B):
        desk.stage(peer, A, B)
    for peer in (A, B):
        desk.apply(peer)
    assert (desk.agent.phase, desk.recorded) == (Phase.FINISHING, [])
    evaluation = RoundEvaluation(1, Evaluation((1,), (0,), (0,), 0.1, 1))
    desk.report(A, evaluation=evaluation)
    assert desk.recorded == []
    desk.report(B, evaluation=evaluation)
    assert [summary.accuracy for summary in desk.recorded] == [1.0]
    assert sorted(desk.told(MeshFinished)) == ["a", "b"]


def test_the_agent_finishes_when_everybody_has_left() -> None:
    desk = _aggregated()
    for peer in (A, B):
        desk.stage(peer, A, B)
    evaluation = RoundEvaluation(1, Evaluation((1,), (0,), (0,), 0.1, 1))
    for peer in (A, B):
        desk.apply(peer, evaluation=evaluation)
    desk.report(A, activity=Activity.LEFT)
    assert desk.finish is None
    desk.report(B, activity=Activity.LEFT)
    assert desk.finish == Finish("", 0)
    assert desk.agent.deadline() is None


def test_a_stop_gives_the_open_round_up_and_sends_everybody_home() -> None:
    desk = Desk(stop_s=1.5)
    desk.start(A, B)
    desk.hand(StopRequested())
    assert sorted(desk.told(MeshFinished)) == ["a", "b"]
    desk.hand(StopRequested(), 1.0)
    desk.hand(Tick(), 0.6)
    assert desk.finish == Finish("", 130)
    assert desk.recorded == []


def test_a_round_whose_members_are_all_lost_is_opened_again_under_a_newer_term() -> None:
    desk = Desk()
    desk.start(A, B)
    first = desk.last(RoundOpened)
    desk.hand(Tick(), 5.0)
    assert desk.agent.phase is Phase.GATHERING
    desk.report(A)
    desk.report(B)
    again = desk.last(RoundOpened)
    assert again.round_id == first.round_id == 1
    assert again.term > first.term
    desk.hold(A)
    desk.hold(B)
    assert desk.hops()[1].hop_id != desk.hops()[0].hop_id


def test_one_wrong_evaluation_does_not_hold_up_the_mesh() -> None:
    desk = Desk(min_peers=3)
    desk.start(A, B, C)
    while len(desk.hops()) < 2:
        desk.merge(desk.hops()[0], desk.receiver_of(desk.hops()[0]))
    desk.merge(desk.hops()[1], desk.receiver_of(desk.hops()[1]), A, B, C)
    for peer in (A, B, C):
        desk.stage(peer, A, B, C)
    good, other = Evaluation((1, 0), (0, 0), (0, 0), 0.1, 1), Evaluation((0,), (0, 0, 0), (0,), 0.1, 1)
    for peer, evaluation in ((A, other), (B, good), (C, good)):
        desk.apply(peer, evaluation=RoundEvaluation(1, evaluation))
    assert [summary.accuracy for summary in desk.recorded] == [1.0]


# -- status -----------------------------------------------------------------------------------------------------------


def test_an_observer_gets_the_mesh_as_the_agent_sees_it() -> None:
    desk = Desk(rounds=5)
    desk.start(A, B)
    (effect,) = desk.hand(Received(Contributor("eye", 1), StatusWanted()))
    assert isinstance(effect, Send)
    status = effect.message
    assert isinstance(status, MeshStatus)
    assert (effect.receiver, status.round_id, status.rounds, status.phase, status.policy) == (
        "eye",
        1,
        5,
        "aggregating",
        "fifo",
    )
    assert [(member.peer_id, member.alive, member.theta) for member in status.members] == [
        ("a", True, 1.0),
        ("b", True, 1.0),
    ]
    (hop,) = status.hops
    assert (hop.outcome, hop.decided_s, hop.reason) == ("ordered", None, "fifo: both have been free longest")


def test_a_status_holds_only_the_rounds_that_are_new_to_the_observer() -> None:
    desk = _aggregated()
    for peer in (A, B):
        desk.stage(peer, A, B)
    evaluation = RoundEvaluation(1, Evaluation((1,), (0,), (0,), 0.1, 1))
    for peer in (A, B):
        desk.apply(peer, evaluation=evaluation)
    for since, rounds in ((0, [1]), (1, [])):
        (effect,) = desk.hand(Received(Contributor("eye", 1), StatusWanted(since)))
        assert isinstance(effect, Send)
        assert isinstance(effect.message, MeshStatus)
        assert [summary.round for summary in effect.message.finished] == rounds


def _closing() -> Desk:
    """Both have the result and are told that it stands; then nothing is heard of them for a while."""
    desk = _aggregated()
    for peer in (A, B):
        desk.stage(peer)
    assert desk.agent.phase is Phase.CLOSING
    desk.hand(Tick(), 5.0)
    desk.said.clear()
    return desk


def test_a_result_that_one_has_applied_is_not_made_again_when_all_were_silent() -> None:
    desk = _closing()
    desk.apply(A)
    desk.report(B)
    assert (desk.told(RoundOpened), desk.told(CatchUp), desk.last(CatchUp).source) == ([], ["b"], A)


def test_a_result_that_one_may_have_applied_becomes_the_rounds_when_all_were_silent() -> None:
    desk = _closing()
    desk.report(A)
    desk.report(B)
    desk.promise(A, B)
    order = desk.last(BroadcastOrdered)
    assert (desk.agent.phase, order.digest, order.contributors) == (Phase.BROADCASTING, b"delta", (A, B))
    assert order.term > desk.reports[A].staged.term  # type: ignore[union-attr]
    desk.said.clear()
    for peer in (A, B):
        desk.stage(peer)
    assert sorted(desk.told(RoundClosed)) == ["a", "b"]


def test_a_holder_whose_theta_is_not_the_sum_of_its_contributors_weights_is_out_of_the_round() -> None:
    desk = Desk()
    desk.report(A)
    desk.report(B)
    for peer in (A, B):
        desk.hold(peer, training=TrainingReport(0.5, 10, 1.0, theta=1.0))
    (hop,) = desk.hops()
    receiver = desk.receiver_of(hop)
    decision = HopDecision(hop.hop_id, hop.sender, HopOutcome.MERGED, 1.0, 40)
    given = Holding(1.0, (hop.sender,), hop.hop_id, receiver)
    desk.report(hop.sender, holding=given, activity=Activity.SENT)
    desk.report(receiver, holding=Holding(1.0, (A, B)), hops=(decision,))  # theta was not added
    assert desk.agent.ledger is not None
    assert desk.agent.ledger.lost == {receiver: "wrong theta"}
    assert desk.agent.phase is Phase.AGGREGATING
    assert desk.told(HopReleased) == [hop.sender.peer_id]


def test_one_device_alone_does_not_name_the_end_of_the_run() -> None:
    desk = Desk(rounds=0)
    for peer, goal in ((A, 0), (B, 0), (C, 1)):
        desk.report(peer, goal=goal)
    desk.report(A, round_id=0)
    assert desk.last(RoundOpened).planned_rounds == 0
    assert not desk.told(MeshFinished)


def test_the_end_of_the_run_that_most_devices_know_is_kept() -> None:
    desk = Desk(rounds=0)
    for peer, goal in ((A, 5), (B, 5), (C, 0)):
        desk.report(peer, goal=goal)
    assert desk.last(RoundOpened).planned_rounds == 5
