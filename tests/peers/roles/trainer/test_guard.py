"""A device judges what comes in before it merges it: a refused delta is a hop that is aborted, and accuses (5)."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from mdl.defence.judge import PieceJudge
from mdl.defence.limits import DOUBTED, Accusation, Limits, OwnDeltaSeen
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.guard import Defence
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector
from mdl.protocol.machine import LocalDeltaReady, Received
from mdl.protocol.round_messages import SUSPECT, DeltaMessage, HopOrdered, MemberQuarantined, PeerReport, RoundOpened
from mdl.protocol.vector_work import CountChecksums, MergeDeltas, count_checksums, merge_deltas
from mdl.protocol.vocabulary import Activity, HopOutcome, TrainingReport
from tests.peers.roles.at_once import mean_of, on_way

AGENT = Contributor("agent", 1)
ME, ANN, BOB = Contributor("me", 1), Contributor("ann", 1), Contributor("bob", 1)
UNKNOWN = Limits()
ZEROS, OWN = np.zeros(4, np.float32), np.full(4, 0.125, np.float32)
OPENED = RoundOpened(1, 1, digest_of(ZEROS), (ANN, BOB, ME), 1)


class _Losses:
    """As if a model far from -0.125 were bad at it."""

    classes = 2

    def __call__(self, parameters: Vector, keep: bool = False) -> float:
        return float(np.abs(8 * parameters + 1).max())


def _receive(
    values: Vector, *contributors: Contributor, tests: bool = False, clips: bool = True, is_on: bool = True,
    limits: Limits = UNKNOWN, is_look: bool = False,
) -> tuple[Trainer, MergeDeltas]:  # fmt: skip
    """A device that holds its own delta, and what it asks its worker when these values have come."""
    trainer = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings(defence=Defence(is_on, tests, clips=clips)))
    trainer.handle(Received(AGENT, OPENED), 1.0)
    (count,) = trainer.handle(
        LocalDeltaReady(1, ModelDelta(OWN, 1.0, frozenset([ME])), TrainingReport(0.5, 100, 1.0)), 2.0
    )
    assert isinstance(count, CountChecksums)
    trainer.handle(count_checksums(count), 2.1)
    trainer.handle(Received(AGENT, HopOrdered(1, 1, 10, ANN, limits, is_look)), 3.0)
    who = contributors or (ANN,)
    theta = float(len(who))
    (merge,) = trainer.handle(Received(ANN, DeltaMessage(1, 10, theta, who), on_way(values, theta)), 4.0)
    assert isinstance(merge, MergeDeltas)
    return trainer, merge


def _report(trainer: Trainer) -> PeerReport:
    return trainer.report(1, "agent", 5.0)


def _refuse(trainer: Trainer, merge: MergeDeltas, losses: _Losses | None = None) -> PeerReport:
    with pytest.raises(RemoteProtocolError):
        trainer.handle(merge_deltas(merge, losses=losses), 5.0)
    return _report(trainer)


@pytest.mark.parametrize("times", [-1.0, 10.0, -10.0])
def test_what_is_held_for_poison_is_a_hop_that_is_aborted_and_nothing_of_it_is_merged(times: float) -> None:
    trainer, merge = _receive(OWN * times)
    report = _refuse(trainer, merge)
    (decision,) = report.hops
    assert (decision.outcome, decision.sender) == (HopOutcome.ABORTED, ANN)
    assert decision.reason.startswith(SUSPECT)
    assert (report.activity, report.holding.contributors) == (Activity.HOLDING, (ME,))
    assert trainer.part is not None
    np.testing.assert_array_equal(mean_of(trainer.part.hold), OWN)
    (accused,) = report.accused
    assert (accused.peer_id, accused.weight, accused.round_id) == ("ann", 1.0 if times < 0 else 0.3, 1)
    assert decision.reason == SUSPECT + accused.reason


def test_a_mean_of_two_makes_both_doubted() -> None:
    report = _refuse(*_receive(-OWN, ANN, BOB))
    assert {(each.peer_id, each.weight) for each in report.accused} == {("ann", DOUBTED), ("bob", DOUBTED)}


def test_the_length_that_the_order_names_counts_and_not_the_own_one() -> None:
    trainer, merge = _receive(OWN * 5, limits=Limits(length=1.5))
    trainer.handle(merge_deltas(merge), 5.0)
    assert _report(trainer).hops[0].outcome is HopOutcome.MERGED
    report = _refuse(*_receive(OWN * 2, limits=Limits(length=0.375)))
    assert report.hops[0].reason == f"{SUSPECT}it is 2 times as long as ours; the limit is 1.5"


def test_an_honest_delta_is_merged_and_accuses_nobody() -> None:
    trainer, merge = _receive(OWN * 1.5)
    trainer.handle(merge_deltas(merge), 5.0)
    assert trainer.part is not None
    assert trainer.part.hold.theta == 2.0
    assert (_report(trainer).hops[0].outcome, _report(trainer).accused) == (HopOutcome.MERGED, ())


def test_what_is_a_little_too_long_is_merged_in_part_and_the_hop_says_so() -> None:
    trainer, merge = _receive(OWN * 5)
    trainer.handle(merge_deltas(merge), 5.0)
    assert trainer.part is not None
    hold = trainer.part.hold
    np.testing.assert_allclose(mean_of(hold), (OWN + 4 * OWN) / 2)
    assert (hold.theta, hold.contributors) == (2.0, {ME, ANN})
    assert _report(trainer).hops[0].reason == "merged to 80%: it is 5 times as long as ours; the limit is 4"
    assert _report(trainer).accused == ()


def test_where_deltas_are_kept_to_be_compared_nothing_is_clipped() -> None:
    report = _refuse(*_receive(OWN * 5, clips=False))
    assert report.hops[0].reason.startswith(SUSPECT)


def test_what_is_looked_at_is_told_and_not_merged_and_accuses_nobody() -> None:
    values = np.array([0.125, 0.125, 0.125, -0.3125])
    trainer, merge = _receive(values, tests=True, is_look=True)
    assert merge.is_tested
    trainer.handle(merge_deltas(merge, losses=_Losses()), 5.0)
    report = _report(trainer)
    (decision,) = report.hops
    assert (decision.outcome, decision.reason) == (HopOutcome.LOOKED, "")
    assert decision.seen == OwnDeltaSeen(pytest.approx(2.5 / log(2.0)))
    assert (report.activity, report.holding.contributors, report.accused) == (Activity.HOLDING, (ME,), ())
    assert trainer.part is not None
    np.testing.assert_array_equal(mean_of(trainer.part.hold), OWN)


def test_a_look_without_windows_tells_no_loss_and_one_of_a_device_that_does_not_judge_nothing() -> None:
    for is_on, seen in ((True, OwnDeltaSeen()), (False, None)):
        trainer, merge = _receive(OWN * 10, is_look=True, is_on=is_on)
        trainer.handle(merge_deltas(merge), 5.0)
        (decision,) = _report(trainer).hops
        assert (decision.outcome, decision.seen) == (HopOutcome.LOOKED, seen)


def test_what_is_merged_is_not_tested_and_a_mean_tells_nothing_of_one_device() -> None:
    trainer, merge = _receive(np.array([0.125, 0.125, 0.125, -0.3125]), tests=True)
    assert not merge.is_tested
    trainer, merge = _receive(OWN, ANN, BOB, tests=True)
    trainer.handle(merge_deltas(merge, losses=_Losses()), 5.0)
    assert _report(trainer).hops[0].seen is None


def test_a_device_that_does_not_judge_merges_what_comes() -> None:
    trainer, merge = _receive(OWN * -10, is_on=False)
    assert merge.check is None
    trainer.handle(merge_deltas(merge), 5.0)
    assert _report(trainer).hops[0].outcome is HopOutcome.MERGED


def test_a_device_that_is_left_out_knows_why_until_it_takes_part_again() -> None:
    trainer = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings())
    trainer.handle(Received(AGENT, MemberQuarantined(1, 1, "2 devices refused its work")), 1.0)
    assert trainer.guard.told == "2 devices refused its work"
    trainer.handle(Received(AGENT, OPENED), 2.0)
    assert trainer.guard.told == ""


def test_a_piece_that_is_too_long_is_not_merged_and_the_agent_hears_of_it_at_once() -> None:
    trainer = Trainer(ME, ZEROS, "schema", "lenet", TrainerSettings(defence=Defence(is_on=True)))
    guard = trainer.guard
    judge = guard.judge_pieces(OWN, [slice(0, 2)], UNKNOWN)
    assert guard.admits(judge, BOB, slice(0, 2), OWN[:2] * 2)
    trainer.report(1, "agent", 1.0)
    assert not guard.admits(judge, ANN, slice(0, 2), OWN[:2] * 100)
    assert not guard.admits(judge, ANN, slice(0, 2), OWN[:2])  # nor is anything else of it
    assert trainer.voice.has_changed
    reason = "its pieces are 100 times as long as ours; at most 5"
    assert _report(trainer).accused == (Accusation("ann", 1.0, 1, reason),)


def test_pieces_that_are_turned_are_noticed_with_the_last_of_them() -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=4096).astype(np.float32)
    judge = PieceJudge(own, [slice(0, 1024), slice(1024, 2048)], last=own)
    assert judge.look("ann", 1, slice(0, 1024), -own[:1024]) == ""
    assert "against the last round (cosine -1.00)" in judge.look("ann", 1, slice(1024, 2048), -own[1024:2048])
    places = np.arange(0, 4096, 2)
    seen = PieceJudge(own, [slice(0, 2048)], places, own[places])
    assert seen.look("ann", 1, slice(0, 2048), own[:2048]) == ""
    assert "against the last round" in seen.look("bob", 1, slice(0, 2048), -own[:2048])
