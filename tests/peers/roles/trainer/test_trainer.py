"""The device side of Algorithm 1: hand events, effects compared."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from copy import deepcopy

import msgspec
import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import Contributor, ModelDelta, PartialSum, apply_delta, digest_of
from mdl.protocol.grid import Vector, share_of
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Finish,
    KeepDelta,
    LocalDeltaReady,
    RecallDelta,
    Received,
    RecordRound,
    ResourcesSampled,
    SaveModel,
    Send,
    StopRequested,
    Tick,
    TrainLocally,
    TransferProgressed,
    WorkFailed,
)
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    GlobalTaken,
    GlobalWanted,
    HopCancelled,
    HopOrdered,
    HopReleased,
    MemberRefused,
    MeshFinished,
    ModelMessage,
    ModelWanted,
    PeerReport,
    RoundClosed,
    RoundOpened,
    RoundTold,
)
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vector_work import (
    ApplyDelta,
    CountChecksums,
    DeltaApplied,
    HashDelta,
    MergeDeltas,
    apply_result,
    count_checksums,
    hash_delta,
    merge_deltas,
)
from mdl.protocol.vocabulary import Activity, Fork, History, HopOutcome, Incoming, ResourceState, Staged, TrainingReport
from tests.peers.roles.at_once import TrainerAtOnce, as_sent, mean_of, name_of, on_way, sum_of

AGENT = Contributor("agent", 1)
ME, ANN, BOB = Contributor("me", 1), Contributor("ann", 1), Contributor("bob", 1)
MEMBERS = (ANN, BOB, ME)
ZEROS = np.zeros(4, np.float32)
OPENED = RoundOpened(term=1, round_id=1, digest=digest_of(ZEROS), members=MEMBERS, attempt=1, planned_rounds=3)
HOP = HopOrdered(1, 1, 10, ANN)
CANCELLED = HopCancelled(1, 1, 10, ANN)
AFRESH = RoundOpened(2, 1, digest_of(ZEROS), MEMBERS, attempt=2)
START = Fork(0, 3, "agent.1.1")
RESULT = sum_of((0.25, 0.5, 0.75, 1.0), MEMBERS)
OTHER = sum_of((2, 2, 2, 2), MEMBERS)


def _vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def _integers(*sums: int) -> Vector:
    """A sum as it travels."""
    return np.array(sums, np.int32).view(np.float32)


def _trainer(keep_deltas: bool = False, parameters: Vector = ZEROS, round_id: int = 0, theta: float = 1.0) -> Trainer:
    settings = TrainerSettings(keep_deltas=keep_deltas, theta=theta)
    return TrainerAtOnce(ME, parameters, "schema", "lenet", settings, round_id)


def _say(trainer: Trainer, message: Said, now: float, sender: Contributor = AGENT, values: Vector | None = None):  # type: ignore[no-untyped-def]
    return trainer.handle(Received(sender, message, values), now)


def _ready(values: Vector, round_id: int = 1, theta: float = 1.0) -> LocalDeltaReady:
    return LocalDeltaReady(round_id, ModelDelta(values, theta, frozenset([ME])), TrainingReport(0.5, 100, 1.0))


def _holding(keep_deltas: bool = False) -> Trainer:
    trainer = _trainer(keep_deltas)
    _say(trainer, OPENED, 1.0)
    trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    return trainer


def _receiving() -> Trainer:
    trainer = _holding()
    _say(trainer, HOP, 3.0)
    return trainer


def _delta(
    values: Vector, contributors: Iterable[Contributor] = (ANN,), theta: float = 1.0, hop_id: int = 10
) -> tuple[DeltaMessage, Vector]:
    return DeltaMessage(1, hop_id, theta, tuple(contributors)), on_way(values, theta)


def _merge(trainer: Trainer, message: DeltaMessage, values: Vector, now: float = 4.0) -> list[Effect]:
    return trainer.handle(Received(ANN, message, values), now)


def _broadcast(*order: Contributor, version: int = 1, term: int = 1) -> BroadcastOrdered:
    return BroadcastOrdered(term, 1, digest_of(ZEROS), version, order, 3.0, MEMBERS)


def _globally(result: PartialSum, theta: float = 3.0) -> tuple[GlobalMessage, Vector]:
    return GlobalMessage(1, theta, MEMBERS, 1, 1), as_sent(result)


def _staged() -> Trainer:
    trainer = _holding()
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    trainer.handle(Received(ANN, *_globally(RESULT)), 6.0)
    return trainer


def _sent(effects: list[Effect], kind: type[Said] | None = None) -> list[Said]:
    """What was said, or only messages of one kind."""
    said = [effect.message for effect in effects if isinstance(effect, Send)]
    return [each for each in said if kind is None or isinstance(each, kind)]


def _report(trainer: Trainer, now: float = 99.0) -> PeerReport:
    return trainer.report(1, "agent", now)


# -- train ------------------------------------------------------------------------------------------------------------


def test_a_report_is_the_whole_state_and_due_at_least_every_report_interval() -> None:
    trainer = TrainerAtOnce(ME, ZEROS, "schema", "lenet", TrainerSettings(report_s=0.5))
    assert trainer.voice.has_news(0.0)
    report = trainer.report(7, "ann", 0.0)
    assert (report.activity, report.round_id, report.digest, report.size) == (Activity.WAITING, 0, digest_of(ZEROS), 4)
    assert (report.term, report.agent, report.votes, report.lineage) == (7, "ann", False, ())
    assert (trainer.voice.deadline(), trainer.voice.has_news(0.4), trainer.voice.has_news(0.5)) == (0.5, False, True)
    assert trainer.report(7, "ann", 0.5).sequence == report.sequence + 1


def test_an_order_is_answered_by_a_report_and_so_is_the_question_of_a_new_agent() -> None:
    trainer = _trainer()
    _report(trainer, 0.0)
    assert not trainer.voice.has_news(0.1)
    _say(trainer, HopReleased(1, 1, 99), 0.1)
    assert trainer.voice.has_news(0.1)
    _report(trainer, 0.1)
    trainer.voice.say_again()
    assert (trainer.voice.has_news(0.2), trainer.voice.is_due(0.2)) == (True, False)


def test_an_opened_round_is_trained_once_however_often_it_is_announced() -> None:
    trainer = _trainer()
    effects = _say(trainer, OPENED, 1.0)
    (work,) = (effect for effect in effects if isinstance(effect, TrainLocally))
    assert (work.round_id, work.planned_rounds) == (1, 3)
    assert work.parameters is trainer.parameters
    assert _say(trainer, OPENED, 1.1) == []
    report = _report(trainer)
    assert (report.activity, report.open_round, report.open_term) == (Activity.TRAINING, 1, 1)


@pytest.mark.parametrize(
    "opened",
    [
        RoundOpened(1, 1, b"another model", MEMBERS),
        RoundOpened(1, 2, digest_of(ZEROS), MEMBERS),
        RoundOpened(1, 1, digest_of(ZEROS), (ANN, BOB, Contributor("me", 2))),
        RoundOpened(1, 1, digest_of(ZEROS), MEMBERS, lineage=(START, Fork(0, 2, "other"))),
        RoundOpened(1, 1, digest_of(ZEROS), MEMBERS, lineage=(Fork(3, 2, "elsewhere"),)),
    ],
    ids=["another model", "a later round", "another start of this peer", "another lineage", "a fork at another round"],
)
def test_a_round_that_is_not_ours_is_not_trained(opened: RoundOpened) -> None:
    trainer = _trainer()
    assert _say(trainer, opened, 1.0) == []
    assert (trainer.attempt(), trainer.model_state.lineage) == ((0, 0), ())


def test_the_first_round_of_a_lineage_is_entered_and_gives_its_members_a_vote() -> None:
    trainer = _trainer()
    _say(trainer, RoundOpened(1, 1, digest_of(ZEROS), MEMBERS, 1, (START,), ("ann", "bob", "me")), 1.0)
    report = _report(trainer)
    assert (report.lineage, report.base, report.votes) == ((START,), ("ann", "bob", "me"), True)
    assert trainer.attempt() == (1, 1)


def test_another_agent_goes_on_with_the_same_attempt_and_may_add_members() -> None:
    trainer = _trainer()
    _say(trainer, RoundOpened(1, 1, digest_of(ZEROS), (ANN, ME), 1), 1.0)
    trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    assert _sent(_say(trainer, DeltaWanted(1, 1, 20), 2.1, BOB)) == []
    assert _say(trainer, RoundOpened(5, 1, digest_of(ZEROS), MEMBERS, 1), 3.0) == []
    assert trainer.hold().contributors == {ME}
    assert len(_sent(_say(trainer, DeltaWanted(1, 1, 20), 3.1, BOB), DeltaMessage)) == 1


def test_a_round_opened_afresh_uses_the_own_delta_if_nothing_was_merged_into_it() -> None:
    trainer = _holding()
    _say(trainer, DeltaWanted(1, 1, 20), 3.0, BOB)
    assert _say(trainer, AFRESH, 5.0) == []
    assert trainer.attempt() == (1, 2)
    np.testing.assert_array_equal(mean_of(trainer.hold()), _vector(1, 1, 1, 1))
    report = _report(trainer)
    assert (report.activity, report.hops, report.holding.sent_hop) == (Activity.HOLDING, (), None)


def test_a_round_opened_afresh_recalls_the_own_delta_that_has_been_merged_away() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3)))
    (recall,) = _say(trainer, AFRESH, 5.0)
    assert isinstance(recall, RecallDelta)
    assert recall.round_id == 1
    assert recall.parameters is trainer.parameters
    assert _report(trainer).activity is Activity.TRAINING
    trainer.handle(DeltaRecalled(1, _vector(1, 1, 1, 1)), 5.5)
    hold = trainer.hold()
    assert (hold.theta, hold.contributors) == (1.0, {ME})
    np.testing.assert_array_equal(mean_of(hold), _vector(1, 1, 1, 1))


def test_an_attempt_that_was_left_for_another_model_is_not_entered_again_but_a_later_one_is() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3)))
    _say(trainer, CatchUp(1, 3, b"there", ANN, (START,)), 4.0)
    assert _say(trainer, msgspec.structs.replace(OPENED, term=2), 4.1) == []
    assert trainer.attempt() == (0, 0)
    _say(trainer, AFRESH, 4.2)
    assert trainer.attempt() == (1, 2)


def test_nothing_is_given_to_who_is_in_no_round_of_the_agent_that_is_obeyed_now() -> None:
    trainer = _holding()
    _say(trainer, msgspec.structs.replace(OPENED, term=2, members=(ANN, ME)), 2.5)
    assert _sent(_say(trainer, DeltaWanted(1, 1, 20), 3.0, BOB)) == []
    assert len(_sent(_say(trainer, DeltaWanted(1, 1, 21), 3.0, ANN), DeltaMessage)) == 1
    trainer = _holding()
    _say(trainer, msgspec.structs.replace(OPENED, term=2), 2.5)
    assert len(_sent(_say(trainer, DeltaWanted(1, 1, 20), 3.0, BOB), DeltaMessage)) == 1


def test_a_recalled_delta_keeps_the_weight_it_was_trained_with() -> None:
    trainer = _trainer(theta=7.0)
    _say(trainer, OPENED, 1.0)
    trainer.handle(_ready(_vector(0.1, 0.1, 0.1, 0.1), theta=7.0), 2.0)
    _say(trainer, HOP, 3.0)
    _merge(trainer, *_delta(_vector(3, 3, 3, 3)))
    _say(trainer, AFRESH, 5.0)
    trainer.handle(DeltaRecalled(1, _vector(0.1, 0.1, 0.1, 0.1)), 5.5)
    assert trainer.hold().theta == 7.0


def test_a_delta_that_cannot_be_recalled_is_trained_again() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3)))
    _say(trainer, AFRESH, 5.0)
    (work,) = trainer.handle(DeltaRecalled(1, None), 5.5)
    assert isinstance(work, TrainLocally)
    assert work.round_id == 1


def test_a_round_opened_afresh_while_it_trains_waits_for_that_training() -> None:
    trainer = _trainer()
    _say(trainer, OPENED, 1.0)
    assert _say(trainer, AFRESH, 1.5) == []
    trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    assert (trainer.attempt(), trainer.hold().contributors) == ((1, 2), {ME})


def test_theta_and_the_own_contribution_are_born_with_the_local_delta() -> None:
    trainer = _trainer(keep_deltas=True, theta=7.0)
    _say(trainer, OPENED, 1.0)
    ready = _ready(_vector(0.25, 0.5, 0.75, 1), theta=7.0)
    (kept,) = trainer.handle(ready, 2.0)
    assert isinstance(kept, KeepDelta)
    assert (kept.round_id, kept.name, kept.delta.theta) == (1, "own", 7.0)
    assert kept.delta.values.tolist() == [round(7 * value * 2**28) for value in (0.25, 0.5, 0.75, 1)]
    held = trainer.hold().values  # where a result may come, while it is written
    assert not np.shares_memory(kept.delta.values, held)
    assert not np.shares_memory(kept.delta.values, ready.delta.values)
    holding = _report(trainer).holding
    assert (holding.theta, holding.contributors, holding.sent_hop) == (7.0, (ME,), None)
    assert _report(trainer).activity is Activity.HOLDING


def test_a_device_whose_training_failed_leaves_and_holds_nothing() -> None:
    trainer = _trainer()
    _say(trainer, OPENED, 1.0)
    (end,) = trainer.handle(WorkFailed("TrainLocally", "training diverged in round 1: why"), 2.0)
    assert end == Finish("training diverged in round 1: why", 4)
    assert _report(trainer).activity is Activity.LEFT
    assert trainer.hold() is None


# -- receiving --------------------------------------------------------------------------------------------------------


def test_4_3_a_receiver_says_when_it_is_ready_and_asks_again_on_its_timer() -> None:
    trainer = _holding()
    effects = _say(trainer, HOP, 3.0)
    assert effects == [Send("ann", DeltaWanted(1, 1, 10))]
    report = _report(trainer)
    assert (report.activity, report.incoming) == (Activity.RECEIVING, Incoming(10, ANN))
    assert _sent(_say(trainer, HOP, 3.1)) == []
    assert _sent(trainer.handle(Tick(), 4.0)) == [DeltaWanted(1, 1, 10)]


def test_3_2_2_theta_starts_from_1_and_adds_up() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(2.5, 2.5, 2.5, 2.5), (ANN, BOB), theta=2.0))
    hold = trainer.hold()
    assert (hold.theta, hold.contributors) == (3.0, frozenset(MEMBERS))
    np.testing.assert_array_equal(mean_of(hold), _vector(2, 2, 2, 2))


def test_a_receiver_decides_a_hop_once() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3)))
    (decision,) = _report(trainer).hops
    seen = (decision.hop_id, decision.sender, decision.outcome, decision.size_bytes)
    assert seen == (10, ANN, HopOutcome.MERGED, 16)
    held = trainer.hold().values.copy()
    for late in (HOP, CANCELLED, HOP):
        _say(trainer, late, 5.0)
        assert _report(trainer).hops == (decision,)
    assert _merge(trainer, *_delta(_vector(9, 9, 9, 9)), now=5.2) == []
    np.testing.assert_array_equal(trainer.hold().values, held)


def test_a_cancelled_hop_stays_aborted_even_if_its_delta_comes_after_all() -> None:
    trainer = _receiving()
    _say(trainer, CANCELLED, 4.0)
    (decision,) = _report(trainer).hops
    assert (decision.outcome, decision.reason) == (HopOutcome.ABORTED, "cancelled by the agent")
    _merge(trainer, *_delta(_vector(3, 3, 3, 3)))
    assert trainer.hold().contributors == {ME}


def test_a_hop_may_be_cancelled_before_its_order_comes() -> None:
    trainer = _holding()
    _say(trainer, CANCELLED, 3.0)
    assert _sent(_say(trainer, HOP, 3.1)) == []
    assert trainer.part is not None
    assert trainer.part.incoming is None


def test_a_receiver_takes_one_partner_at_a_time() -> None:
    trainer = _receiving()
    _say(trainer, HopOrdered(1, 1, 11, BOB), 3.5)
    (decision,) = _report(trainer).hops
    assert (decision.hop_id, decision.outcome, decision.reason) == (11, HopOutcome.ABORTED, "one partner at a time")


def test_a_receiver_gives_up_a_hop_of_which_nothing_comes() -> None:
    trainer = _receiving()
    trainer.handle(TransferProgressed(ANN, 1, 16), 8.0)
    assert _sent(trainer.handle(Tick(), 13.1)) == [DeltaWanted(1, 1, 10)]
    assert trainer.handle(Tick(), 18.2) == []
    (decision,) = _report(trainer).hops
    assert (decision.outcome, decision.reason) == (HopOutcome.ABORTED, "nothing came for 10 s")


def test_a_delta_of_another_theta_than_its_sender_has_told_is_refused_and_names_it() -> None:
    trainer = _holding()
    _say(trainer, msgspec.structs.replace(HOP, theta=1.0), 3.0)
    with pytest.raises(RemoteProtocolError, match="a delta of ann has theta 3, where it had told 1"):
        _merge(trainer, *_delta(_vector(1, 1, 1, 1), (ANN,), 3.0))
    (decision,) = _report(trainer).hops
    assert decision.outcome is HopOutcome.ABORTED
    assert decision.reason.startswith("refused: a delta of ann")


@pytest.mark.parametrize(
    ("values", "contributors", "theta", "reason"),
    [
        (_integers(1, share_of(1.0, 0) + 2, 1, 1), (ANN,), 1.0, "beyond the share of a weight of 1"),
        (_integers(1, -share_of(1.0, 0) - 2, 1, 1), (ANN,), 1.0, "beyond the share of a weight of 1"),
        (_integers(1, -(2**31), 1, 1), (ANN,), 1.0, "beyond the share of a weight of 1"),
        (_integers(1, share_of(0.5, 0) + 2, 1, 1), (ANN,), 0.5, "beyond the share of a weight of 0.5"),
        (_integers(1, 1, 1), (ANN,), 1.0, "3 values where the model has 4"),
        (_integers(1, 1, 1, 1), (Contributor("eve", 1),), 1.0, "eve is no member"),
        (_integers(1, 1, 1, 1), (Contributor("ann", 2),), 1.0, "ann is no member"),
        (_integers(1, 1, 1, 1), (ANN, ME), 2.0, "me would count twice"),
        (_integers(1, 1, 1, 1), (ANN,), 0.0, "theta 0.0"),
        (_integers(1, 1, 1, 1), (ANN,), float("nan"), "theta nan"),
        (_integers(1, 1, 1, 1), (), 1.0, "0 contributors"),
    ],
)
def test_a_delta_that_would_poison_the_mean_aborts_its_hop_and_says_why(
    values: Vector, contributors: tuple[Contributor, ...], theta: float, reason: str
) -> None:
    trainer = _receiving()
    with pytest.raises(RemoteProtocolError, match=reason):
        _merge(trainer, DeltaMessage(1, 10, theta, contributors), values)
    (decision,) = _report(trainer).hops
    assert decision.outcome is HopOutcome.ABORTED
    assert reason in decision.reason
    hold = trainer.hold()
    assert (hold.theta, hold.contributors) == (1.0, {ME})
    np.testing.assert_array_equal(mean_of(hold), _vector(1, 1, 1, 1))


def test_a_delta_nobody_ordered_is_dropped() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3), hop_id=11))
    trainer.handle(Received(BOB, *_delta(_vector(3, 3, 3, 3))), 4.0)
    assert trainer.hold().contributors == {ME}


def test_a_carrier_message_without_values_is_the_senders_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="DeltaMessage without values"):
        _receiving().handle(Received(ANN, _delta(ZEROS)[0]), 4.0)


# -- sending ----------------------------------------------------------------------------------------------------------


def test_a_sender_gives_its_delta_to_one_hop_until_it_is_released() -> None:
    trainer = _holding()
    first, other = DeltaWanted(1, 1, 20), DeltaWanted(1, 1, 21)
    effects = _say(trainer, first, 3.0, BOB)
    assert _sent(effects) == [DeltaMessage(1, 20, 1.0, (ME,))]
    holding = _report(trainer).holding
    assert (holding.sent_hop, holding.sent_to) == (20, BOB)
    assert trainer.hold() is None
    assert _sent(_say(trainer, first, 3.1, BOB)) == [DeltaMessage(1, 20, 1.0, (ME,))]
    assert _sent(_say(trainer, other, 3.2, ANN)) == []
    _say(trainer, HopReleased(1, 1, 20), 4.0)
    assert _report(trainer).holding.sent_hop is None
    assert _sent(_say(trainer, first, 4.1, BOB)) == []
    assert _sent(_say(trainer, other, 4.2, ANN)) == [DeltaMessage(1, 21, 1.0, (ME,))]
    _say(trainer, HopReleased(1, 1, 20), 4.3)
    assert trainer.hold() is None


@pytest.mark.parametrize("asker", [Contributor("eve", 1), Contributor("bob", 2)], ids=["stranger", "restarted"])
def test_only_members_of_the_round_get_a_delta(asker: Contributor) -> None:
    assert _sent(_say(_holding(), DeltaWanted(1, 1, 20), 3.0, asker)) == []


def test_a_hop_of_a_round_that_was_begun_afresh_is_not_served_any_more() -> None:
    trainer = _holding()
    _say(trainer, AFRESH, 2.5)
    assert _sent(_say(trainer, DeltaWanted(1, 1, 20), 3.0, BOB)) == []
    assert len(_sent(_say(trainer, DeltaWanted(1, 2, 20), 3.0, BOB))) == 1


def test_who_trains_or_receives_gives_nothing_away() -> None:
    training = _trainer()
    _say(training, OPENED, 1.0)
    assert _sent(_say(training, DeltaWanted(1, 1, 20), 1.5, BOB)) == []
    assert _sent(_say(_receiving(), DeltaWanted(1, 1, 20), 3.1, BOB)) == []


def test_what_has_been_given_away_receives_nothing() -> None:
    trainer = _holding()
    _say(trainer, DeltaWanted(1, 1, 20), 3.0, BOB)
    _say(trainer, HOP, 3.5)
    (decision,) = _report(trainer).hops
    assert decision.reason == "its partial sum has been given away"


# -- broadcast --------------------------------------------------------------------------------------------------------


def test_3_2_3_the_root_stages_what_it_holds_and_serves_whoever_waits() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3), (ANN, BOB), theta=2.0))
    assert _sent(_say(trainer, GlobalWanted(1), 4.5, BOB)) == []
    effects = _say(trainer, _broadcast(ME, ANN, BOB), 5.0)
    assert [(e.receiver, e.message) for e in effects] == [("bob", GlobalMessage(1, 3.0, MEMBERS, 1, 1))]  # type: ignore[union-attr]
    assert _report(trainer).activity is Activity.STAGED
    assert _sent(_say(trainer, GlobalWanted(1), 5.1, ANN)) == [GlobalMessage(1, 3.0, MEMBERS, 1, 1)]


@pytest.mark.parametrize(("order", "parent"), [((ANN, ME, BOB), "ann"), ((ANN, BOB, ME), "ann")])
def test_3_2_3_everyone_else_asks_its_parent_in_the_binomial_tree(order: tuple[Contributor, ...], parent: str) -> None:
    trainer = _holding()
    effects = _say(trainer, _broadcast(*order), 5.0)
    assert effects == [Send(parent, GlobalWanted(1))]
    assert _sent(trainer.handle(Tick(), 6.0)) == [GlobalWanted(1)]


def test_whoever_has_the_result_tells_its_parent_that_the_next_childs_turn_has_come() -> None:
    trainer = _holding()
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    effects = trainer.handle(Received(ANN, *_globally(RESULT)), 5.5)
    assert effects == [Send("ann", GlobalTaken(1))]
    named = msgspec.structs.replace(_broadcast(BOB, ME, version=2), digest=name_of(RESULT))
    newer = _say(trainer, named, 6.0)
    assert newer == [Send("bob", GlobalTaken(1))]
    assert _say(trainer, named, 6.5) == []


def test_the_next_child_is_fed_when_the_one_before_it_has_the_result() -> None:
    trainer = _receiving()
    _merge(trainer, *_delta(_vector(3, 3, 3, 3), (ANN, BOB), theta=2.0))
    order = msgspec.structs.replace(_broadcast(ME, ANN, BOB), link_mb_s=(1.0, 1.0, 1.0))
    assert _say(trainer, order, 5.0) == []
    assert _say(trainer, GlobalWanted(1), 5.1, BOB) == []
    (first,) = _say(trainer, GlobalWanted(1), 5.2, ANN)
    (second,) = _say(trainer, GlobalTaken(1), 5.9, ANN)
    assert (first.receiver, second.receiver) == ("ann", "bob")  # type: ignore[union-attr]


def test_a_lost_parent_is_replaced_by_the_next_order_and_an_older_order_changes_nothing() -> None:
    trainer = _holding()
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    newer = _say(trainer, _broadcast(BOB, ME, version=2), 5.5)
    assert newer[-1] == Send("bob", GlobalWanted(1))
    assert _sent(_say(trainer, _broadcast(ANN, ME, BOB), 5.6)) == []
    assert trainer.part is not None
    assert trainer.part.broadcast.parent == BOB


def test_4_4_an_own_delta_that_counts_makes_room_before_the_next_model_is_computed() -> None:
    """Else a sender holds four vectors for a moment: its own delta, the result, w(t) and w(t+1)."""
    trainer, members = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings(), 5), (ANN, BOB, ME)
    _say(trainer, RoundOpened(1, 6, digest_of(ZEROS), members, 1), 1.0)
    trainer.handle(_ready(_vector(1, 1, 1, 1), 6), 2.0)
    _say(trainer, DeltaWanted(6, 1, 20), 3.0, BOB)
    assert trainer.part is not None
    own = weakref.ref(trainer.part.hold.values)
    _say(trainer, BroadcastOrdered(1, 6, digest_of(ZEROS), 1, (ANN, ME, BOB), 3.0, members), 5.0)
    result = as_sent(RESULT)
    trainer.handle(Received(ANN, GlobalMessage(6, 3.0, members, 1, 1), result, digest_of(result)), 6.0)

    assert own() is not None
    (apply,) = _say(trainer, RoundClosed(1, 6, name_of(RESULT)), 7.0)
    assert isinstance(apply, ApplyDelta)
    assert own() is None


def _applying(target: CatchUp | None = None) -> tuple[Trainer, ApplyDelta]:
    """It has heard that the round is closed, or where the mesh stands, and w(1) is being computed."""
    trainer, result = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings()), as_sent(RESULT)
    _say(trainer, OPENED, 1.0)
    trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    trainer.handle(Received(ANN, GlobalMessage(1, 3.0, MEMBERS, 1, 1), result, digest_of(result)), 6.0)
    (apply,) = _say(trainer, target or RoundClosed(1, 1, name_of(RESULT)), 7.0)
    assert isinstance(apply, ApplyDelta)
    return trainer, apply


def test_until_the_next_model_is_there_a_device_reports_the_last_one_and_follows_no_order() -> None:
    trainer, apply = _applying()
    assert _say(trainer, RoundClosed(1, 1, name_of(RESULT)), 7.1) == []  # it is applied once
    assert _say(trainer, AFRESH, 7.1) == []
    assert _say(trainer, CatchUp(1, 4, digest_of(_vector(9, 9, 9, 9)), ANN), 7.2) == []
    report = _report(trainer)
    assert (report.round_id, report.activity, report.open_term) == (0, Activity.STAGED, 1)
    applied = apply_result(apply)  # once: it takes the memory of what it applies
    effects = trainer.handle(applied, 7.3)
    assert [type(effect) for effect in effects] == [SaveModel, Evaluate]
    assert (trainer.round_id, trainer.digest, _report(trainer).round_id) == (1, applied.digest, 1)
    assert trainer.handle(applied, 7.4) == []


def test_the_next_model_takes_the_memory_of_a_result_that_came_whole_unless_a_child_may_still_read_it() -> None:
    assert _applying()[1].in_place
    trainer, result = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings()), as_sent(RESULT)
    cat = Contributor("cat", 1)
    _say(trainer, OPENED, 1.0)
    _say(trainer, _broadcast(ANN, ME, BOB, cat), 5.0)
    trainer.handle(Received(ANN, GlobalMessage(1, 3.0, MEMBERS, 1, 1), result, digest_of(result)), 6.0)
    (given,) = _say(trainer, GlobalWanted(1), 6.1, cat)
    assert isinstance(given, Send)
    (apply,) = deepcopy(trainer).handle(Received(AGENT, RoundClosed(1, 1, name_of(RESULT))), 7.0)
    assert isinstance(apply, ApplyDelta)
    assert not apply.in_place
    _say(trainer, GlobalTaken(1), 6.9, cat)
    (apply,) = _say(trainer, RoundClosed(1, 1, name_of(RESULT)), 7.0)
    assert isinstance(apply, ApplyDelta)
    assert apply.in_place
    assert _say(trainer, GlobalWanted(1), 7.1, cat) == []  # it is no result any more


def test_the_next_model_of_a_device_alone_leaves_it_its_own_delta() -> None:
    """Which is the result, and in its first rounds may be left behind and counted again."""
    trainer = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings())
    _say(trainer, RoundOpened(1, 1, digest_of(ZEROS), (ME,), 1), 1.0)
    trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    (asked,) = _say(trainer, BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ME,), 1.0, (ME,)), 5.0)
    assert isinstance(asked, HashDelta)
    trainer.handle(hash_delta(asked), 5.1)
    (apply,) = _say(trainer, RoundClosed(1, 1, name_of(sum_of((1, 1, 1, 1), [ME]))), 7.0)
    assert isinstance(apply, ApplyDelta)
    assert not apply.in_place


def test_who_is_to_leave_while_a_round_is_applied_leaves_with_it() -> None:
    for leave in (StopRequested(), Received(AGENT, MeshFinished(1, 1)), Received(AGENT, MemberRefused(1, 1, "why"))):
        trainer, apply = _applying()
        assert trainer.handle(leave, 7.1) == []
        *_, finish = trainer.handle(apply_result(apply), 7.3)
        assert isinstance(finish, Finish)
        assert trainer.round_id == 1


def test_a_staged_result_that_does_not_lead_to_where_the_mesh_stands_is_not_applied() -> None:
    target = CatchUp(1, 1, digest_of(_vector(7, 7, 7, 7)), ANN, base=("ann", "bob", "me"))
    trainer, apply = _applying(target)
    assert trainer.handle(apply_result(apply), 7.3) == [Send("ann", ModelWanted(1))]
    assert (trainer.round_id, trainer.catching_up_to) == (0, target)
    assert trainer.handle(DeltaApplied(1, ZEROS, digest_of(ZEROS)), 7.4) == []


def test_a_receiver_merges_beside_its_loop_and_decides_when_that_is_done() -> None:
    trainer = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings())
    _say(trainer, OPENED, 1.0)
    (count,) = trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    assert isinstance(count, CountChecksums)
    assert (_report(trainer).activity, _report(trainer).holding) == (Activity.TRAINING, None)  # not without a checksum
    _say(trainer, msgspec.structs.replace(HOP, hop_id=9), 2.1)
    assert [decision.outcome for decision in _report(trainer).hops] == [HopOutcome.ABORTED]
    trainer.handle(count_checksums(msgspec.structs.replace(count, attempt=7)), 2.2)  # of another attempt's own delta
    assert _report(trainer).holding is None
    trainer.handle(count_checksums(count), 2.3)
    assert _report(trainer).checksum is not None
    assert _report(trainer).holding is not None
    _say(trainer, HOP, 3.0)
    delta = DeltaMessage(1, 10, 1.0, (ANN,))
    (merge,) = _say(trainer, delta, 4.0, ANN, on_way((3, 3, 3, 3)))
    assert isinstance(merge, MergeDeltas)
    assert _say(trainer, delta, 4.1, ANN, on_way((3, 3, 3, 3))) == []  # once
    assert (_report(trainer).incoming, len(_report(trainer).hops)) == (Incoming(10, ANN), 1)
    assert _sent(trainer.handle(Tick(), 9.0)) == []  # nothing more is asked for
    trainer.handle(merge_deltas(merge), 9.1)
    assert trainer.part is not None
    assert mean_of(trainer.part.hold).tolist() == [2, 2, 2, 2]
    assert [decision.outcome for decision in _report(trainer).hops] == [HopOutcome.ABORTED, HopOutcome.MERGED]
    trainer.handle(merge_deltas(merge), 9.2)
    assert trainer.part.hold.theta == 2.0


def test_a_hop_that_is_cancelled_while_it_merges_stays_cancelled() -> None:
    trainer = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings())
    _say(trainer, OPENED, 1.0)
    (count,) = trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    assert isinstance(count, CountChecksums)
    trainer.handle(count_checksums(count), 2.1)
    _say(trainer, HOP, 3.0)
    (merge,) = _say(trainer, DeltaMessage(1, 10, 1.0, (ANN,)), 4.0, ANN, on_way((3, 3, 3, 3)))
    _say(trainer, HopCancelled(1, 1, 10, ANN), 4.1)
    assert isinstance(merge, MergeDeltas)
    trainer.handle(merge_deltas(merge), 4.2)
    assert trainer.part is not None
    assert (trainer.part.hold.theta, mean_of(trainer.part.hold).tolist()) == (1.0, [1, 1, 1, 1])
    assert [decision.outcome for decision in _report(trainer).hops] == [HopOutcome.ABORTED]


def test_a_result_is_staged_and_not_applied_until_the_round_is_closed() -> None:
    trainer = _staged()
    digest = name_of(RESULT)
    report = _report(trainer)
    assert report.round_id == 0
    assert report.staged == Staged(digest, 3.0, MEMBERS, term=1, version=1)
    np.testing.assert_array_equal(trainer.parameters, ZEROS)
    assert _sent(_say(trainer, RoundClosed(1, 1, b"another result"), 7.1)) == []
    effects = _say(trainer, RoundClosed(1, 1, digest), 7.2)
    expected = apply_delta(ZEROS, _vector(0.25, 0.5, 0.75, 1.0), 1.0)
    assert [type(effect) for effect in effects] == [SaveModel, Evaluate]
    np.testing.assert_array_equal(trainer.parameters, expected)
    report = _report(trainer)
    assert (report.round_id, report.digest, report.base) == (1, digest_of(expected), ("ann", "bob", "me"))
    assert (report.staged, report.holding, report.votes) == (None, None, True)
    assert _say(trainer, RoundClosed(1, 1, digest), 7.3) == []
    np.testing.assert_array_equal(trainer.parameters, expected)


def test_keeping_deltas_writes_the_global_delta_of_each_round() -> None:
    trainer = _holding(keep_deltas=True)
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    trainer.handle(Received(ANN, *_globally(RESULT)), 6.0)
    (kept,) = (
        effect for effect in _say(trainer, RoundClosed(1, 1, name_of(RESULT)), 7.0) if isinstance(effect, KeepDelta)
    )
    assert (kept.name, kept.delta.theta, kept.delta.contributors) == ("global", 3.0, frozenset(MEMBERS))


def test_a_second_copy_of_the_result_changes_nothing() -> None:
    trainer = _staged()
    assert trainer.handle(Received(ANN, *_globally(OTHER)), 6.1) == []
    assert trainer.part is not None
    assert trainer.part.broadcast.digest == name_of(RESULT)


@pytest.mark.parametrize(
    ("message", "values"),
    [_globally(sum_of((0.25, 0.5, 0.75), MEMBERS)), _globally(RESULT, theta=4.0)],
    ids=["wrong size", "wrong theta"],
)
def test_a_result_that_cannot_be_right_is_refused(message: GlobalMessage, values: Vector) -> None:
    trainer = _holding()
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    with pytest.raises(RemoteProtocolError):
        trainer.handle(Received(ANN, message, values), 6.0)
    assert trainer.part is not None
    assert trainer.part.broadcast.staged is None


def test_a_result_before_its_order_or_of_other_contributors_is_dropped() -> None:
    trainer = _holding()
    trainer.handle(Received(ANN, *_globally(RESULT)), 4.0)
    _say(trainer, _broadcast(ANN, ME, BOB), 5.0)
    trainer.handle(Received(ANN, GlobalMessage(1, 3.0, (ANN, BOB), 1, 1), as_sent(RESULT)), 5.1)
    assert trainer.part is not None
    assert trainer.part.broadcast.staged is None


def test_the_result_of_a_lost_root_is_dropped_when_another_one_is_ordered() -> None:
    trainer = _staged()
    effects = _say(trainer, BroadcastOrdered(1, 1, digest_of(ZEROS), 2, (BOB, ME), 2.0, (BOB, ME)), 7.0)
    assert effects == [Send("bob", GlobalWanted(1))]
    assert _report(trainer).staged is None


def test_an_order_for_another_model_than_ours_is_not_followed() -> None:
    trainer = _holding()
    assert _say(trainer, BroadcastOrdered(1, 1, b"another w", 1, (ANN, ME), 3.0, MEMBERS), 5.0) == []
    assert _say(trainer, BroadcastOrdered(1, 2, digest_of(ZEROS), 1, (ANN, ME), 3.0, MEMBERS), 5.1) == []
    assert _say(trainer, BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ANN, BOB), 3.0, MEMBERS), 5.2) == []


def test_a_result_of_another_lineage_is_not_taken_though_it_begins_at_the_same_model() -> None:
    trainer = _holding()
    fork = (*trainer.lineage, Fork(0, 1, "bob.1.9"))
    order = BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ANN, ME), 3.0, MEMBERS, lineage=fork)
    assert _say(trainer, order, 5.0) == []
    assert _say(trainer, msgspec.structs.replace(order, lineage=trainer.lineage), 5.1) != []


def test_a_device_that_was_too_late_for_a_round_takes_its_result_all_the_same() -> None:
    trainer = _trainer()
    late = BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ANN, BOB, ME), 2.0, (ANN, BOB))
    assert _say(trainer, late, 5.0) == [Send("ann", GlobalWanted(1))]
    result = sum_of((1, 2, 3, 3.5), (ANN, BOB))
    trainer.handle(Received(ANN, GlobalMessage(1, 2.0, (ANN, BOB), 1, 1), as_sent(result)), 6.0)
    assert _report(trainer).activity is Activity.STAGED
    _say(trainer, RoundClosed(1, 1, name_of(result)), 7.0)
    assert (trainer.round_id, trainer.model_state.base) == (1, ("ann", "bob"))
    assert not trainer.model_state.knows_ballot()  # an earlier start of it may have voted on the next one
    assert trainer.carry is None


@pytest.mark.parametrize("term", [1, 2], ids=["late", "of another agent"])
def test_a_result_stays_when_the_device_only_then_hears_that_the_round_was_opened(term: int) -> None:
    trainer = _trainer()
    _say(trainer, BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ANN, BOB, ME), 2.0, (ANN, BOB)), 5.0)
    result = sum_of((1, 2, 3, 3.5), (ANN, BOB))
    trainer.handle(Received(ANN, GlobalMessage(1, 2.0, (ANN, BOB), 1, 1), as_sent(result)), 6.0)
    voted = _report(trainer).staged
    assert voted is not None
    _say(trainer, RoundOpened(term, 1, digest_of(ZEROS), MEMBERS, 1), 6.5)
    assert (trainer.attempt(), _report(trainer).staged) == ((1, 1), voted)
    _say(trainer, RoundClosed(term, 1, name_of(result)), 7.0)
    assert trainer.round_id == 1


def test_a_round_that_begins_anew_since_its_result_is_lost_is_trained_for() -> None:
    """By the agent that had ordered the result: it came from an attempt that nobody else knows any more."""
    trainer = _trainer()
    _say(trainer, BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ANN, BOB, ME), 2.0, (ANN, BOB)), 5.0)
    assert TrainLocally(1, trainer.parameters, room=0) in _say(
        trainer, RoundOpened(1, 1, digest_of(ZEROS), MEMBERS, 1), 6.0
    )


def test_a_parent_is_asked_again_after_a_hop_came_between_two_orders() -> None:
    trainer = _holding()
    _say(trainer, _broadcast(ANN, BOB, ME), 5.0)  # BOB is the root's child, and so are we
    _say(trainer, HopOrdered(1, 1, 11, BOB), 6.0)  # nobody has the result: aggregating goes on
    _say(trainer, HopCancelled(1, 1, 11, BOB), 7.0)
    assert _sent(_say(trainer, _broadcast(ANN, BOB, ME, version=2), 8.0)) == [GlobalWanted(1)]


def test_the_rounds_result_ends_a_hop_under_way_and_a_late_copy_of_an_old_order_does_not() -> None:
    trainer = _receiving()
    order = _broadcast(ANN, ME, BOB)
    effects = _say(trainer, order, 5.0)
    assert _report(trainer).hops[0].reason == "the round has its result already"
    assert _sent(effects) == [GlobalWanted(1)]
    _say(trainer, HopOrdered(1, 1, 11, ANN), 6.0)
    _say(trainer, order, 6.5)
    assert _report(trainer).activity is Activity.RECEIVING


# -- catching up, leaving ---------------------------------------------------------------------------------------------


def test_a_late_peer_fetches_the_model_checks_its_digest_and_adopts_it_once() -> None:
    trainer, model = _trainer(), _vector(5, 6, 7, 8)
    order = CatchUp(1, 4, digest_of(model), ANN)
    assert _say(trainer, order, 1.0)[-1] == Send("ann", ModelWanted(4))
    assert _sent(_say(trainer, order, 1.1)) == []
    assert _sent(trainer.handle(Tick(), 2.0)) == [ModelWanted(4)]
    with pytest.raises(RemoteProtocolError, match="do not match their digest"):
        trainer.handle(Received(ANN, ModelMessage(4, digest_of(model)), _vector(5, 6, 7, 9)), 2.1)
    carrier = ModelMessage(4, digest_of(model))
    effects = trainer.handle(Received(ANN, carrier, model), 2.2)
    assert [type(effect) for effect in effects] == [SaveModel, Evaluate]
    assert (trainer.round_id, trainer.digest) == (4, digest_of(model))
    assert trainer.handle(Received(ANN, carrier, model), 2.3) == []
    assert _sent(_say(trainer, order, 2.4)) == []


def test_a_late_catch_up_to_an_older_model_changes_nothing() -> None:
    trainer = _trainer(parameters=_vector(1, 1, 1, 1), round_id=6)
    assert _sent(_say(trainer, CatchUp(1, 5, b"older", ANN), 1.0)) == []
    _say(trainer, RoundOpened(1, 7, trainer.digest, MEMBERS), 1.1)
    for late in (CatchUp(1, 6, trainer.digest, ANN), CatchUp(1, 5, b"older", ANN)):
        assert _sent(_say(trainer, late, 1.2)) == []
    assert trainer.attempt() == (7, 0)


def test_a_peer_that_missed_the_end_of_a_round_drops_its_part_and_catches_up() -> None:
    trainer = _holding()
    assert _sent(_say(trainer, CatchUp(1, 1, b"digest", BOB), 9.0)) == [ModelWanted(1)]
    assert trainer.hold() is None


def test_a_round_that_opens_ends_an_older_wish_to_catch_up() -> None:
    trainer = _trainer()
    _say(trainer, CatchUp(1, 4, b"digest", BOB), 0.5)
    _say(trainer, OPENED, 1.0)
    trainer.handle(_ready(_vector(1, 1, 1, 1)), 2.0)
    assert _sent(_say(trainer, HOP, 3.0)) == [DeltaWanted(1, 1, 10)]


def test_a_model_is_given_to_whoever_asks_for_the_round_we_stand_at() -> None:
    trainer = _trainer(parameters=_vector(1, 1, 1, 1), round_id=6)
    assert _sent(_say(trainer, ModelWanted(6), 1.0, BOB)) == [ModelMessage(6, trainer.digest, History())]
    assert _sent(_say(trainer, ModelWanted(5), 1.0, BOB)) == []


@pytest.mark.parametrize(
    ("event", "problem", "exit_code"),
    [
        (Received(AGENT, MemberRefused(1, 0, "your model differs")), "your model differs", 2),
        (Received(AGENT, MeshFinished(1, 0)), "", 0),
        (StopRequested(), "", 130),
        (WorkFailed("TrainLocally", "no windows"), "no windows", 4),
    ],
)
def test_who_leaves_says_so_before_it_finishes(event: Received | StopRequested, problem: str, exit_code: int) -> None:
    trainer = _trainer()
    _report(trainer, 1.0)
    assert trainer.handle(event, 1.0) == [Finish(problem, exit_code)]
    assert (trainer.voice.has_news(1.0), _report(trainer).activity) == (True, Activity.LEFT)


def test_who_has_left_takes_part_in_nothing() -> None:
    trainer = _trainer()
    trainer.handle(StopRequested(), 1.0)
    for order in (OPENED, CatchUp(1, 4, b"digest", ANN), _broadcast(ANN, ME, BOB)):
        assert _say(trainer, order, 2.0) == []


def test_an_evaluation_and_resources_are_reported() -> None:
    trainer = _trainer()
    trainer.handle(ResourcesSampled(ResourceState(123, 5.0, battery_percent=50.0), sent_bytes=9), 0.1)
    trainer.handle(Evaluated(1, no_evaluation(2)), 0.2)
    report = _report(trainer)
    assert report.evaluation is not None
    assert (report.evaluation.round_id, report.evaluation.evaluation) == (1, no_evaluation(2))
    assert report.resources == ResourceState(123, 5.0, battery_percent=50.0)
    assert report.sent_bytes == 9


def test_ways_to_others_are_those_of_the_next_exchange() -> None:
    trainer = _trainer()
    trainer.handle(ResourcesSampled(ResourceState(123, 5.0), ways_s={"bob": 0.6}), 0.1)
    assert trainer._staging.uplink.ways_s == {"bob": 0.6}


def test_nobody_fetches_a_model_from_itself() -> None:
    """An agent that says so would end the process: what a node says to itself passes no transport."""
    trainer = _trainer()
    with pytest.raises(RemoteProtocolError, match="from itself"):
        _say(trainer, CatchUp(1, 4, digest_of(_vector(9, 9, 9, 9)), ME), 1.0)
    assert trainer.catching_up_to is None


def test_the_line_of_a_round_that_the_agent_tells_is_kept_once() -> None:
    trainer = _trainer()
    told = RoundSummary(3, 2.0, ("a", "b"), (), {}, 0, 0.5, 0.8, agent="agent")
    heard = Received(AGENT, RoundTold(1, 3, told))
    trainer.voice.has_changed = False
    assert trainer.handle(heard, 1.0) == [RecordRound(told, has_led=False)]
    assert not trainer.voice.has_changed  # it is no question
    assert trainer.handle(heard, 2.0) == []
