"""The ledger of a round, from reports alone, also after a takeover (docs/protocol-hops.md, fault rules 1 to 4)."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from mdl.peers.roles.agent.gathering import has_been_left, recover
from mdl.peers.roles.agent.ledger import Hop, HopState, RoundLedger
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import room_for
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Activity, Holding, HopDecision, HopOutcome, Incoming, TrainingReport

A, B, C, D = (Contributor(name, 1) for name in "abcd")
TERM = 3
# Of the rounds' grids: for as many devices.
ROOM = room_for(4.0)


def _ledger(*members: Contributor) -> RoundLedger:
    return RoundLedger(1, frozenset(members or (A, B, C, D)), TERM)


def _tell(
    ledger: RoundLedger,
    member: Contributor,
    holds: tuple[Contributor, ...] | None = None,
    sent_hop: int | None = None,
    merged: tuple[Hop, ...] = (),
    aborted: tuple[Hop, ...] = (),
    term: int = TERM,
    open_round: int = 1,
    reason: str = "",
    sent_to: Contributor | None = None,
    heard: bool = True,
) -> list[Hop]:
    """A report: it holds its own delta and `holds`, has given it to `sent_hop`, and has decided hops.

    heard: it has heard of the round from the agent of this ledger.
    """
    decisions = [HopDecision(hop.hop_id, hop.sender, HopOutcome.MERGED, 1.0, 40) for hop in merged]
    decisions += [HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED, reason=reason) for hop in aborted]
    contributors = tuple(sorted({member, *(holds or ())}))
    holding = None if holds is None else Holding(float(len(contributors)), contributors, sent_hop, sent_to)
    report = PeerReport(
        1, 0, 0, b"", "s", "m", 4, Activity.HOLDING, open_round, term, holding=holding, hops=tuple(decisions)
    )
    report = msgspec.structs.replace(report, open_as=ledger.term if heard else TERM - 1)
    return ledger.take(member, report, 1.0)


def _ready(*members: Contributor) -> RoundLedger:
    ledger = _ledger(*members)
    for member in ledger.members:
        _tell(ledger, member, ())
    return ledger


def _hop(ledger: RoundLedger, sender: Contributor, receiver: Contributor) -> Hop:
    return ledger.order_hop(sender, receiver, "because", 2.0)


def test_only_reports_of_members_about_this_opening_of_the_round_count() -> None:
    ledger = _ledger(A, B)
    _tell(ledger, C, ())
    _tell(ledger, A, (), term=TERM - 1)
    _tell(ledger, B, (), open_round=2)
    assert ledger.reports == {}
    _tell(ledger, A, (), term=TERM + 1)
    assert ledger.reports == {}
    _tell(ledger, A, ())
    assert ledger.holders() == [A]


def test_a_sum_with_work_of_a_lost_device_is_unproven_unless_its_checksum_was_told_or_nobody_has_another_one() -> None:
    ledger = _ready()
    _tell(ledger, B, (A, C), merged=(_hop(ledger, A, B), (hop := _hop(ledger, C, B))))
    _tell(ledger, C, (), hop.hop_id)
    assert ledger.unproven() == []
    ledger.lose(A, "gone")
    assert ledger.unproven() == [B]
    told = msgspec.structs.replace(ledger.reports[A], checksum=7)
    ledger.reports[A] = told
    ledger.answers.clear()
    assert ledger.unproven() == []
    ledger.reports[A] = msgspec.structs.replace(told, checksum=None)
    _tell(ledger, C, (A, B))
    _tell(ledger, D, (A, B, C))
    assert ledger.unproven() == [], "all have it"


def test_hop_ids_of_different_terms_never_meet() -> None:
    first, second = RoundLedger(1, frozenset([A, B]), 1), RoundLedger(1, frozenset([A, B]), 2)
    assert _hop(first, A, B).hop_id != _hop(second, A, B).hop_id


def test_rule_1_only_the_receiver_decides_a_hop_and_only_once() -> None:
    ledger = _ready()
    hop = _hop(ledger, A, B)
    assert _tell(ledger, A, (), merged=(hop,)) == []
    assert _tell(ledger, B, (A,), merged=(hop,)) == [hop]
    assert _tell(ledger, B, (A,), merged=(hop,)) == []
    _tell(ledger, B, (A,), aborted=(hop,))
    assert hop.state is HopState.MERGED


def test_one_partner_at_a_time_both_ends_of_a_hop_are_taken() -> None:
    ledger = _ready()
    _hop(ledger, A, B)
    assert ledger.free() == [C, D]
    assert ledger.holders() == [A, B, C, D]


def test_a_merged_sender_answers_for_nothing_even_if_its_own_report_is_late() -> None:
    ledger = _ready()
    _tell(ledger, B, (A,), merged=(_hop(ledger, A, B),))
    assert ledger.holders() == [B, C, D]
    assert ledger.to_release() == []


def test_an_aborted_hop_gives_the_sender_its_delta_back() -> None:
    ledger = _ready()
    hop = _hop(ledger, A, B)
    _tell(ledger, A, (), sent_hop=hop.hop_id)
    assert ledger.to_release() == []
    _tell(ledger, B, (), aborted=(hop,))
    assert ledger.to_release() == [hop]
    _tell(ledger, A, ())
    assert ledger.to_release() == []
    assert ledger.free() == [A, B, C, D]


def test_what_somebody_had_given_to_it_without_an_order_is_held_again() -> None:
    """The sender cannot know which hops are ordered; a receiver that asks for another one has not merged it."""
    ledger = _ready()
    _tell(ledger, A, (), sent_hop=12345, sent_to=D)
    (released,) = ledger.to_release()
    assert (released.sender, released.hop_id, released.receiver) == (A, 12345, D)
    ledger.lose(D, "silent")
    assert [hop.hop_id for hop in ledger.to_release()] == [12345]


def test_what_its_receiver_fetches_for_another_agent_is_not_held_again_before_it_has_decided() -> None:
    """Two in office: the receiver heard the other one's order, then this one's round, and says what it is about."""
    ledger = _ready()
    report = msgspec.structs.replace(ledger.reports[D], incoming=Incoming(12345, A))
    ledger.take(D, report, 2.0)
    _tell(ledger, A, (), sent_hop=12345, sent_to=D)
    assert (ledger.to_release(), ledger.free()) == ([], [B, C])
    (hop,) = ledger.undecided()
    assert (hop.sender, hop.receiver, hop.hop_id) == (A, D, 12345)
    _tell(ledger, D, aborted=(hop,), holds=())
    assert ledger.to_release() == [hop]


def test_who_says_that_it_fetches_from_ever_others_binds_one_of_them() -> None:
    ledger = _ready()
    for hop_id, sender in enumerate((A, B, C) * 100, 12345):
        ledger.take(D, msgspec.structs.replace(ledger.reports[D], incoming=Incoming(hop_id, sender)), 2.0)
    assert (len(ledger.hops), ledger.free()) == (1, [B, C])


def test_a_device_that_fetches_from_who_is_in_no_round_is_to_give_that_up_first() -> None:
    """For another agent: with it the load of others may come, who are not freed before."""
    ledger = _ready(A, B)
    _tell(ledger, A, (), sent_hop=12344, sent_to=C)
    ledger.take(B, msgspec.structs.replace(ledger.reports[B], incoming=Incoming(12345, C)), 2.0)
    (hop,) = ledger.undecided()
    assert (ledger.to_cancel(), ledger.free(), ledger.to_release()) == ([hop], [], [])
    _tell(ledger, B, aborted=(hop,), holds=(B,))
    assert (ledger.to_cancel(), ledger.free()) == ([], [B])
    assert [released.hop_id for released in ledger.to_release()] == [12344]


def test_an_order_of_another_agent_is_known_beside_one_of_this() -> None:
    ledger = _ready()
    hop = _hop(ledger, A, D)
    ledger.take(D, msgspec.structs.replace(ledger.reports[D], incoming=Incoming(12345, B)), 2.0)
    assert {each.hop_id for each in ledger.undecided()} == {hop.hop_id, 12345}


def test_what_was_given_to_who_may_have_merged_for_another_agent_since_is_not_held_again_before_it_tells() -> None:
    ledger = _ready()
    _tell(ledger, D, (), heard=False)
    _tell(ledger, A, (), sent_hop=12345, sent_to=D)
    assert ledger.to_release() == []
    _tell(ledger, D, (A,))
    assert (ledger.to_release(), ledger.holders()) == ([], [B, C, D])


def test_a_hop_that_somebody_else_was_given_is_cancelled_at_its_receiver() -> None:
    ledger = _ready()
    hop = _hop(ledger, A, B)
    _tell(ledger, A, (), sent_hop=hop.hop_id, sent_to=B)
    assert ledger.to_cancel() == []
    _tell(ledger, A, (), sent_hop=hop.hop_id, sent_to=D)
    assert ledger.to_cancel() == [hop]


def test_another_senders_hop_of_the_same_number_frees_nobody_and_cancels_nothing() -> None:
    """A member can ask for what nobody ordered, and give that any number."""
    ledger = _ready(A, B, D)
    hop = _hop(ledger, A, B)
    _tell(ledger, D, (), sent_hop=hop.hop_id, sent_to=A)
    assert ledger.to_cancel() == []
    (released,) = ledger.to_release()
    assert (released.sender, released.hop_id) == (D, hop.hop_id)
    _tell(ledger, B, aborted=(hop,), holds=(B,))
    assert [each.sender for each in ledger.to_release()] == [D]


def test_a_hop_of_a_lost_sender_is_to_be_cancelled_and_may_turn_out_merged() -> None:
    ledger = _ready()
    hop = _hop(ledger, A, B)
    ledger.lose(A, "silent")
    assert ledger.to_cancel() == [hop]
    _tell(ledger, B, (A,), merged=(hop,))
    assert ledger.to_cancel() == []
    assert ledger.live() == [B, C, D]


def test_rule_3_a_lost_receivers_sender_is_freed_when_nobody_carries_its_load() -> None:
    ledger = _ready()
    hop = _hop(ledger, A, B)
    _tell(ledger, A, (), sent_hop=hop.hop_id)
    ledger.lose(B, "silent")
    assert ledger.to_release() == [hop]


def test_rule_3_a_sender_stays_bound_while_a_live_peer_carries_its_load() -> None:
    ledger = _ready()
    first = _hop(ledger, A, B)
    _tell(ledger, A, (), sent_hop=first.hop_id)
    _tell(ledger, B, (A,), merged=(first,))
    second = _hop(ledger, B, C)
    _tell(ledger, B, (A,), sent_hop=second.hop_id, merged=(first,))
    _tell(ledger, C, (A, B), merged=(second,))
    ledger.lose(B, "silent")
    assert ledger.to_release() == []
    assert ledger.holders() == [C, D]


def _chain_of_two_lost() -> tuple[RoundLedger, Hop, Hop]:
    """a -> b -> c -> d with b and c lost; whether c -> d was merged, d has not said yet."""
    ledger = _ready()
    first = _hop(ledger, A, B)
    _tell(ledger, A, (), sent_hop=first.hop_id)
    _tell(ledger, B, (A,), merged=(first,))
    second = _hop(ledger, B, C)
    _tell(ledger, C, (A, B), merged=(second,))
    third = _hop(ledger, C, D)
    ledger.lose(B, "silent")
    ledger.lose(C, "silent")
    return ledger, first, third


def test_rule_3_the_search_goes_as_deep_as_the_hops_and_waits_for_the_undecided() -> None:
    ledger, _, third = _chain_of_two_lost()
    assert ledger.to_release() == []
    assert ledger.to_cancel() == [third]


def test_rule_3_deep_if_the_last_hop_merged_the_first_sender_stays_bound() -> None:
    ledger, _, third = _chain_of_two_lost()
    _tell(ledger, D, (A, B, C), merged=(third,))
    assert ledger.to_release() == []
    assert ledger.holders() == [D]
    assert ledger.result() == D


def test_rule_3_deep_if_the_last_hop_was_aborted_the_first_sender_is_freed() -> None:
    ledger, first, third = _chain_of_two_lost()
    _tell(ledger, D, (), aborted=(third,))
    assert ledger.to_release() == [first]


def test_rule_3_deep_a_lost_receivers_merge_that_was_never_heard_of_counts_as_possible() -> None:
    """b never said that it merged a's load, but an order let it pass it on."""
    ledger = _ready()
    first = _hop(ledger, A, B)
    _tell(ledger, A, (), sent_hop=first.hop_id)
    _hop(ledger, B, C)
    ledger.lose(B, "silent")
    assert ledger.to_release() == []


def test_a_lost_member_stays_lost_for_the_round() -> None:
    ledger = _ready()
    ledger.lose(A, "silent")
    ledger.lose(A, "left")
    _tell(ledger, A, (B,))
    assert ledger.lost == {A: "silent"}
    assert A not in ledger.holders()


def test_the_result_has_every_live_member_in_it_and_nothing_under_way() -> None:
    ledger = _ready(A, B, C)
    assert ledger.result() is None
    _tell(ledger, B, (A,), merged=(_hop(ledger, A, B),))
    last = _hop(ledger, B, C)
    assert ledger.result() is None
    _tell(ledger, C, (A, B), merged=(last,))
    assert ledger.result() == C


def test_a_sole_holder_is_no_result_while_another_member_still_trains() -> None:
    ledger = _ledger(A, B)
    _tell(ledger, A, ())
    _tell(ledger, B)
    assert ledger.result() is None
    ledger.lose(B, "silent")
    assert ledger.result() == A


def test_the_result_may_hold_more_than_the_living() -> None:
    ledger = _ready(A, B)
    _tell(ledger, B, (A,), merged=(_hop(ledger, A, B),))
    ledger.lose(A, "silent")
    assert ledger.result() == B


def test_a_round_is_settled_when_only_an_order_can_change_it() -> None:
    ledger = _ledger(A, B, C)
    _tell(ledger, A, ())
    _tell(ledger, B, ())
    assert not ledger.is_settled()
    _tell(ledger, C, ())
    assert ledger.is_settled()
    hop = _hop(ledger, A, B)
    assert not ledger.is_settled()
    _tell(ledger, A, (), sent_hop=hop.hop_id)
    _tell(ledger, B, (), aborted=(hop,))
    assert not ledger.is_settled()
    _tell(ledger, A, ())
    assert ledger.is_settled()


# -- members that hold the round up -----------------------------------------------------------------------------------


def _failed(ledger: RoundLedger, sender: Contributor, receiver: Contributor, reason: str = "nothing came") -> Hop:
    """A hop that was ordered, aborted and released."""
    hop = _hop(ledger, sender, receiver)
    _tell(ledger, receiver, (), aborted=(hop,), reason=reason)
    return hop


def test_the_next_try_goes_the_other_way() -> None:
    ledger = _ready(A, B)
    _failed(ledger, A, B)
    assert ledger.next_try() == (B, A)
    _failed(ledger, B, A)
    assert ledger.next_try() == (A, B)


def test_the_next_try_is_the_pair_that_failed_least() -> None:
    ledger = _ready(A, B, C)
    _failed(ledger, A, B)
    _failed(ledger, A, C)
    assert set(ledger.next_try()) == {B, C}


def test_failures_count_either_way_and_only_hops_between_these_two() -> None:
    ledger = _ready(A, B, C)
    _failed(ledger, A, B)
    _failed(ledger, B, A)
    _failed(ledger, A, C)
    assert (ledger.failures(A, B), ledger.failures(B, A), ledger.failures(C, B)) == (2, 2, 0)


def test_two_that_failed_once_are_tried_again_before_one_of_them_is_lost() -> None:
    ledger = _ready(A, B)
    _failed(ledger, A, B)
    assert ledger.lose_the_unable() == {}
    _failed(ledger, B, A)
    assert ledger.lose_the_unable() == {B: "its partners are out of its reach"}
    assert ledger.lost == {B: "its partners are out of its reach"}
    assert ledger.result() == A


def test_of_two_out_of_each_others_reach_the_one_that_holds_less_is_lost() -> None:
    ledger = _ready(A, B, C)
    _tell(ledger, B, (C,), merged=(_hop(ledger, C, B),))
    for sender, receiver in ((A, B), (B, A)):
        hop = _hop(ledger, sender, receiver)
        _tell(ledger, receiver, (C,) if receiver == B else (), aborted=(hop,))
    assert set(ledger.lose_the_unable()) == {A}
    assert ledger.result() == B


def test_who_can_still_be_paired_with_another_is_not_out_of_reach() -> None:
    ledger = _ready(A, B, C)
    for pair in ((A, B), (B, A)):
        _failed(ledger, *pair)
    assert ledger.lose_the_unable() == {}
    assert C in ledger.next_try()


def test_whose_partial_mean_was_refused_is_lost() -> None:
    ledger = _ready(A, B)
    _failed(ledger, A, B, "refused: values that are not finite or beyond 1e+06")
    assert ledger.lose_the_unable() == {A: "its partial sum was refused"}
    assert ledger.lose_the_unable() == {}


def test_a_delta_refused_because_it_would_count_twice_is_no_fault_of_its_sender() -> None:
    ledger = _ready(A, B)
    _failed(ledger, A, B, "refused: b would count twice")
    assert ledger.lose_the_unable() == {}


def test_of_two_holders_that_share_contributors_the_smaller_is_lost() -> None:
    """Two agents have ordered at the same time."""
    ledger = _ready()
    _tell(ledger, B, (A, C))
    _tell(ledger, D, (A,))
    _tell(ledger, A, (), sent_hop=1)
    _tell(ledger, C, (), sent_hop=2)
    assert ledger.lose_the_unable() == {D: "its partial sum overlaps with that of b"}
    assert ledger.holders() == [B]
    assert ledger.to_release() == []


def test_who_was_freed_and_went_on_holds_beside_the_one_that_has_what_it_had_given() -> None:
    ledger = _ready()
    _tell(ledger, A, (C,))  # for an agent that had lost it, and freed c
    _tell(ledger, B, sent_hop=1)
    _tell(ledger, C, (A, B, D))  # a's own had come by way of d
    _tell(ledger, D, (A,), sent_hop=2)
    assert ledger.lose_the_unable() == {}
    assert ledger.holders() == [C]
    assert ledger.result() == C


def test_of_two_that_hold_the_very_same_the_first_answers_for_it() -> None:
    ledger = _ready(A, B)
    _tell(ledger, A, (B,))
    _tell(ledger, B, (A,))
    assert ledger.holders() == [A]
    assert ledger.result() == A


def test_of_two_that_had_given_away_each_others_load_the_one_with_more_of_it_holds_again() -> None:
    ledger = _ready(A, B, C)
    for sender, holds in ((A, (B, C)), (B, (A,)), (C, ())):
        _tell(ledger, sender, holds, _hop(ledger, sender, D).hop_id)
    assert [hop.sender for hop in ledger.to_release()] == [A]


def test_a_sender_holds_again_if_its_receiver_gave_its_load_to_a_lost_one_and_is_carried_itself() -> None:
    ledger = _ready()
    hop = _hop(ledger, B, C)
    on = _hop(ledger, C, D)
    _tell(ledger, B, (), sent_hop=hop.hop_id)
    _tell(ledger, C, (B,), sent_hop=on.hop_id, merged=(hop,))
    ledger.lose(D, "gone")
    assert ledger.to_release() == [on]  # b's load is in c's
    _tell(ledger, A, (C,))  # what c had given before an agent freed it
    assert ledger.to_release() == [hop]
    assert ledger.holders() == [A]


def test_where_nothing_is_to_come_there_is_a_result_or_a_pair_to_order_whatever_devices_have_said() -> None:
    settled = 0
    for seed in range(2000):
        draw = random.Random(seed)
        members = [Contributor(name, 1) for name in "abcdef"[: draw.randint(2, 6)]]
        ledger = _ledger(*members)
        ledger.is_recovered = draw.random() < 0.5
        hops = [_hop(ledger, *draw.sample(members, 2)) for _ in range(draw.randint(0, 7))]
        for member in members:
            given = [hop for hop in hops if hop.sender == member and draw.random() < 0.7]
            sent_hop, sent_to = (given[-1].hop_id, given[-1].receiver) if given else (None, None)
            merged = tuple(hop for hop in hops if hop.receiver == member and draw.random() < 0.6)
            others = tuple(hop for hop in hops if hop.receiver == member and draw.random() < 0.8 and hop not in merged)
            holds = {hop.sender for hop in merged} | {other for other in members if draw.random() < 0.15}
            _tell(ledger, member, tuple(holds), sent_hop, merged, others, sent_to=sent_to)
        for member in members:
            if draw.random() < 0.25:
                ledger.lose(member, "gone")
        while ledger.lose_the_unable():
            pass
        if ledger.live() and ledger.is_settled():
            settled += 1
            assert ledger.result() or len(ledger.free()) >= 2, seed
    assert settled > 500


def test_theta_is_right_if_it_is_the_sum_of_what_its_contributors_reported() -> None:
    ledger = _ledger(A, B)
    for peer, theta in ((A, 3.0), (B, 4.0)):
        report = PeerReport(
            1, 0, 0, b"", "s", "m", 4, Activity.HOLDING, 1, TERM, training=TrainingReport(0.5, 8, 1.0, theta)
        )
        ledger.take(peer, report, 1.0)
    assert ledger.is_theta_right(Holding(7.0, (A, B)))
    assert not ledger.is_theta_right(Holding(8.0, (A, B)))
    assert not ledger.is_theta_right(Holding(7.0, (A,)))


def test_a_theta_with_a_weight_that_was_never_reported_cannot_be_judged() -> None:
    assert _ready(A, B).is_theta_right(Holding(9.0, (A, B)))


# -- an agent that took over ------------------------------------------------------------------------------------------

ATTEMPT, NEWER = 3, 9


def _says(
    member: Contributor,
    *others: Contributor,
    given: tuple[int, Contributor] | None = None,
    incoming: tuple[int, Contributor] | None = None,
    merged: tuple[tuple[int, Contributor], ...] = (),
    aborted: tuple[tuple[int, Contributor], ...] = (),
    attempt: int = ATTEMPT,
) -> PeerReport:
    """What a member tells a new agent about round 1. given, incoming, merged, aborted: hop id and the other end."""
    hop_id, receiver = given or (None, None)
    contributors = tuple(sorted({member, *others}))
    decisions = [HopDecision(number, sender, HopOutcome.MERGED) for number, sender in merged]
    decisions += [HopDecision(number, sender, HopOutcome.ABORTED) for number, sender in aborted]
    return PeerReport(
        1,
        NEWER,
        0,
        b"",
        "s",
        "m",
        4,
        Activity.HOLDING,
        1,
        attempt,
        incoming=Incoming(*incoming) if incoming else None,
        holding=Holding(float(len(contributors)), contributors, hop_id, receiver),
        hops=tuple(decisions),
        room=ROOM,
    )


def _recovered(*reports: tuple[Contributor, PeerReport]) -> RoundLedger:
    return recover(1, ATTEMPT, NEWER, dict(reports), 5.0)


def test_a_new_agent_goes_on_with_the_round_that_was_opened_and_orders_under_its_own_term() -> None:
    ledger = _recovered((A, _says(A)), (B, _says(B)))
    assert (ledger.attempt, ledger.term, ledger.members) == (ATTEMPT, NEWER, {A, B})
    assert ledger.free() == [A, B]
    assert _hop(ledger, A, B).hop_id > NEWER * 1_000_000


def test_hops_that_were_decided_under_another_agent_stand() -> None:
    ledger = _recovered((A, _says(A, given=(7, B))), (B, _says(B, A, merged=((7, A),))), (C, _says(C)))
    assert ledger.hops[7].state is HopState.MERGED
    assert (ledger.holders(), ledger.to_release()) == ([B, C], [])


def test_a_hop_under_way_is_known_from_its_receiver_alone() -> None:
    ledger = _recovered((A, _says(A)), (B, _says(B, incoming=(7, A))))
    assert [(hop.hop_id, hop.sender, hop.receiver) for hop in ledger.undecided()] == [(7, A, B)]
    assert ledger.free() == []
    _tell(ledger, B, (A,), merged=tuple(ledger.undecided()))
    assert ledger.result() == B


def test_a_sender_whose_receiver_knows_nothing_of_the_hop_holds_again() -> None:
    ledger = _recovered((A, _says(A, given=(7, B))), (B, _says(B)))
    assert ledger.to_release() == []  # it may have merged for another agent since it told
    _tell(ledger, B)
    assert [hop.hop_id for hop in ledger.to_release()] == [7]
    assert ledger.undecided() == []


def test_a_sender_whose_receiver_aborted_holds_again() -> None:
    ledger = _recovered((A, _says(A, given=(7, B))), (B, _says(B, aborted=((7, A),))))
    assert [hop.hop_id for hop in ledger.to_release()] == [7]


def test_a_sender_whose_receiver_is_lost_holds_again_if_nothing_can_bring_its_load_any_more() -> None:
    ledger = _recovered((A, _says(A, given=(7, B))), (C, _says(C)))
    assert ledger.lost == {B: "not heard by the new agent"}
    assert ledger.to_release() == []  # c may have merged it since it told
    _tell(ledger, C, ())
    _tell(ledger, A, (), sent_hop=7, sent_to=B)
    assert [hop.hop_id for hop in ledger.to_release()] == [7]


def test_a_sender_whose_receiver_is_no_member_waits_for_all_who_may_carry_its_load() -> None:
    """a gave to x, of which nothing is told; d has a's load from x, and has not said so yet."""
    x = Contributor("x", 1)
    ledger = _recovered((A, _says(A)), (D, _says(D)))
    _tell(ledger, A, (), sent_hop=7, sent_to=x)
    assert ledger.to_release() == []
    _tell(ledger, D, (A, x))
    assert ledger.to_release() == []
    again = _recovered((A, _says(A)), (D, _says(D)))
    _tell(again, A, (), sent_hop=7, sent_to=x)
    _tell(again, D, ())
    assert [hop.hop_id for hop in again.to_release()] == [7]


def test_a_sender_whose_receiver_is_lost_waits_for_the_undecided_hop_of_a_lost_sender() -> None:
    """a gave to b, b to c: b is lost, and c does not yet know whether it has b's load, with a's in it."""
    reports = ((A, _says(A, given=(7, B))), (C, _says(C, incoming=(8, B))))
    ledger = _recovered(*reports)
    assert ([hop.hop_id for hop in ledger.to_cancel()], ledger.to_release()) == ([8], [])
    _tell(ledger, C, (A, B), merged=tuple(ledger.to_cancel()))
    assert (ledger.to_release(), ledger.holders(), ledger.result()) == ([], [C], C)
    again = _recovered(*reports)
    _tell(again, C, (), aborted=tuple(again.to_cancel()))
    _tell(again, A, (), sent_hop=7, sent_to=B)
    assert [hop.hop_id for hop in again.to_release()] == [7]


def test_a_sender_stays_bound_if_somebody_alive_carries_its_load_however_it_came_there() -> None:
    ledger = _recovered((A, _says(A, given=(7, B))), (D, _says(D, A, B, C, merged=((9, C),))))
    assert set(ledger.lost) == {B, C}
    assert (ledger.to_release(), ledger.holders(), ledger.result()) == ([], [D], D)


def test_who_began_the_round_as_another_attempt_is_a_member_that_has_told_nothing_yet() -> None:
    ledger = _recovered((A, _says(A)), (B, _says(B, attempt=ATTEMPT - 1)))
    assert (ledger.live(), set(ledger.reports), ledger.result()) == ([A, B], {A}, None)


def test_two_agents_orders_at_the_same_time_cost_the_smaller_holder_its_place_and_nobody_counts_twice() -> None:
    ledger = _recovered(
        (A, _says(A, given=(7, B))),
        (B, _says(B, A, merged=((7, A),))),
        (C, _says(C, D, A, merged=((8, D), (9, A)))),
        (D, _says(D, given=(8, C))),
    )
    assert set(ledger.lose_the_unable()) == {B}
    assert (ledger.holders(), ledger.to_release(), ledger.result()) == ([C], [], C)


def test_nobody_goes_on_with_an_attempt_that_somebody_here_has_left() -> None:
    """b may have merged a's delta, have stood elsewhere for a while, and have come back."""
    there = {A: _says(A, given=(7, B)), B: _says(B, A, merged=((7, A),))}
    away = _says(B, attempt=0)
    assert not has_been_left(1, ATTEMPT, there)
    assert has_been_left(1, ATTEMPT, there | {B: msgspec.structs.replace(away, entered=(ATTEMPT - 1, ATTEMPT))})
    assert not has_been_left(1, ATTEMPT, there | {B: away}), "it was never in it"
    assert not has_been_left(1, ATTEMPT, there | {Contributor("b", 2): away}), "it was started anew"


def test_who_has_left_an_attempt_that_must_go_on_is_no_member_of_it_any_more() -> None:
    """Its result is staged somewhere, so it may be closed: who would begin it again holds something else now."""
    away = msgspec.structs.replace(_says(B, attempt=0), entered=(ATTEMPT,))
    ledger = _recovered((A, _says(A, B)), (B, away), (C, _says(C, attempt=0)))
    assert (ledger.live(), set(ledger.lost)) == ([A, C], {B})


def test_a_round_that_goes_on_takes_no_device_that_its_grid_has_no_room_for() -> None:
    def says(who: Contributor, **told: Any) -> tuple[Contributor, PeerReport]:
        return who, msgspec.structs.replace(_says(who, attempt=0), **told)

    ledger = _recovered((A, msgspec.structs.replace(_says(A), room=2)), says(B, theta=1.5), says(C, theta=1.0), says(D))
    assert (ledger.room, ledger.live(), set(ledger.lost)) == (2, [A, C], {B, D})
