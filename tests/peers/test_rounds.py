"""The ledger of a round: fault rules 1 to 4, answered from reports alone."""

from __future__ import annotations

from mdl.delta import Contributor
from mdl.messages import Activity, Holding, HopDecision, HopOutcome, PeerReport
from peers.rounds import Hop, HopState, RoundLedger

A, B, C, D = (Contributor(name, 1) for name in "abcd")
TERM = 3


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
) -> list[Hop]:
    """A report: it holds its own delta and `holds`, has given it to `sent_hop`, and has decided hops."""
    decisions = [HopDecision(0, hop.hop_id, HopOutcome.MERGED, 1.0, 40) for hop in merged]
    decisions += [HopDecision(0, hop.hop_id, HopOutcome.ABORTED) for hop in aborted]
    contributors = tuple(sorted({member, *(holds or ())}))
    holdings = () if holds is None else (Holding(0, float(len(contributors)), contributors, sent_hop),)
    report = PeerReport(1, term, 0, b"", "s", "m", 4, Activity.HOLDING, open_round, holdings, tuple(decisions))
    return ledger.hear(member, report, 1.0)


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
    assert ledger.holders() == [A]


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
