"""When a run ends by itself: the pure part, an agent that ends it, one that takes over, and how often rounds begin."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mdl.config import EndSection
from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.agent.conductor import Phase
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.run_end import Ending, RunKnowledge
from mdl.protocol.counts import Course, Evaluation, Fit, Judgements, Labelling, ModelJudgement
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import MeshFinished, RoundOpened, RoundTold
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import RoundEvaluation
from mdl.scheduler.policies.registry import make_policy
from tests.peers.roles.desk import A, B, Desk


def _hear(ending: Ending, summary: RoundSummary, names: str = "ab") -> None:
    """A round is told, of which these devices of ten windows each say the same."""
    figures = {"accuracy": summary.accuracy, "f1": summary.macro_f1, "loss": summary.loss}
    told = {name: value for name, value in figures.items() if value is not None}
    if summary.fits:
        told["r2"] = summary.score
    ending.hear(summary, tuple(ModelJudgement(name, 10, **told) for name in names) if told else ())


def _summary(number: int, accuracy: float | None = None, loss: float | None = None) -> RoundSummary:
    return RoundSummary(number, 2.0, ("a", "b"), (), {}, 0, loss, accuracy, digest=f"{number:02x}")


def _reason(settings: EndSection, *figures: float, by: str = "accuracy", now: float = 0.0) -> str:
    """After rounds with these figures, one a second from `now`."""
    ending = Ending(settings, None, now)
    for number, figure in enumerate(figures, start=1):
        ending.begin(now + number)
        _hear(ending, _summary(number, **{by: figure}))  # type: ignore[arg-type]
        if ending.is_over(now + number + 1):
            return f"{number}: {ending.reason}"
    return ending.reason


def test_the_accuracy_that_was_wanted_ends_a_run() -> None:
    ends = EndSection(accuracy=0.9)
    assert _reason(ends, 0.5, 0.89, 0.9, 0.95) == "3: round 3 has accuracy 90.0%, at least 90.0% was wanted"
    assert _reason(ends, 0.5, 0.8999) == ""
    assert _reason(ends, 0.1, 0.05, by="loss") == ""


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (EndSection(r2=0.8), "round 1 has R² 0.85, at least 0.8 was wanted"),
        (EndSection(r2=0.9), ""),
        (EndSection(mae=4.5), "round 1 has MAE 4, at most 4.5 was wanted"),
        (EndSection(mae=3.9), ""),
        (EndSection(r2=0.9, mae=4.0), "round 1 has MAE 4, at most 4 was wanted"),
    ],
)
def test_what_was_wanted_of_numbers_ends_a_run(ends: EndSection, told: str) -> None:
    ending = Ending(ends, None, 0.0)
    assert ending.waits_for_tests
    ending.begin(1.0)
    _hear(ending, _tested_as(fits=(Fit(5.5, 4.0, 0.75), Fit(2.0, 1.0, 0.95), Fit(0.0, 0.0, None))))
    assert (ending.is_over(2.0), ending.reason) == (bool(told), told)


def test_f1_is_the_micro_one_of_labels_and_the_macro_one_of_classes() -> None:
    for figures, told in (
        ({"labelling": Labelling(0.8, 0.5), "macro_f1": 0.9}, "micro F1 80.0%"),
        ({"accuracy": 0.95, "macro_f1": 0.81}, "macro F1 81.0%"),
    ):
        for wanted, reason in ((0.8, f"round 1 has {told}, at least 80.0% was wanted"), (0.82, "")):
            ending = Ending(EndSection(f1=wanted), None, 0.0)
            _hear(ending, _tested_as(**figures))
            ending.is_over(2.0)
            assert ending.reason == reason


def test_a_goal_holds_for_the_round_before_alone() -> None:
    ending = Ending(EndSection(mae=1.0), None, 0.0)
    _hear(ending, _tested_as(fits=(Fit(2.0, 1.5, 0.7),)))
    _hear(ending, _summary(2))  # nobody tested it
    assert not ending.is_over(3.0)


def _tested_as(**figures: Any) -> RoundSummary:
    return replace(_summary(1), **figures)


def test_rounds_without_a_better_model_end_it() -> None:
    ends = EndSection(no_better=2)
    told = "4: no better model in 2 rounds: round 2 has "
    assert _reason(ends, 0.5, 0.7, 0.7, 0.6, 0.9) == f"{told}accuracy 70.0%"
    assert _reason(ends, 3.0, 1.5, 2.0, 1.5, 1.0, by="loss") == f"{told}loss 1.5"
    assert _reason(ends, 0.5, 0.4, 0.6, 0.5, 0.7) == ""


def test_minutes_count_from_the_first_round() -> None:
    ending = Ending(EndSection(minutes=1), None, now=0.0)
    assert not ending.is_over(1000.0)  # nobody came so far
    ending.begin(1000.0)
    assert not ending.is_over(1059.0)
    ending.begin(1059.0)
    assert ending.is_over(1060.0)
    assert ending.reason == "1 minutes are over"


def test_a_run_without_an_end_has_no_course() -> None:
    assert (Ending(EndSection(), None, 0.0).course, Ending(EndSection(), Course(5.0), 0.0).course) == (None, None)
    assert _reason(EndSection(), 0.5, 0.5, 0.5, 1.0) == ""


def test_another_agent_goes_on_counting() -> None:
    first = Ending(EndSection(minutes=10, no_better=3), None, now=50.0)
    first.begin(100.0)
    _hear(first, _summary(1, 0.8))
    first.begin(130.0)
    judged = ModelJudgement("a", 10, 0.8), ModelJudgement("b", 10, 0.8)
    assert first.course == Course(30.0, 1, 0.8, None, "01", best=judged, last=judged)
    later = Ending(EndSection(minutes=10, no_better=3), first.course, now=7000.0)
    for number in (2, 3):
        _hear(later, _summary(number, 0.7))
        assert not later.is_over(7001.0)
    assert later.course
    assert later.course.best_round == 1
    assert not later.is_over(7569.0)
    assert later.is_over(7570.0)
    later = Ending(EndSection(no_better=3), first.course, now=7000.0)
    _hear(later, _summary(4, 0.79))
    assert later.is_over(7001.0)


# -- rounds that other devices judge ----------------------------------------------------------------------------------


def _judged(number: int, **accuracies: float) -> tuple[RoundSummary, Judgements]:
    """A round as the agent tells it: ten test windows a device, their mean is the mesh's accuracy."""
    devices = tuple(ModelJudgement(name, 10, value, value) for name, value in accuracies.items())
    mean = sum(accuracies.values()) / len(accuracies)
    return replace(_summary(number, mean), macro_f1=mean), devices


def test_a_device_that_joins_does_not_make_earlier_rounds_the_best_ones() -> None:
    ending = Ending(EndSection(no_better=6), None, 0.0)
    for number in range(1, 8):
        ending.hear(*_judged(number, a=0.8 + number / 100, b=0.8 + number / 100))
    for number in range(8, 13):  # who joins finds each model worse than the others do, but they find it better
        ending.hear(*_judged(number, a=0.8 + number / 100, b=0.8 + number / 100, c=0.3))
        assert not ending.is_over(1.0)
        assert ending.course
        assert ending.course.best_round == number


def test_a_device_that_joins_has_the_best_model_and_rounds_count_from_there() -> None:
    ending = Ending(EndSection(no_better=3), None, 0.0)
    for number, accuracy in enumerate((0.9, 0.8, 0.8), start=1):
        ending.hear(*_judged(number, a=accuracy, b=accuracy))
    ending.hear(*_judged(4, a=0.8, b=0.8, c=0.5))
    assert not ending.is_over(1.0)  # round 1 has never been tried on c
    assert ending.course
    assert (ending.course.best_round, [each.peer_id for each in ending.course.best]) == (4, ["a", "b", "c"])
    for number in (5, 6, 7):
        assert not ending.is_over(1.0)
        ending.hear(*_judged(number, a=0.8, b=0.8, c=0.5))
    assert ending.is_over(1.0)
    assert ending.reason == "no better model in 3 rounds: round 4 has accuracy 70.0%"


def test_rounds_are_compared_over_the_devices_that_both_have() -> None:
    ending = Ending(EndSection(no_better=9), None, 0.0)
    ending.hear(*_judged(1, a=0.8, b=0.8, c=0.2))
    ending.hear(*_judged(2, a=0.7, b=0.8))  # 75 % is more than 60 %, and a worse model
    assert ending.course
    assert ending.course.best_round == 1
    ending.hear(*_judged(3, a=0.9, b=0.8))
    ending.hear(*_judged(4, a=0.8, b=0.8, c=0.2))  # c is back: it is no newcomer
    assert ending.course.best_round == 3


@pytest.mark.parametrize("ends", [EndSection(accuracy=0.9), EndSection(f1=0.9)])
def test_a_lost_device_ends_nothing_it_counts_with_what_it_told_last(ends: EndSection, caplog: Any) -> None:
    caplog.set_level("INFO")
    ending = Ending(ends, None, 0.0)
    ending.hear(*_judged(1, a=0.92, b=0.92, c=0.8))
    for number in (2, 3):
        ending.hear(*_judged(number, a=0.93, b=0.93))
        assert not ending.is_over(1.0)
    assert "88.7%, with what c told last, and 93.0% without: the run goes on" in caplog.text
    later = Ending(ends, ending.course, 0.0)  # under another agent, too
    later.hear(*_judged(4, a=0.93, b=0.93))
    assert not later.is_over(1.0)
    later.hear(*_judged(5, a=0.96, b=0.96))
    assert later.is_over(1.0)
    assert later.reason.endswith("90.7%, with what c told last, at least 90.0% was wanted")


def test_training_losses_are_compared_over_the_same_devices_too() -> None:
    ending = Ending(EndSection(no_better=9), None, 0.0)
    for number, losses in enumerate(({"a": 1.0, "b": 3.0}, {"a": 1.1}, {"a": 0.9}, {"a": 0.9, "b": 2.0}), start=1):
        told = tuple(ModelJudgement(name, 1, loss=loss) for name, loss in losses.items())
        ending.hear(_summary(number, loss=sum(losses.values()) / len(losses)), told)
    assert ending.course
    assert ending.course.best_round == 3


# -- an agent ---------------------------------------------------------------------------------------------------------


def _round(desk: Desk, **figures: Any) -> None:
    """From two reports of "holding" to the applied result."""
    for peer in (A, B):
        desk.hold(peer)
    hop = desk.hops()[-1]
    desk.merge(hop, desk.receiver_of(hop))
    for peer in (A, B):
        desk.stage(peer)
    for peer in (A, B):
        desk.apply(peer, **figures)


def _tested(desk: Desk, number: int, right: int) -> None:
    for peer in (A, B):
        evaluation = Evaluation((right,), (0,), (10 - right,), 1.0, 10)
        desk.report(peer, evaluation=RoundEvaluation(number, evaluation))


def test_the_next_round_waits_for_the_tests_and_the_mesh_ends_for_all_with_the_reason() -> None:
    desk = Desk(rounds=0, end=EndSection(accuracy=0.9))
    for peer in (A, B):
        desk.report(peer)
    _round(desk)
    assert (desk.agent.phase, desk.agent.waiting_for) == (Phase.GATHERING, "the tests of the last round")
    _tested(desk, 1, right=5)
    assert desk.last(RoundOpened).round_id == 2  # at once, without waiting for a tick
    told = tuple(ModelJudgement(name, 10, 0.5, 2 / 3) for name in "ab")
    assert desk.last(RoundOpened).course == Course(
        pytest.approx(desk.now, abs=5.0), 1, 0.5, None, "7731", best=told, last=told
    )
    _round(desk)
    _tested(desk, 2, right=9)
    assert desk.agent.phase is Phase.FINISHING
    desk.pass_time(1.0, A, B)
    told = desk.last(MeshFinished)
    assert told.reason == "round 2 has accuracy 90.0%, at least 90.0% was wanted"
    assert told.course.best_round == 2
    assert set(desk.told(MeshFinished)) == {"a", "b"}
    assert [summary.accuracy for summary in desk.recorded] == [0.5, 0.9]
    assert set(desk.told(RoundTold)) == {"a", "b"}  # every device keeps its line
    assert desk.last(RoundTold).summary == desk.recorded[-1]
    assert desk.recorded[-1].agent == "agent"
    said = [type(message) for _, message in desk.said]
    assert said.index(MeshFinished) > len(said) - 1 - said[::-1].index(RoundTold)  # before anybody leaves


def test_tests_that_do_not_come_hold_up_the_run_for_a_while_only() -> None:
    desk = Desk(rounds=0, end=EndSection(no_better=1), farewell_s=20.0)
    for peer in (A, B):
        desk.report(peer)
    _round(desk)
    desk.pass_time(19.0, A, B)
    assert desk.last(RoundOpened).round_id == 1
    desk.pass_time(2.0, A, B)
    assert desk.last(RoundOpened).round_id == 2


def test_minutes_end_a_run_between_rounds() -> None:
    desk = Desk(rounds=0, end=EndSection(minutes=1.0))
    for peer in (A, B):
        desk.report(peer)
    for peer in (A, B):
        desk.join(peer)
    desk.pass_time(61.0, A, B)
    assert desk.agent.phase is not Phase.FINISHING  # the open round is finished
    _round(desk)
    assert desk.agent.phase is Phase.FINISHING
    assert desk.agent.ending.reason == "1 minutes are over"


def test_a_round_begins_at_most_once_a_period() -> None:
    desk = Desk(rounds=2, every_s=600.0)
    for peer in (A, B):
        desk.report(peer)
    began = desk.now
    _round(desk)
    assert desk.agent.waiting_for == "the next round: one begins every 600 s"
    desk.pass_time(began + 598.0 - desk.now, A, B)
    assert desk.last(RoundOpened).round_id == 1
    desk.pass_time(3.0, A, B)
    assert desk.last(RoundOpened).round_id == 2
    _round(desk)
    assert desk.agent.phase is Phase.FINISHING  # the last round is done: nobody waits for one more period


def test_an_agent_that_takes_over_keeps_the_period_but_goes_on_at_once_with_an_open_round() -> None:
    desk = Desk(rounds=0, every_s=600.0)
    desk.now = 5000.0
    taken = RunKnowledge(opened_at=4900.0)
    desk.agent = MobileAgent(Contributor("agent", 1), make_policy("fifo"), AgentSettings(every_s=600.0), taken=taken)
    for peer in (A, B):
        desk.report(peer)
    desk.pass_time(497.0, A, B)
    assert desk.told(RoundOpened) == []
    desk.pass_time(5.0, A, B)
    assert desk.last(RoundOpened).round_id == 1
    open_ = desk.agent.attempt()[1]
    for peer in (A, B):
        desk.join(peer)
    desk.agent = MobileAgent(
        Contributor("agent", 2), make_policy("fifo"), AgentSettings(every_s=600.0), term=desk.agent.term + 7,
        taken=RunKnowledge(opened_at=desk.now), now=desk.now,
    )  # fmt: skip
    desk.said.clear()
    for _ in range(5):
        for peer in (A, B):
            desk.report(peer, term=desk.agent.term)
    assert {message.attempt for _, message in desk.said if isinstance(message, RoundOpened)} == {open_}
