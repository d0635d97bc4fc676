"""A reason tells what decided: who reads it, and nothing else, comes to the same choice."""

import re
from collections.abc import Iterator

import pytest

from mdl.errors import ConfigError
from mdl.scheduler.policies.chain import ChainView, Choice, Decision, DeviceState, DeviceView, Pair, Policy, Wait
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.optimal import Optimal
from mdl.scheduler.study.play import play
from mdl.sim.timing.scenario import draw_scenario

FREE, DONE, DEAD, TRAINING = DeviceState.FREE, DeviceState.DONE, DeviceState.DEAD, DeviceState.TRAINING
# What adding a margin in another order changes.
_ROUNDING = 1e-5
# Two decimals are told where they suffice.
_TOLD = 0.011


class _Heard:
    """A policy that is listened to."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self.all: list[tuple[ChainView, Decision]] = []

    def decide(self, view: ChainView) -> Decision:
        decision = self._policy.decide(view)
        self.all.append((view, decision))
        return decision


def _decisions(name: str, seeds: int) -> Iterator[tuple[ChainView, Decision]]:
    for family in ("paper", "hetero", "dynamic", "dying"):
        for n in (3, 6, 9):
            for seed in range(seeds):
                scenario = draw_scenario(family, n, seed)
                try:
                    heard = _Heard(Optimal(scenario) if name == "optimal" else make_policy(name))
                except ConfigError:
                    continue  # somebody dies, where there is no optimum
                play(scenario, heard)
                yield from heard.all


def _check(choice: Choice) -> None:
    """The claim itself: the best is picked, or the favoured within its margin."""
    values = dict(choice.options)
    assert len(values) == len(choice.options)
    own, sign = values[choice.picked], 1 if choice.most else -1
    for name, value in choice.options:
        lead = sign * (value - own)
        if choice.picked == choice.favoured:
            assert lead <= choice.margin + _ROUNDING, choice
        elif name == choice.favoured:
            assert lead <= -choice.margin + _ROUNDING, choice
        else:
            assert lead <= _ROUNDING, choice


_NUMBER = r"(-?[\d.]+)"
_WON = re.compile(rf"it (?:costs|is worth) {_NUMBER} s \(next [^()]*? {_NUMBER}\)")
_EARLIER = re.compile(rf"(?:ends in|costs only) {_NUMBER} s \(next [^()]*? {_NUMBER}\)")
_KEPT = re.compile(rf" {_NUMBER} s; [^;]*? {_NUMBER} is better by less than the margin of {_NUMBER} s")
_BEATEN = re.compile(rf" {_NUMBER} s; [^;]*? {_NUMBER}, is worse by more than the margin of {_NUMBER} s")


def _read(reason: str) -> int:
    """Check what is written, as a person would; how many comparisons were found."""
    told = [(float(own), float(other)) for own, other in _WON.findall(reason)]
    told += [(float(other), float(own)) for own, other in _EARLIER.findall(reason)]
    assert all(better > worse for better, worse in told), reason
    kept = [tuple(map(float, found)) for found in _KEPT.findall(reason)]
    beaten = [tuple(map(float, found)) for found in _BEATEN.findall(reason)]
    assert all(abs(own - other) <= margin + _TOLD for own, other, margin in kept), reason
    assert all(abs(own - other) >= margin - _TOLD for own, other, margin in beaten), reason
    if "ends in" not in reason:  # more is better
        assert all(own < other for own, other, _ in kept), reason
        assert all(own > other for own, other, _ in beaten), reason
    return len(told) + len(kept) + len(beaten)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seeds"), [("dqn", 25), ("greedy", 40), ("greedy-risk", 40), ("dp", 8)])
def test_the_pick_is_the_best_under_what_the_reason_claims(name: str, seeds: int) -> None:
    pairs = waits = read = 0
    for view, decision in _decisions(name, seeds):
        free = {device.peer_id for device in view.free()}
        if len(free) < 2:
            continue
        assert decision.why, decision.reason
        for choice in decision.why:
            _check(choice)
        read += _read(decision.reason)
        first = decision.why[0]
        if isinstance(decision, Wait):
            waits += 1
            if name == "greedy":
                assert min(value for _, value in first.options) > 0.0  # nothing starts now
                assert set(
                    re.findall(r"layout is .*: (.+) not free yet", decision.reason)[0].split(" and ")
                ).isdisjoint(free)
            else:
                assert first.picked == "to wait"
        elif name == "dp":
            assert first.picked == f"{decision.sender} to {decision.receiver}"
        else:
            pairs += 1
            assert first.picked == decision.sender
            assert {option for option, _ in (*first.options, *first.ruled_out)} >= free
            if len(decision.why) == 1:
                assert free == {decision.sender, decision.receiver}
            else:
                assert decision.why[1].picked == decision.receiver
                seen = {option for option, _ in (*decision.why[1].options, *first.ruled_out)}
                assert seen >= free - {decision.sender}  # who is to send later does not receive
        if name == "dp" or isinstance(decision, Wait):
            continue
        for choice in decision.why:
            assert choice.tell() in decision.reason
    assert read > 200
    assert waits > 20 or name == "greedy-risk"
    assert pairs > 200 or name == "dp"


def test_a_pick_that_the_margin_decides_is_told_as_such() -> None:
    """Of the learned policy's decisions about every fifth: the network prefers another one, by little."""
    kept = [
        (decision.reason, choice)
        for _, decision in _decisions("dqn", 3)
        for choice in decision.why
        if any(value > dict(choice.options)[choice.picked] for _, value in choice.options)
    ]
    assert len(kept) > 20
    for reason, choice in kept:
        assert choice.picked == choice.favoured
        assert "is better by less than the margin" in reason
        assert "the layout's pick" in reason


def test_fifo_ring_and_optimal_do_what_their_reasons_say() -> None:
    for view, decision in _decisions("fifo", 10):
        if isinstance(decision, Pair):
            since = {device.peer_id: device.free_since_s for device in view.free()}
            own = [since.pop(decision.sender), since.pop(decision.receiver)]
            assert own == sorted(own)
            assert all(own[1] <= other for other in since.values())
    for view, decision in _decisions("ring", 10):
        left = [device for device in view.devices if device.state not in (DONE, DEAD)]
        if isinstance(decision, Pair):
            assert [decision.sender, decision.receiver] == [left[0].peer_id, left[1].peer_id]
        else:
            named = next(
                device for device in left[:2] if f"{device.peer_id}, is {device.state.value}" in decision.reason
            )
            assert named.state is not FREE
    for _, decision in _decisions("optimal", 10):
        if isinstance(decision, Pair):
            assert f"{decision.sender} sends to {decision.receiver} in the best plan" in decision.reason


def test_ring_says_how_many_are_left() -> None:
    assert make_policy("ring").decide(_view(DONE, DONE)) == Wait("ring: 0 of 2 devices left; a pair needs two")


def _view(*states: DeviceState) -> ChainView:
    return ChainView(0.0, 1.0, tuple(DeviceView(str(index), state) for index, state in enumerate(states)))


def test_tree_says_why_two_that_are_free_wait_and_to_whom_orphans_send() -> None:
    """0 is the parent of 2, and both are free; but 1, who comes before 2, still trains."""
    waiting = make_policy("tree").decide(_view(FREE, TRAINING, FREE))
    assert waiting == Wait("tree: each free position waits for its parent or for earlier hops")
    orphan = make_policy("tree").decide(_view(FREE, DONE, DEAD, FREE))
    assert orphan.reason == "tree: position 3 sends to its nearest ancestor that is left, 0"
    parentless = make_policy("tree").decide(_view(DEAD, FREE, DONE, DONE, FREE))
    assert parentless == Pair("4", "1", "tree: the last sends to the first, as their parents are gone")


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (Choice("a", "it costs", (("a", 2.0),), most=True), "it costs 2.00 s"),
        (Choice("a", "it costs", (("a", 2.0), ("b", 1.0)), most=True), "it costs 2.00 s (next b 1.00)"),
        (Choice("a", "it costs", (("a", 0.0012), ("b", 0.0011)), most=True), "it costs 0.0012 s (next b 0.0011)"),
        (Choice("a", "it costs", (("a", 1.0), ("b", 1.0)), most=True), "it costs 1.00 s (as b)"),
        (
            Choice("a", "it is worth", (("a", -2.0), ("b", -1.9)), True, "s", "a", "the plan", 0.3),
            "it is worth -2.00 s; b -1.90 is better by less than the margin of 0.30 s for the plan",
        ),
        (
            Choice("b", "it ends in", (("a", 2.0), ("b", 1.5)), False, "s", "a", "the plan", 0.3),
            "it ends in 1.50 s; the plan, a 2.00, is worse by more than the margin of 0.30 s",
        ),
        (
            Choice("a", "it costs", (("a", 2.0),), True, ruled_out=(("b", "it comes later"), ("c", "so"))),
            "it costs 2.00 s; not b and 1 more: it comes later",
        ),
    ],
)
def test_a_choice_is_told_in_words(choice: Choice, told: str) -> None:
    _check(choice)
    assert choice.tell() == told
