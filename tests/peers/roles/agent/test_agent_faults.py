"""The mobile agent when it takes over, when a majority is missing, and when histories of the mesh meet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mdl.peers.roles.agent.conductor import Phase
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish, StopRequested
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    HopCancelled,
    HopReleased,
    MeshFinished,
    PeerReport,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import (
    MAX_FORKS,
    Activity,
    Fork,
    Holding,
    Incoming,
    Lineage,
    LineagePoint,
    ResourceState,
    RoundEvaluation,
    Staged,
    Transfer,
)
from tests.peers.roles.desk import FRESH, A, B, C, D, Desk

START: Lineage = (Fork(0, 3, "agent.1.1"),)
SPLIT = (*START, Fork(2, 1, "c.1.9"))
SETTLED = msgspec.structs.replace(
    FRESH, round_id=4, digest=b"w4", lineage=START, base=("a", "b", "c"), votes=True, goal=0
)
PARTITION_S = AgentSettings().partition_s
ALONE_S = AgentSettings().alone_s


def _mesh(*peers: Contributor, **settings: Any) -> Desk:
    """A mesh of a, b and c at w4; only these are heard."""
    desk = Desk(**{"rounds": 0} | settings)
    for peer in peers:
        desk.reports[peer] = SETTLED
        desk.report(peer)
    return desk


def _opened_by(term: int, *peers: Contributor) -> dict[Contributor, PeerReport]:
    """Round 5 of a, b and c is open from an earlier agent; each holds its own delta."""
    open_round: dict[str, Any] = {"open_round": 5, "open_term": term, "open_as": term, "activity": Activity.HOLDING}
    return {peer: msgspec.structs.replace(SETTLED, **open_round, holding=Holding(1.0, (peer,))) for peer in peers}


def _take_over(reports: dict[Contributor, PeerReport], **settings: Any) -> Desk:
    """All of these were heard as long as nobody led; now they obey, one after the other."""
    desk = Desk(**{"rounds": 0} | settings)
    desk.reports |= reports
    for agent in ("", "agent"):
        for peer in reports:
            desk.report(peer, agent=agent)
    return desk


# -- taking over ------------------------------------------------------------------------------------------------------


def test_a_new_agent_waits_for_those_it_heard_to_obey_it_because_they_may_still_follow_another() -> None:
    desk = _mesh(A, B)
    assert desk.agent.phase is Phase.AGGREGATING
    desk = Desk(rounds=0)
    for peer in (A, B, C):
        desk.reports[peer] = SETTLED
    desk.report(C, agent="other")
    desk.report(A)
    desk.report(B)
    assert (desk.agent.phase, desk.agent.waiting_for) == (Phase.GATHERING, "c to answer")
    desk.report(C, agent="agent")
    assert desk.last(RoundOpened).members == (A, B, C)


def test_who_does_not_come_to_obey_is_waited_for_half_as_long_as_a_silence() -> None:
    desk = Desk(rounds=0, lost_after_s=4.0)
    for peer in (A, B, C):
        desk.reports[peer] = SETTLED
    desk.report(C, agent="other")
    desk.report(A)
    desk.report(B)
    desk.pass_time(1.5, A, B, C)
    assert desk.agent.phase is Phase.GATHERING
    desk.pass_time(1.0, A, B, C)
    assert desk.last(RoundOpened).members == (A, B)


def test_the_round_that_another_agent_opened_is_finished_and_not_trained_again() -> None:
    desk = _take_over(_opened_by(40, A, B, C))
    assert desk.agent.attempt() == (5, 40)
    opened = desk.last(RoundOpened)
    assert (opened.attempt, opened.term > 40, opened.members) == (40, True, (A, B, C))
    (hop,) = desk.hops()
    assert hop.term == opened.term


def test_a_hop_that_another_agent_ordered_is_waited_for() -> None:
    reports = _opened_by(40, A, B, C)
    receiving = {"incoming": Incoming(7, A), "activity": Activity.RECEIVING}
    reports[B] = msgspec.structs.replace(reports[B], **receiving)
    desk = _take_over(reports)
    assert [(hop.hop_id, hop.sender) for hop in desk.hops()] == [(7, A)]


def test_what_was_given_to_a_device_that_is_gone_is_held_again() -> None:
    reports = _opened_by(40, A, B, C)
    reports[A] = msgspec.structs.replace(reports[A], holding=Holding(1.0, (A,), 7, C))
    del reports[C]
    desk = _take_over(reports)
    assert desk.told(HopReleased) == []  # somebody may have its work since the last report
    for peer in (A, B):
        desk.report(peer, open_as=desk.agent.term, term=desk.agent.term)
    assert (desk.told(HopReleased), desk.last(HopReleased).hop_id) == (["a"], 7)
    assert desk.agent.live_members() == [A, B]


def test_a_hop_whose_sender_is_gone_is_cancelled_before_anybody_holds_again() -> None:
    reports = _opened_by(40, A, B, C)
    reports[A] = msgspec.structs.replace(reports[A], holding=Holding(1.0, (A,), 7, C))
    reports[B] = msgspec.structs.replace(reports[B], incoming=Incoming(8, C), activity=Activity.RECEIVING)
    del reports[C]
    desk = _take_over(reports)
    assert (desk.told(HopCancelled), desk.told(HopReleased)) == (["b"], [])


def test_a_result_that_an_earlier_agent_left_with_one_member_becomes_the_rounds() -> None:
    """It may be closed elsewhere: nothing else may be made of this round."""
    reports = _opened_by(40, A, B, C)
    staged = Staged(b"delta", 2.0, (A, B), 40, 1)
    reports[B] = msgspec.structs.replace(reports[B], staged=staged, activity=Activity.STAGED)
    desk = _take_over(reports)
    assert desk.told(BroadcastOrdered) == []  # under its older term, another agent's may still be followed
    desk.promise(A, C)
    order = desk.last(BroadcastOrdered)
    assert (order.order[0], order.digest, order.contributors, order.theta) == (B, b"delta", (A, B), 2.0)
    assert set(order.order) == {A, B, C}
    assert order.term > 40
    assert desk.hops() == []


def test_a_result_that_comes_to_light_while_the_round_is_aggregated_becomes_the_rounds() -> None:
    desk = _take_over(_opened_by(40, A, B))
    assert len(desk.hops()) == 1
    staged = Staged(b"delta", 3.0, (A, B, C), 40, 1)
    desk.reports[C] = msgspec.structs.replace(_opened_by(40, C)[C], staged=staged, activity=Activity.STAGED)
    desk.report(C)
    desk.promise(A, B)
    order = desk.last(BroadcastOrdered)
    assert (order.order[0], order.digest, order.contributors) == (C, b"delta", (A, B, C))


def test_of_two_results_that_were_left_the_later_orders_is_taken() -> None:
    reports = _opened_by(40, A, B, C)
    for peer, digest, term, version in ((A, b"old", 40, 3), (C, b"new", 50, 1), (B, b"older", 40, 2)):
        staged = Staged(digest, 2.0, (A, B), term, version)
        reports[peer] = msgspec.structs.replace(reports[peer], staged=staged, activity=Activity.STAGED)
    desk = _take_over(reports)
    desk.promise(A, B, C)
    order = desk.last(BroadcastOrdered)
    assert (order.order[0], order.digest) == (C, b"new")


def test_what_was_staged_before_the_promise_is_proposed() -> None:
    """A newer result that another agent left, after this one was first obeyed, must become the round's."""
    reports = _opened_by(40, A, B, C)
    staged = Staged(b"old", 2.0, (A, B), 40, 1)
    reports[A] = msgspec.structs.replace(reports[A], staged=staged, activity=Activity.STAGED)
    desk = _take_over(reports)
    desk.promise(A)
    assert desk.told(BroadcastOrdered) == []
    desk.report(B, term=desk.agent.term, staged=Staged(b"new", 2.0, (A, B), 50, 1), activity=Activity.STAGED)
    assert (desk.last(BroadcastOrdered).order[0], desk.last(BroadcastOrdered).digest) == (B, b"new")


def test_a_promise_to_an_earlier_agent_must_be_given_again() -> None:
    reports = _opened_by(40, A, B, C)
    staged = Staged(b"delta", 3.0, (A, B, C), 40, 1)
    for peer in reports:
        reports[peer] = msgspec.structs.replace(reports[peer], staged=staged, activity=Activity.STAGED)
    desk = _take_over(reports)
    desk.promise(A, B, C)
    assert (desk.agent.phase, desk.told(RoundClosed)) == (Phase.BROADCASTING, [])
    for peer in reports:
        desk.stage(peer)
    assert (desk.agent.phase, sorted(desk.told(RoundClosed))) == (Phase.CLOSING, ["a", "b", "c"])


def test_a_round_that_some_have_applied_is_over_for_the_new_agent() -> None:
    reports = _opened_by(40, A, B)
    reports[C] = msgspec.structs.replace(SETTLED, round_id=5, digest=b"w5")
    desk = _take_over(reports)
    target = desk.last(CatchUp)
    assert (set(desk.told(CatchUp)), target.source, target.round_id) == ({"a", "b"}, C, 5)
    assert desk.told(RoundOpened) == []


def test_the_goal_is_known_to_a_successor() -> None:
    desk = Desk(rounds=3)
    for peer in (A, B, C):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, goal=6)
        desk.report(peer)
    assert desk.last(RoundOpened).planned_rounds == 6


def test_a_successor_sends_everybody_home_when_the_goal_has_been_reached() -> None:
    desk = Desk(rounds=3)
    for peer in (A, B, C):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, goal=4)
        desk.report(peer)
    assert desk.told(RoundOpened) == []
    assert sorted(set(desk.told(MeshFinished))) == ["a", "b", "c"]
    for peer in (A, B, C):
        desk.report(peer, activity=Activity.LEFT)
    assert desk.finish is not None
    assert desk.finish.exit_code == 0


def test_who_missed_the_last_word_takes_the_model_along_before_it_goes_home() -> None:
    """Also those who have the model stay until then: they are where it comes from."""
    reports = dict.fromkeys((A, B, C), msgspec.structs.replace(SETTLED, goal=4))
    reports[C] = msgspec.structs.replace(reports[C], round_id=3, digest=b"w3")
    desk = _take_over(reports, rounds=3)
    desk.pass_time(2.0, A, B, C)
    assert (desk.told(MeshFinished), set(desk.told(CatchUp))) == ([], {"c"})
    desk.report(C, round_id=4, digest=b"w4")
    assert sorted(set(desk.told(MeshFinished))) == ["a", "b", "c"]


def test_a_run_is_over_for_all_though_one_device_cannot_fetch_the_last_model() -> None:
    reports = dict.fromkeys((A, B, C), msgspec.structs.replace(SETTLED, goal=4))
    reports[C] = msgspec.structs.replace(reports[C], round_id=3, digest=b"w3")
    desk = _take_over(reports, rounds=3, farewell_s=20.0)
    desk.pass_time(19.0, A, B, C)
    assert (desk.told(MeshFinished), desk.finish) == ([], None)
    desk.pass_time(2.0, A, B, C)
    assert sorted(desk.told(MeshFinished)) == ["a", "b", "c"]
    assert desk.finish == Finish("", 0)


def test_a_promise_for_another_result_of_the_same_term_must_be_given_again() -> None:
    """The first result is lost with its only holder, who comes back after another one has been ordered."""
    reports = _opened_by(40, A, B, C)
    whole = Holding(3.0, (A, B, C))
    reports[A] = msgspec.structs.replace(reports[A], activity=Activity.HOLDING, holding=whole)
    for peer in (B, C):
        given = Holding(1.0, (peer,), 7, A)
        reports[peer] = msgspec.structs.replace(reports[peer], activity=Activity.SENT, holding=given)
    desk = _take_over(reports)
    desk.promise(A, B, C)
    first = desk.last(BroadcastOrdered)
    desk.stage(A)
    conducted = desk.agent.round
    assert conducted is not None
    conducted._lose_result(desk.now)
    desk.pass_time(1.0, A, B, C)
    again = desk.last(BroadcastOrdered)
    assert (again.term, again.version > first.version, again.digest) == (first.term, True, b"delta")
    for peer in (B, C):
        desk.stage(peer)
    assert desk.agent.phase is Phase.BROADCASTING  # a's is a promise of the first order
    desk.stage(A)
    assert desk.agent.phase is Phase.CLOSING


def test_who_speaks_above_a_fork_asks_for_every_promise_again() -> None:
    desk = _take_over(_opened_by(40, A, B, C))
    term = desk.agent.term
    assert desk.agent.round is not None
    desk.agent.rise_above(term + 1_000_000, desk.now)
    assert (desk.agent.round, desk.agent.following()) == (None, [])
    for peer in (A, B):
        desk.report(peer, term=desk.agent.term)
    assert desk.agent.round is None  # c was heard, and has not answered yet
    desk.report(C, term=desk.agent.term)
    assert desk.agent.round is not None
    assert desk.agent.attempt()[1] == 40


# -- a higher term ----------------------------------------------------------------------------------------------------


def test_the_agent_resigns_when_a_device_of_its_lineage_obeys_a_higher_term() -> None:
    desk = _mesh(A, B, C)
    desk.report(A, agent="other", term=desk.agent.term + 1)
    assert desk.agent.resigned


@pytest.mark.parametrize("obeyed", ["", "d"])
def test_the_agent_speaks_above_the_term_of_a_fork_to_be_heard_there(obeyed: str) -> None:
    desk = _mesh(A, B)
    higher = desk.agent.term + 5
    desk.reports[C] = msgspec.structs.replace(SETTLED, lineage=SPLIT, round_id=9, digest=b"w9", base=("c",))
    desk.report(C, agent=obeyed, term=higher)
    assert (desk.agent.resigned, desk.agent.term > higher) == (False, True)


def test_the_agent_goes_on_beside_one_that_hears_nobody_however_often_that_calls_under_a_higher_term() -> None:
    """It hears this one no more than the others: to rise above it each time would give each open round up."""
    desk = _mesh(A, B)
    term, opened = desk.agent.term, desk.agent.ledger
    desk.reports[C] = msgspec.structs.replace(SETTLED, lineage=SPLIT, round_id=9, digest=b"w9", base=("c",))
    desk.report(C, agent="c", term=term + 5)
    assert (desk.agent.resigned, desk.agent.term, desk.agent.ledger) == (False, term, opened)


def test_the_agent_of_a_junior_lineage_without_a_majority_resigns_for_a_senior_one() -> None:
    desk = Desk(rounds=0)
    fork = msgspec.structs.replace(SETTLED, lineage=SPLIT, base=("b", "c", "d"))
    desk.reports[C] = fork
    desk.report(C)
    assert (desk.agent.lineage, desk.agent.quorum) == (SPLIT, False)
    desk.reports[A] = SETTLED
    desk.report(A, agent="other", term=desk.agent.term + 9)
    assert desk.agent.resigned


# -- without a majority -----------------------------------------------------------------------------------------------


def test_a_majority_of_those_who_contributed_last_goes_on_without_the_others() -> None:
    opened = _mesh(A, C).last(RoundOpened)
    assert (opened.round_id, opened.members, opened.lineage, opened.base) == (5, (A, C), START, ("a", "b", "c"))


def test_who_vanished_between_two_rounds_is_named_in_the_next_ones_line_and_in_no_other() -> None:
    desk = _mesh(A, B)  # of a, b and c, who contributed to the last round
    for round_id in (5, 6):
        for peer in (A, B):
            desk.hold(peer)
        hop = desk.hops()[-1]
        desk.merge(hop, desk.receiver_of(hop))
        for peer in (A, B):
            desk.stage(peer)
        for peer in (A, B):
            desk.apply(peer)
        for peer in (A, B):
            desk.report(peer, evaluation=RoundEvaluation(round_id, no_evaluation(1)))
    assert [(summary.round, summary.lost) for summary in desk.recorded] == [(5, ("c",)), (6, ())]


def test_a_minority_waits_for_the_others_and_then_goes_on_as_a_fork() -> None:
    desk = _mesh(B, min_peers=1)
    assert (desk.agent.phase, desk.agent.waiting_for) == (Phase.GATHERING, "a, c: 1 of 3 members are here")
    desk.pass_time(PARTITION_S - 1, B)
    assert desk.told(RoundOpened) == []
    desk.pass_time(1.5, B)
    opened = desk.last(RoundOpened)
    assert (opened.round_id, opened.members, opened.base) == (5, (B,), ("b",))
    assert opened.lineage[:-1] == START
    fork = opened.lineage[-1]
    assert (fork.round_id, fork.size, fork.name.startswith("agent.1.")) == (4, 1, True)
    assert desk.agent.lineage == opened.lineage


def test_a_minority_whose_user_wants_it_to_wait_waits_for_ever() -> None:
    desk = _mesh(B, min_peers=1, waits_for_majority=True)
    desk.pass_time(10 * PARTITION_S, B)
    assert desk.told(RoundOpened) == []
    desk.reports[A] = SETTLED
    desk.report(A)
    assert desk.last(RoundOpened).lineage == START


def test_a_minority_that_is_joined_in_time_does_not_fork() -> None:
    desk = _mesh(B, min_peers=1)
    desk.pass_time(PARTITION_S - 1, B)
    desk.reports[C] = SETTLED
    desk.report(C)
    assert desk.last(RoundOpened).lineage == START
    assert desk.last(RoundOpened).members == (B, C)


def test_an_even_split_goes_on_where_the_smallest_id_is() -> None:
    base = ("a", "b", "c", "d")
    sides = []
    for side in ((A, D), (B, C)):
        desk = Desk(rounds=0)
        for peer in side:
            desk.reports[peer] = msgspec.structs.replace(SETTLED, base=base)
            desk.report(peer)
        sides.append(desk.agent.phase)
    assert sides == [Phase.AGGREGATING, Phase.GATHERING]


def test_a_majority_of_one_waits_for_a_partner_and_then_goes_on_without_a_fork() -> None:
    desk = Desk(rounds=0)
    desk.reports[A] = msgspec.structs.replace(SETTLED, base=("a", "b"))
    desk.report(A)
    assert desk.agent.waiting_for == "b: 1 of 2 members are here"
    assert desk.agent.held_up_by == "b: 1 of 2 members are here; up to 15 s, then without"
    desk.pass_time(PARTITION_S + 0.5, A)
    assert desk.last(RoundOpened).lineage == START


def test_devices_that_forgot_what_they_voted_for_make_no_majority_even_if_everybody_is_here() -> None:
    base = ("a", "b", "c", "d")
    reports = dict.fromkeys((A, B, C), msgspec.structs.replace(SETTLED, base=base))
    reports[A] = msgspec.structs.replace(reports[A], votes=False)
    desk = _take_over(reports)
    desk.pass_time(5.0, A, B, C)
    assert (desk.agent.phase, desk.agent.quorum) == (Phase.GATHERING, False)
    desk.reports[D] = msgspec.structs.replace(SETTLED, base=base, votes=False)
    desk.report(D)
    desk.pass_time(1.0, A, B, C, D)
    assert desk.told(RoundOpened) == []
    desk.pass_time(PARTITION_S + 0.5, A, B, C, D)
    assert desk.last(RoundOpened).lineage[:-1] == START


def test_a_mesh_forks_no_deeper_than_a_message_can_tell() -> None:
    desk = Desk(rounds=0, min_peers=1)
    deep = tuple(Fork(number, 1, "x") for number in range(MAX_FORKS))
    desk.reports[B] = msgspec.structs.replace(SETTLED, lineage=deep)
    desk.report(B)
    desk.pass_time(3 * PARTITION_S, B)
    assert desk.told(RoundOpened) == []
    why = "this mesh has gone on without its others 1,024 times, and does so no more; however long that takes"
    assert desk.agent.held_up_by.endswith(why)


@pytest.mark.parametrize("waits", [True, False])
def test_what_a_group_waits_for_and_how_long_is_told_as_it_is(waits: bool) -> None:
    desk = Desk(rounds=0, waits_for_majority=waits)
    base = ("a", "b", "c")
    desk.reports[A] = msgspec.structs.replace(SETTLED, base=base)
    desk.report(A)
    how_long = "however long that takes" if waits else "up to 15 s, then without"
    assert desk.agent.held_up_by == f"b, c: 1 of 3 members are here; {how_long}"
    for peer in (B, C):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, base=base, votes=False)
        desk.report(peer)
    told = "3 of 3 members are here, but b, c may not decide: started anew, with what they had agreed to lost"
    assert desk.agent.held_up_by == f"{told}; up to 15 s, then without"
    desk.pass_time(PARTITION_S + 0.5, A, B, C)
    assert desk.last(RoundOpened).lineage[:-1] == START


def test_who_has_had_a_later_result_and_came_back_does_not_decide_on_it_again() -> None:
    """All who decide are here, but two of them can have closed the next round elsewhere: a fork begins."""
    desk = Desk(rounds=0)
    for peer in (B, C, D):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, base=("b", "c", "d"), votes=peer is D)
        desk.report(peer)
    assert desk.told(RoundOpened) == []
    desk.pass_time(PARTITION_S + 0.5, B, C, D)
    assert desk.last(RoundOpened).lineage[:-1] == START


# -- histories that meet ----------------------------------------------------------------------------------------------


def _forked(
    *peers: Contributor, lineage: Lineage = SPLIT, base: tuple[str, ...] = ("c",)
) -> dict[Contributor, PeerReport]:
    report = msgspec.structs.replace(SETTLED, lineage=lineage, base=base, round_id=9, digest=b"w9")
    return dict.fromkeys(peers, report)


def test_rule_8_who_comes_back_from_a_fork_is_brought_to_the_senior_lineage_though_it_is_further() -> None:
    desk = _take_over(_forked(C) | dict.fromkeys((A, B), SETTLED))
    target = desk.last(CatchUp)
    assert set(desk.told(CatchUp)) == {"c"}
    assert (target.round_id, target.digest, target.lineage, target.base) == (4, b"w4", START, ("a", "b", "c"))
    assert target.source in (A, B)


def test_a_fork_that_has_its_majority_goes_on_before_a_senior_rump() -> None:
    reports = _forked(B, C, base=("b", "c", "d")) | {A: msgspec.structs.replace(SETTLED, base=("a", "x", "y"))}
    desk = _take_over(reports)
    assert (desk.agent.lineage, desk.last(RoundOpened).members) == (SPLIT, (B, C))
    assert desk.told(CatchUp) == []  # the others of the senior lineage may come as well
    desk.pass_time(PARTITION_S + 0.5, A, B, C)
    assert set(desk.told(CatchUp)) == {"a"}


def _who_has_lost_its_model() -> PeerReport:
    """On the trunk it has had the result of round 4, and its disk has nothing."""
    return msgspec.structs.replace(FRESH, forgotten=(LineagePoint(START[-1].name, 4),))


def test_who_has_lost_the_model_of_a_trunk_that_went_on_is_left_to_those_who_may_have_it() -> None:
    """A fork that began before would have its vote, and the trunk's last rounds would be left behind."""
    desk = _take_over(_forked(B, C, base=("b", "c")) | {A: _who_has_lost_its_model()})
    assert desk.last(RoundOpened).members == (B, C)
    assert desk.told(CatchUp) == []
    desk.pass_time(PARTITION_S + 0.5, A, B, C)  # nobody else of the trunk has come
    assert set(desk.told(CatchUp)) == {"a"}


def test_who_has_lost_its_model_counts_for_the_lineage_whose_model_is_here() -> None:
    reports = _forked(B, C, base=("b", "c")) | {D: msgspec.structs.replace(SETTLED, base=("a", "d"))}
    assert _take_over(reports).agent.lineage == SPLIT
    desk = _take_over(reports | {A: _who_has_lost_its_model()})
    assert (desk.agent.lineage, set(desk.told(CatchUp))) == (START, {"a", "b", "c"})


def test_of_two_forks_that_have_their_majorities_the_larger_goes_on() -> None:
    large, small = (*START, Fork(2, 2, "z")), (*START, Fork(2, 1, "a"))
    desk = _take_over(_forked(C, lineage=small) | _forked(A, B, lineage=large, base=("a", "b")))
    assert (desk.agent.lineage, set(desk.told(CatchUp))) == (large, {"c"})


def test_a_device_without_any_history_never_makes_the_mesh_begin_anew() -> None:
    desk = Desk(rounds=0)
    for peer in (B, C, D):
        desk.report(peer, agent="other")
    desk.reports[A] = SETTLED
    for peer in (A, B, C, D):
        desk.report(peer, agent="agent")
    assert (desk.agent.lineage, set(desk.told(CatchUp))) == (START, {"b", "c", "d"})


# -- whom a late device asks ------------------------------------------------------------------------------------------


def _late(desk: Desk) -> None:
    desk.reports[C] = msgspec.structs.replace(SETTLED, round_id=3, digest=b"w3")


def test_rule_7_a_device_that_comes_back_is_sent_to_the_least_busy_one() -> None:
    desk = Desk(rounds=0)
    _late(desk)
    resources = {
        A: ResourceState(9 << 30, 1.0, in_use=True),
        B: ResourceState(1 << 30, 1.0),
        D: ResourceState(5 << 30, 1.0),
    }
    for peer, state in resources.items():
        desk.reports[peer] = msgspec.structs.replace(SETTLED, resources=state, agent="other")
        desk.report(peer)
    for peer in (*resources, C):
        desk.report(peer, agent="agent")
    assert desk.last(CatchUp).source == D


def test_a_source_that_sends_nothing_is_replaced_by_the_next_one() -> None:
    desk = Desk(rounds=0)
    _late(desk)
    for peer in (C, A, B):
        desk.reports.setdefault(peer, SETTLED)
        desk.report(peer)
    first = desk.last(CatchUp).source
    desk.pass_time(4.5, A, B, C)
    assert desk.last(CatchUp).source == first
    desk.pass_time(1.0, A, B, C)
    assert {first, desk.last(CatchUp).source} == {A, B}


def test_a_source_that_is_sending_is_kept() -> None:
    desk = Desk(rounds=0)
    _late(desk)
    for peer in (C, A, B):
        desk.reports.setdefault(peer, SETTLED)
        desk.report(peer)
    first = desk.last(CatchUp).source
    for step in range(40):
        desk.report(C, transfer=Transfer("a", step, 40))
        desk.pass_time(0.5, A, B)
    assert {message.source for _, message in desk.said if isinstance(message, CatchUp)} == {first}


def test_a_device_that_stays_late_does_not_hold_up_the_mesh_and_is_still_helped() -> None:
    desk = Desk(rounds=0)
    _late(desk)
    for peer in (C, A, B):
        desk.reports.setdefault(peer, SETTLED)
        desk.report(peer)
    desk.pass_time(11.0, A, B, C)
    assert desk.last(RoundOpened).members == (A, B)
    desk.said.clear()
    desk.pass_time(1.0, A, B, C)
    assert set(desk.told(CatchUp)) == {"c"}


def test_a_stop_in_the_middle_of_everything_is_a_stop() -> None:
    desk = _take_over(_opened_by(40, A, B, C))
    desk.hand(StopRequested())
    assert sorted(set(desk.told(MeshFinished))) == ["a", "b", "c"]
    assert desk.agent.attempt() == (0, 0)


def test_a_device_alone_waits_once_for_a_partner_and_then_goes_on_at_its_own_pace() -> None:
    desk = Desk(rounds=0)
    desk.reports[A] = msgspec.structs.replace(SETTLED, base=("a", "b"))
    desk.report(A)
    assert desk.told(RoundOpened) == []
    desk.pass_time(PARTITION_S + 0.5, A)
    assert desk.last(RoundOpened).round_id == SETTLED.round_id + 1
    desk.agent.round = None
    began, alone = desk.now, {"base": ("a",), "open_round": 0, "open_term": 0, "open_as": 0}
    desk.report(A, round_id=SETTLED.round_id + 1, digest=b"w5", **alone)
    assert desk.last(RoundOpened).round_id == SETTLED.round_id + 2
    assert desk.now - began < 1.0


def test_a_device_that_hears_somebody_again_waits_for_it() -> None:
    """Else the others, who are on their way to its model, would never be at its round."""
    desk = Desk(rounds=0)
    alone = msgspec.structs.replace(SETTLED, base=("a",))
    desk.reports[A], desk.reports[B] = alone, msgspec.structs.replace(SETTLED, round_id=2, digest=b"w2", agent="")
    desk.report(B)
    desk.report(A)
    desk.pass_time(ALONE_S - 1.0, A)
    assert desk.told(RoundOpened) == []
    desk.pass_time(3.0, A)
    assert desk.last(RoundOpened).members == (A,)


def _cut_off(*here: Contributor) -> Desk:
    """A mesh of four, of which only these are still heard."""
    desk = Desk(rounds=0)
    for peer in (D, C, B, A):
        at = SETTLED if peer in here else msgspec.structs.replace(SETTLED, agent="other")
        desk.reports[peer] = msgspec.structs.replace(at, base=("a", "b", "c", "d"))
        desk.report(peer)
    return desk


def test_a_single_device_that_loses_all_others_waits_a_moment_for_them() -> None:
    desk = _cut_off(A)
    desk.pass_time(ALONE_S, A)
    assert desk.told(RoundOpened) == []
    desk.pass_time(4.0, A)  # after which they count as lost
    assert (desk.last(RoundOpened).members, len(desk.last(RoundOpened).lineage)) == ((A,), len(START) + 1)
    assert desk.now < PARTITION_S


def test_a_group_without_a_majority_waits_longer_than_a_single_device() -> None:
    desk = _cut_off(B, C)
    desk.pass_time(PARTITION_S - 1.0, B, C)
    assert desk.told(RoundOpened) == []
    desk.pass_time(5.0, B, C)
    assert desk.last(RoundOpened).members == (B, C)


def test_the_last_one_after_all_others_have_said_that_they_leave_goes_on_at_once() -> None:
    desk = Desk(rounds=0)
    for peer in (B, C, A):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, base=("a", "b", "c"))
        desk.report(peer, **({} if peer == A else {"activity": Activity.LEFT}))
    desk.pass_time(0.5, A)
    assert desk.last(RoundOpened).members == (A,)


def test_who_is_to_wait_for_a_majority_waits_for_it_also_alone() -> None:
    desk = Desk(rounds=0, waits_for_majority=True)
    for peer in (B, C, A):
        desk.reports[peer] = msgspec.structs.replace(SETTLED, base=("a", "b", "c"))
        desk.report(peer, **({} if peer == A else {"activity": Activity.LEFT}))
    desk.pass_time(PARTITION_S + 5.0, A)
    assert desk.told(RoundOpened) == []


def test_whoever_said_that_it_leaves_is_not_waited_for() -> None:
    desk = Desk(rounds=0)
    desk.reports[A], desk.reports[B] = msgspec.structs.replace(SETTLED, base=("a",)), SETTLED
    desk.report(B, activity=Activity.LEFT)
    desk.report(A)
    assert desk.last(RoundOpened).members == (A,)
