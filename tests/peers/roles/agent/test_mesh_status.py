"""The line of metrics.jsonl, and evaluations that add up over devices."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mdl.bounds import MAX_COUNT, MAX_HEADER_BYTES, MAX_INCARNATION, MAX_TEXT
from mdl.learning.evaluation import count_labels, sum_errors
from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.agent.conductor import AGGREGATING
from mdl.peers.roles.agent.ledger import RoundLedger
from mdl.peers.roles.agent.mesh_status import Asking, mesh_status, tell_waiting
from mdl.peers.roles.agent.round_summary import add_evaluations, judgements, summarise_round, usual_evaluations
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.members import Members
from mdl.protocol.counts import MAX_SUM, Confusion, Errors, Evaluation, Labelling, ModelJudgement, no_evaluation
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import (
    Activity,
    Holding,
    HopDecision,
    HopOutcome,
    ResourceState,
    RoundEvaluation,
    TrainingReport,
)
from mdl.scheduler.policies.registry import make_policy
from mdl.transport.wire.codec import encode
from tests.peers.roles.desk import Desk

A, B, C, D = (Contributor(name, 1) for name in "abcd")
REPORT = PeerReport(1, 1, 0, b"", "s", "m", 10, Activity.HOLDING, 1, 1, training=TrainingReport(0.5, 8, 1.0))
MARKS = {"reduced": 14.0, "closing": 17.0, "closed": 17.5}


def _summary():  # type: ignore[no-untyped-def]
    ledger, members = RoundLedger(1, frozenset([A, B, C]), 1, opened_at=10.0), Members(4.0)
    first, second = ledger.order_hop(A, B, "x" * 300, 11.0), ledger.order_hop(C, B, "", 12.0)
    for peer, hops, ready_s in ((A, (), 11.0), (B, (first, second), 12.0), (C, (), 12.5)):
        merged = (HopDecision(hop.hop_id, hop.sender, HopOutcome.MERGED, 1.0, 40) for hop in hops[:1])
        aborted = (HopDecision(hop.hop_id, hop.sender, HopOutcome.ABORTED) for hop in hops[1:])
        report = msgspec.structs.replace(REPORT, holding=Holding(1.0, (peer,)), hops=(*merged, *aborted))
        ledger.take(peer, report, ready_s)
        members.hear(peer, report, ready_s)
    for busy, at in ((True, 10.5), (True, 11.0), (False, 11.5), (True, 13.0)):
        ledger.note_busy(B, busy, at)
    members.everyone()[1].device.note_use(True, 13.0)
    ledger.lose(C, "silent")
    applied = [member for member in members.everyone() if member.contributor != C]
    return summarise_round(ledger, Holding(2.0, (A, B)), MARKS, b"\x01\x02", applied)


def test_a_round_line_counts_merged_hops_and_the_broadcast() -> None:
    summary = _summary()
    assert (summary.round, summary.theta, summary.contributors, summary.lost) == (1, 2.0, ("a", "b"), ("c",))
    assert summary.hops == (("a", "b"),)
    assert summary.bytes == 40 + 40  # one merged hop, one child in the broadcast tree; 10 values of 4 bytes
    assert (summary.loss, summary.digest) == (0.5, "0102")


def test_the_seconds_of_the_phases_add_up_to_the_total() -> None:
    seconds = _summary().seconds
    assert seconds == {"train": 2.5, "aggregate": 1.5, "broadcast": 3.0, "apply": 0.5, "total": 7.5}


def _add(summary: RoundSummary, *reports: PeerReport) -> RoundSummary:
    """What devices a, b, c report of it is added."""
    return add_evaluations(summary, usual_evaluations(summary.round, dict(zip("abcdef", reports, strict=False))))


def _evaluated(evaluation: Evaluation, round_id: int = 1) -> PeerReport:
    return msgspec.structs.replace(REPORT, evaluation=RoundEvaluation(round_id, evaluation))


def test_evaluations_add_up_over_devices_of_different_sizes() -> None:
    more = _evaluated(Evaluation((9, 0), (1, 0), (0, 1), 1.0, 10))
    summary = _add(_summary(), more, _evaluated(Evaluation((0, 1), (0, 0), (0, 0), 1.0, 1)))
    assert summary.accuracy == pytest.approx(10 / 11)


def test_an_evaluation_of_another_round_is_not_counted() -> None:
    right = Evaluation((1,), (0,), (0,), 0.1, 1)
    summary = _add(_summary(), _evaluated(right), _evaluated(right, round_id=0), REPORT)
    assert summary.accuracy == 1.0


def test_devices_without_test_windows_leave_the_accuracy_open() -> None:
    summary = _add(_summary(), _evaluated(no_evaluation(2)))
    assert summary.accuracy is None
    assert _add(_summary()) == _summary()


@pytest.mark.parametrize(
    "wrong", [Evaluation((0,), (0,), (0,), 9.0, 9), Evaluation((1, 0), (0,), (0, 0), 9.0, 9)], ids=["one", "uneven"]
)
def test_counts_over_other_classes_than_most_have_are_left_out(wrong: Evaluation) -> None:
    right = Evaluation((1, 1), (0, 0), (0, 0), 0.1, 2)
    summary = _add(_summary(), _evaluated(wrong), _evaluated(right), _evaluated(right))
    assert summary.accuracy == 1.0
    assert _add(_summary(), _evaluated(Evaluation((1, 0), (0,), (0, 0), 9.0, 9))).accuracy is None


def test_confusions_add_up_over_the_devices_that_tell_them() -> None:
    told = Evaluation((1, 1), (1, 0), (0, 1), 0.1, 3, ((1, 0), (1, 1)))
    older = Evaluation((1, 1), (0, 0), (0, 0), 0.1, 2)
    summary = _add(_summary(), _evaluated(told), _evaluated(told), _evaluated(older))
    assert summary.confusion == ((2, 0), (2, 2))
    assert _add(_summary(), _evaluated(older)).confusion == ()


@pytest.mark.parametrize(
    "wrong",
    [((1,),), ((1, 0), (1,)), ((1, 0), (1, 1), (0, 0)), ((2, 0), (0, 1)), ((0, 1), (1, 1)), ((1, 1), (0, 1))],
    ids=["too few classes", "uneven", "not square", "other hits", "other misses", "other guesses"],
)
def test_a_confusion_that_contradicts_its_counts_is_left_out_and_the_counts_stay(wrong: Confusion) -> None:
    right = Evaluation((1, 1), (1, 0), (0, 1), 0.1, 3, ((1, 0), (1, 1)))
    liar = msgspec.structs.replace(right, confusion=wrong)
    summary = _add(_summary(), _evaluated(right), _evaluated(liar))
    assert (summary.accuracy, summary.confusion) == (pytest.approx(2 / 3), right.confusion)


def test_a_confusion_too_large_to_be_read_is_not_told() -> None:
    large = Evaluation((MAX_COUNT,), (0,), (0,), 0.1, MAX_COUNT, ((MAX_COUNT,),))
    assert _add(_summary(), _evaluated(large)).confusion == ((MAX_COUNT,),)
    summary = _add(_summary(), _evaluated(large), _evaluated(large))
    assert (summary.accuracy, summary.confusion) == (1.0, ())


def test_a_round_line_tells_each_devices_loss_and_accuracy() -> None:
    right, wrong = Evaluation((3, 1), (0, 1), (1, 0), 1.0, 5), Evaluation((9, 9), (0, 0), (0, 0), 1.0, 2)
    reports = _evaluated(right), _evaluated(right, round_id=0), _evaluated(wrong)
    first, second, third = _add(_summary(), *reports).devices
    assert (first.loss, first.accuracy) == (0.5, 0.8)
    assert second.accuracy is None, "of another round"
    assert third.accuracy is None, "more hits than windows"


def test_a_round_line_tells_each_hop_with_its_times_and_reason() -> None:
    merged, aborted = _summary().schedule
    assert (merged.sender, merged.receiver, merged.outcome, merged.reason) == (
        "a",
        "b",
        "merged",
        "x" * (MAX_TEXT - 1) + "…",
    )
    assert (merged.ordered_s, merged.decided_s, merged.transfer_s, merged.size_bytes) == (1.0, 2.0, 1.0, 40)
    assert (aborted.sender, aborted.outcome, aborted.ordered_s, aborted.decided_s) == ("c", "aborted", 2.0, 2.0)


def test_a_round_line_tells_when_each_device_was_ready_and_busy_and_why_it_was_lost() -> None:
    first, second, third = _summary().devices
    assert [device.ready_s for device in (first, second, third)] == [1.0, 2.0, 2.5]
    assert (first.busy, second.busy, third.busy) == ((), ((0.5, 1.5), (3.0, None)), ())
    assert (first.lost, third.lost) == ("", "silent")
    assert (first.kind, second.kind) == (0, 2)


def test_a_line_of_an_older_version_is_read_without_a_schedule() -> None:
    line = msgspec.to_builtins(_summary())
    for name in ("schedule", "devices", "confusion"):
        del line[name]
    old = msgspec.convert(line, RoundSummary)
    assert old.confusion == ()
    assert (old.hops, old.schedule, old.devices) == ((("a", "b"),), (), ())
    assert msgspec.json.decode(msgspec.json.encode(_summary()), type=RoundSummary) == _summary()


def test_a_line_does_not_repeat_what_says_nothing_of_a_device() -> None:
    line = msgspec.to_builtins(_summary())
    assert line["devices"][0].keys() == {"peer_id", "ready_s", "loss"}
    silent = dict.fromkeys(("link_mb_s", "battery_percent", "charging", "merge_mb_s", "accuracy"))
    older = line | {"devices": [{**silent, "busy": [], "lost": "", "kind": 0, **told} for told in line["devices"]]}
    assert msgspec.convert(older, RoundSummary) == _summary(), "lines that say it all are read as before"


def test_of_the_finished_rounds_in_a_status_only_the_last_tells_its_schedule() -> None:
    agent = MobileAgent(Contributor("agent", 1), make_policy("fifo"), AgentSettings())
    finished = [msgspec.structs.replace(_summary(), round=number) for number in (1, 2, 3)]
    status = mesh_status(agent, "fifo", 0, finished, since_round=1, now=0.0)
    assert [(line.round, len(line.schedule), len(line.devices)) for line in status.finished] == [(2, 0, 0), (3, 2, 3)]


def test_a_status_has_the_newest_rounds_that_a_message_can_carry() -> None:
    agent = MobileAgent(Contributor("agent", 1), make_policy("fifo"), AgentSettings())
    hops = tuple((f"device-{number}", "device-0") for number in range(1, 500))
    schedule = _summary().schedule * 1000
    finished = [
        msgspec.structs.replace(_summary(), round=number, hops=hops, schedule=schedule) for number in range(1, 200)
    ]
    status = mesh_status(agent, "fifo", 0, finished, since_round=0, now=0.0)
    assert 0.8 * MAX_HEADER_BYTES < len(encode(agent.me, status)) <= MAX_HEADER_BYTES
    assert [line.round for line in status.finished] == [*range(200 - len(status.finished), 200)]
    assert len(status.finished[-1].schedule) == 2000
    much = [msgspec.structs.replace(line, schedule=schedule * 3) for line in finished]
    status = mesh_status(agent, "fifo", 0, much, since_round=0, now=0.0)
    assert len(encode(agent.me, status)) <= MAX_HEADER_BYTES
    assert (status.finished[-1].round, status.finished[-1].schedule) == (199, ())


def test_a_status_fills_a_message_and_leaves_room_for_the_longest_name_of_an_agent() -> None:
    agent = MobileAgent(Contributor("a" * 64, MAX_INCARNATION), make_policy("fifo"), AgentSettings())
    finished = [msgspec.structs.replace(_summary(), round=number) for number in range(10_000)]
    slim = msgspec.structs.replace(finished[-1], schedule=(), devices=())
    status = mesh_status(agent, "fifo", 0, finished, since_round=-1, now=0.0)
    length = len(encode(agent.me, status))
    assert MAX_HEADER_BYTES - length < 256 + len(msgspec.msgpack.encode(slim))
    assert length <= MAX_HEADER_BYTES


def test_the_phase_says_who_still_trains_and_repeats_a_policys_reason_as_it_is() -> None:
    desk = Desk(policy="ring", min_peers=4)
    for named in ("", "agent"):
        for peer in (A, B, C, D):
            desk.report(peer, agent=named)
    assert _phase(desk) == "aggregating, waits for a, b, c, d to train"
    desk.hold(C)
    assert _phase(desk) == "aggregating, waits for a, b, d to train"
    desk.hold(D)
    assert _phase(desk) == "aggregating: ring: the next in line, a, is training"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("waiting: 1 of 4 still train", ": 1 of 4 still train"),
        ("greedy: b and c start in 0.2 s", ": greedy: b and c start in 0.2 s"),
        ("a majority: b of 3 members are missing", ", waits for a majority: b of 3 members are missing"),
        ("b, c to have the result", ", waits for b, c to have the result"),
    ],
)
def test_a_sentence_follows_a_colon_and_what_is_waited_for_its_verb(reason: str, told: str) -> None:
    assert tell_waiting(AGGREGATING, reason) == told


def _phase(desk: Desk) -> str:
    return mesh_status(desk.agent, "ring", 0, [], 0, desk.now).phase


def test_the_status_tells_the_devices_of_the_open_round() -> None:
    agent = MobileAgent(Contributor("agent", 1), make_policy("fifo"), AgentSettings(min_peers=2))
    for sequence, named in ((1, ""), (2, "agent")):
        for peer in (A, B):
            report = PeerReport(sequence, 1, 0, b"", "s", "m", 10, Activity.WAITING, 0, agent=named)
            agent.handle(Received(peer, report), 1.0)
    status = mesh_status(agent, "fifo", 0, [], since_round=0, now=3.0)
    assert [(device.peer_id, device.ready_s) for device in status.devices] == [("a", None), ("b", None)]
    assert status.elapsed_s == 2.0
    used = ResourceState(1 << 30, 5.0, in_use=True)
    busy = PeerReport(3, 1, 0, b"", "s", "m", 10, Activity.TRAINING, 0, agent="agent", resources=used)
    agent.handle(Received(A, busy), 4.0)
    status = mesh_status(agent, "fifo", 0, [], since_round=0, now=5.0)
    assert [device.busy for device in status.devices] == [((3.0, None),), ()]


def test_who_asks_without_end_is_answered_ten_times_a_second_and_others_as_before() -> None:
    asking = Asking()
    assert sum(asking.may("x", 0.0) for _ in range(1000)) == 20
    assert sum(asking.may("x", 1.0) for _ in range(1000)) == 10
    assert asking.may("ann", 1.0)


def test_devices_judge_a_round_by_their_tests_and_by_their_losses_where_nobody_tests() -> None:
    right, none = Evaluation((4, 0), (0, 1), (1, 0), 1.0, 5), no_evaluation(2)
    counts = usual_evaluations(1, {"a": _evaluated(right), "b": _evaluated(none)})
    assert judgements(_summary(), counts) == (ModelJudgement("a", 5, 0.8, pytest.approx(4 / 9)),)
    assert judgements(_summary(), {"b": none}) == tuple(ModelJudgement(name, 1, loss=0.5) for name in "abc")


def _of_numbers(truth: list[float], found: list[float]) -> Evaluation:
    return sum_errors(np.array(truth, np.float32)[:, None], np.array(found, np.float32)[:, None], 0.0)


def test_errors_of_numbers_add_up_and_are_no_accuracy() -> None:
    one, other = _of_numbers([1, 2, 3], [1, 2, 4]), _of_numbers([5], [3])
    summary = _add(_summary(), _evaluated(one), _evaluated(other))
    assert (summary.accuracy, summary.macro_f1, summary.labelling) == (None, None, None)
    assert summary.fits[0].rmse == pytest.approx((5 / 4) ** 0.5)
    assert summary.fits[0].mae == 0.75
    assert summary.score == summary.fits[0].r2 == pytest.approx(1 - 5 / 8.75)
    told = {each.peer_id: (each.accuracy, each.score) for each in summary.devices}
    assert told["a"] == (None, pytest.approx(0.5))
    assert told["b"] == (None, None)  # one window has no variance


def test_labels_add_up_and_are_told_by_their_own_names() -> None:
    flags = np.array([[1, 0], [1, 1]], np.uint8)
    right, wrong = count_labels(flags, flags == 1, 0.0), count_labels(flags, flags == 0, 0.0)
    summary = _add(_summary(), _evaluated(right), _evaluated(right), _evaluated(wrong))
    assert summary.labelling == Labelling(pytest.approx(0.75), pytest.approx(2 / 3))
    assert (summary.accuracy, summary.score, summary.targets) == (None, summary.labelling.micro_f1, "labels")
    line = msgspec.json.decode(msgspec.json.encode(summary), type=RoundSummary)
    assert line == summary


@pytest.mark.parametrize(
    "wrong",
    [
        Evaluation((9,), (0,), (0,), 0.0, 1),
        Evaluation((1,), (0,), (0,), 0.0, 1, (), "labels", 2),
        Evaluation((0,), (0,), (0,), 0.0, 1, (), "numbers"),
        Evaluation((0,), (0,), (0,), 0.0, 1, (), "classes", 0, (Errors(0.0, 0.0, 0.0, 0.0),)),
        Evaluation((0,), (0,), (0,), 0.0, 1, (), "numbers", 0, (Errors(0.0, 0.0, 0.0, 0.0),) * 2),
    ],
    ids=["more than all", "all right twice", "no errors", "errors of classes", "of another count"],
)
def test_an_evaluation_that_contradicts_itself_is_left_out(wrong: Evaluation) -> None:
    summary = _add(_summary(), _evaluated(wrong))
    assert (summary.accuracy, summary.score) == (None, None)
    assert all(each.accuracy is each.score is None for each in summary.devices)


@pytest.mark.parametrize(
    "errors",
    [
        Errors(0.0, 0.0, 0.0, 5e-324),
        Errors(MAX_SUM, MAX_SUM, -MAX_SUM, MAX_SUM),
        Errors(MAX_SUM, 0.0, 0.0, 1.0),
        Errors(0.0, 0.0, 1e20, 1.0),
    ],
)
def test_sums_that_nothing_could_have_made_can_still_be_told(errors: Errors) -> None:
    told = _evaluated(Evaluation((0,), (0,), (0,), 0.0, 3, (), "numbers", 0, (errors,)))
    summary = _add(_summary(), told, told, told)
    assert msgspec.json.decode(msgspec.json.encode(summary), type=RoundSummary) == summary
