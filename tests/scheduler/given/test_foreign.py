"""A policy of the user's own cannot do what no policy may, and its mistakes do not end a round."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mdl.errors import ConfigError
from mdl.own import Own
from mdl.scheduler.given import Foreign
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Wait

FREE, GET, BUSY = DeviceState.FREE, DeviceState.GET, DeviceState.BUSY


def see(*states: DeviceState) -> ChainView:
    return ChainView(1.0, 1.0, tuple(DeviceView(f"p{index}", state) for index, state in enumerate(states)))


class Mine:
    """Says what it was told to."""

    def __init__(self, say: Callable[[ChainView], object]) -> None:
        self.decide = say


def foreign(say: Callable[[ChainView], object]) -> Foreign:
    return Foreign(Own("mine:make", lambda: Mine(say)))


def test_its_decision_is_told_with_what_it_saw_and_its_own_reason() -> None:
    policy = foreign(lambda view: Pair("p2", "p0", "because\nI like it"))
    decision = policy.decide(see(FREE, BUSY, FREE))
    assert decision == Pair("p2", "p0", "mine:make: it sees 2 free, 1 busy; p2 to p0: because\\nI like it")
    waits = foreign(lambda view: Wait("a better one comes")).decide(see(FREE, GET, FREE))
    assert waits == Wait("mine:make: it sees 2 free, 1 receiving, and waits: a better one comes")


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (Pair("p0", "p0", ""), "it paired p0 and p0, which are not two free devices"),
        (Pair("p0", "p1", ""), "it paired p0 and p1, which are not two free devices"),
        (Pair("nobody", ["p0"], ""), "it paired nobody and"),  # type: ignore[arg-type]
        (None, "it said None, which is neither a Pair nor a Wait"),
        (("p0", "p2"), "it said ('p0', 'p2'), which is neither a Pair nor a Wait"),
    ],
)
def test_greedy_decides_where_it_says_what_cannot_be(said: object, wrong: str) -> None:
    decision = foreign(lambda view: said).decide(see(FREE, BUSY, FREE))
    assert isinstance(decision, Pair)
    assert {decision.sender, decision.receiver} == {"p0", "p2"}
    assert decision.reason.startswith(f"mine:make leaves it to greedy ({wrong}")


def test_greedy_decides_where_it_waits_for_nobody_or_fails() -> None:
    assert "(it waits though no device is busy)" in foreign(lambda view: Wait("hm")).decide(see(FREE, FREE)).reason
    failed = foreign(lambda view: {}["p9"]).decide(see(FREE, FREE))
    assert failed.reason.startswith("mine:make leaves it to greedy (it failed with KeyError: 'p9')")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: 3, "returned int, not an object with decide"),
        (lambda needed: None, "its factory failed with TypeError"),
        (lambda: {}["x"], "its factory failed with KeyError: 'x'"),
    ],
)
def test_a_function_that_makes_no_policy_is_one_line(make: Callable[..., object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"policy 'mine:make'.*{said}"):
        Foreign(Own("mine:make", make))


def test_values_are_shown_if_it_has_them() -> None:
    policy = Mine(lambda view: Wait(""))
    assert Foreign(Own("mine:make", lambda: policy)).explain(see(FREE, FREE)) == []
    policy.explain = lambda view: [("p0 sends", 1)]  # type: ignore[attr-defined]
    assert Foreign(Own("mine:make", lambda: policy)).explain(see(FREE, FREE)) == [("p0 sends", 1.0)]
    policy.explain = lambda view: 3  # type: ignore[attr-defined]
    assert Foreign(Own("mine:make", lambda: policy)).explain(see(FREE, FREE)) == []
