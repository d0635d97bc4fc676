"""Participation rules: when they close, with which devices, and the reasons that people read."""

from __future__ import annotations

from itertools import combinations
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError
from mdl.scheduler.rounds.learned import RULES, make_rule
from mdl.scheduler.rounds.participation import (
    ARMS,
    Bandit,
    Bounds,
    Close,
    DeviceSeen,
    RoundSeen,
    WaitFor,
    best_set,
    in_plan_order,
    plan_exchange,
)


def _device(name: str, ready_in_s: float = 0.0, **changes: object) -> DeviceSeen:
    progress = 1.0 if ready_in_s == 0.0 else 0.5
    given: dict[str, object] = {"progress": progress, "link_mb_s": 10.0} | changes
    return DeviceSeen(device_id=name, ready_in_s=ready_in_s, **given)  # type: ignore[arg-type]


def _seen(*devices: DeviceSeen, open_s: float = 0.0, number: int = 1, size_mb: float = 10.0) -> RoundSeen:
    return RoundSeen(number=number, open_s=open_s, size_mb=size_mb, latency_s=0.0, devices=devices)


READY = [_device(name) for name in "abcd"]


def test_a_close_says_who_would_have_been_waited_for_and_when_its_work_comes() -> None:
    others = [_device("f", 2.0), _device("g", 3.0), _device("h", 4.0)]
    busy = _device("e", 14.2, busy_for_s=40.0, kind=UsageKind.CALL, left_out=2)
    closed = make_rule("third").decide(_seen(*READY, _device("i"), busy, *others, open_s=2.0, number=14))
    assert isinstance(closed, Close)
    assert closed.reason == (
        "closed at 2.0 s with 5 of 9: e needs about 14 s more (in use for 40 s) and 3 more need less; "
        "its work comes with a later round, at the latest round 21"
    )


def test_third_waits_for_a_third_and_for_the_grace_and_says_so() -> None:
    late = [_device("b", 5.0), _device("c", 6.0), _device("d", 7.0)]
    rule = make_rule("third")
    early = rule.decide(_seen(_device("a"), *late, open_s=9.0))
    assert early == WaitFor(inf, ("b", "c", "d"), "waits for b, c, d: 1 of 4 can give, 2 are needed")
    grace = rule.decide(_seen(_device("a"), _device("e"), *late, open_s=1.5))
    assert grace == WaitFor(2.0, ("b", "c", "d"), "waits for b, c, d: 2 of 5 can give, open until 2 s")
    closed = rule.decide(_seen(_device("a"), _device("e"), *late, open_s=2.0))
    assert isinstance(closed, Close)
    assert set(closed.devices) == {"a", "e"}


def test_no_grace_passes_when_all_can_give() -> None:
    assert isinstance(make_rule("third").decide(_seen(*READY)), Close)
    assert isinstance(make_rule("deadline").decide(_seen(*READY)), Close)


def test_a_device_at_the_bound_is_waited_for_and_never_dropped() -> None:
    rule = make_rule("third?left_out_at_most=3")
    owed = _device("e", 30.0, left_out=3)
    waits = rule.decide(_seen(*READY, owed, _device("f", 9.0), open_s=60.0))
    assert isinstance(waits, WaitFor)
    assert (waits.devices, waits.until_s) == (("e",), inf)
    assert "e was left out of 3 rounds in a row, the most is 3" in waits.reason
    assert isinstance(rule.decide(_seen(*READY, msgspec.structs.replace(owed, left_out=2), open_s=60.0)), Close)
    closed = rule.decide(_seen(*READY, _device("e", left_out=3), _device("f", 9.0), open_s=60.0))
    assert isinstance(closed, Close)
    assert (closed.kept, closed.devices[0], closed.drop_times) == (("e",), "e", 2.0)


def test_all_waits_for_everybody_and_drops_nobody() -> None:
    rule = make_rule("all")
    waits = rule.decide(_seen(*READY, _device("e", 900.0), open_s=900.0))
    assert isinstance(waits, WaitFor)
    assert waits.devices == ("e",)
    closed = rule.decide(_seen(*READY))
    assert isinstance(closed, Close)
    assert (len(closed.devices), closed.drop_times, closed.reason) == (4, inf, "closed at 0.0 s with 4 of 4")


def test_deadline_and_k_of_n_close_when_their_names_say() -> None:
    late = [_device(name, 50.0) for name in "efgh"]
    assert isinstance(make_rule("deadline").decide(_seen(*READY, *late, open_s=7.9)), WaitFor)
    assert isinstance(make_rule("deadline").decide(_seen(*READY, *late, open_s=8.0)), Close)
    assert isinstance(make_rule("deadline").decide(_seen(*READY, *late, _device("i", 1.0), open_s=9.0)), WaitFor)
    assert isinstance(make_rule("k-of-n").decide(_seen(*READY, *late, open_s=0.0)), WaitFor)
    assert isinstance(make_rule("k-of-n?wait_for=0.5").decide(_seen(*READY, *late, open_s=0.0)), Close)


def test_best_ratio_leaves_out_a_link_that_slows_the_exchange() -> None:
    closed = make_rule("best-ratio").decide(_seen(*READY, _device("e", link_mb_s=0.1), open_s=1.0))
    assert isinstance(closed, Close)
    assert set(closed.devices) == set("abcd")
    assert closed.reason == "closed at 1.0 s with 4 of 5; without e, which would slow it down"


def test_best_ratio_waits_for_a_device_that_is_nearly_ready_and_not_for_one_that_is_far() -> None:
    rule = make_rule("best-ratio")
    near = rule.decide(_seen(*READY, _device("e", 0.05), open_s=3.0))
    assert isinstance(near, WaitFor)
    assert (near.devices, near.until_s) == (("e",), pytest.approx(3.05))
    assert isinstance(rule.decide(_seen(*READY, _device("e", 60.0), open_s=3.0)), Close)


def test_best_ratio_takes_a_device_at_the_bound_however_slow_it_is() -> None:
    rule = make_rule("best-ratio")
    owed = _device("e", link_mb_s=0.1, left_out=9)
    closed = rule.decide(_seen(*READY, owed, open_s=1.0))
    assert isinstance(closed, Close)
    assert closed.devices[0] == "e"
    waits = rule.decide(_seen(*READY, msgspec.structs.replace(owed, ready_in_s=40.0), open_s=1.0))
    assert isinstance(waits, WaitFor)
    assert waits.devices == ("e",)


def test_best_ratio_takes_all_devices_at_the_bound() -> None:
    owed = [_device(name, link_mb_s=link, left_out=9) for name, link in (("e", 5.0), ("f", 5.0), ("g", 0.01))]
    closed = make_rule("best-ratio").decide(_seen(*READY, *owed, open_s=1.0))
    assert isinstance(closed, Close)
    assert set(closed.kept) == set("efg") <= set(closed.devices)


def test_best_ratio_avoids_a_device_in_the_middle_of_a_call() -> None:
    call = _device("a", busy_for_s=1.0, kind=UsageKind.CALL)
    closed = make_rule("best-ratio").decide(_seen(call, *READY[1:], open_s=1.0))
    assert isinstance(closed, Close)
    assert set(closed.devices) == set("bcd")


@pytest.mark.parametrize("name", ["half", "best-ratio?wait_for=0.51&grace_s=2"])
def test_the_rules_of_a_mesh_give_the_others_a_moment_once_enough_can_give(name: str) -> None:
    """A new device has longer: nobody knows how long it trains."""
    able = [msgspec.structs.replace(each, able_at_s=3.0) for each in READY[:3]]
    far, rule = _device("e", 60.0), make_rule(name)
    assert isinstance(rule.decide(_seen(*able[:2], _device("d", 9.0), far, open_s=4.0)), WaitFor), "3 of 4 are needed"
    early = rule.decide(_seen(*able, far, open_s=4.5))
    assert isinstance(early, WaitFor)
    assert (early.devices, early.until_s) == (("e",), 5.0)
    assert isinstance(rule.decide(_seen(*able, far, open_s=5.0)), Close)
    new = msgspec.structs.replace(far, is_new=True)
    assert isinstance(rule.decide(_seen(*able, new, open_s=12.0)), WaitFor)
    assert isinstance(rule.decide(_seen(*able, new, open_s=13.0)), Close)


@pytest.mark.parametrize("name", ["half", "best-ratio?wait_for=0.51"])
def test_devices_that_are_gone_make_no_smaller_round_enough(name: str) -> None:
    seen = msgspec.structs.replace(_seen(*READY[:3], _device("e", 60.0), open_s=30.0), members=9)
    assert isinstance(make_rule(name).decide(seen), WaitFor), "5 of the 9 that it was opened with"
    all_left = msgspec.structs.replace(_seen(*READY[:3], open_s=30.0), members=9)
    assert isinstance(make_rule(name).decide(all_left), Close)


def test_best_ratio_takes_no_fewer_than_it_is_told_to() -> None:
    slow = [_device("e", link_mb_s=0.2), _device("f", link_mb_s=0.02)]
    closed = make_rule("best-ratio").decide(_seen(*READY[:2], *slow, open_s=1.0))
    bound = make_rule("best-ratio?wait_for=0.75").decide(_seen(*READY[:2], *slow, open_s=1.0))
    assert isinstance(closed, Close)
    assert isinstance(bound, Close)
    assert (len(closed.devices), len(bound.devices)) == (2, 3)


RATES = st.lists(st.floats(0.5, 40.0), min_size=2, max_size=6)


@given(RATES)
def test_the_plan_of_any_set_is_the_bound_of_its_links(rates: list[float]) -> None:
    """`best_set` counts by the bound; `plan_exchange` by shares, which level links that are alike."""
    planned = plan_exchange(rates, [True] * len(rates), 1.0, 0.0).seconds
    bound = 1.15 * max(1.0 / min(rates), 2.0 * (len(rates) - 1) / sum(rates))
    assert bound / 1.31 <= planned <= bound * 1.31


@given(RATES)
def test_the_fastest_links_are_the_best_set_of_their_number(rates: list[float]) -> None:
    def seconds(links: tuple[float, ...]) -> float:
        return max(1.0 / min(links), 2.0 * (len(links) - 1) / sum(links))

    devices = [_device(str(number), link_mb_s=rate) for number, rate in enumerate(rates)]
    order = [each.link_mb_s for each in in_plan_order(devices, inf)]
    for count in range(2, len(rates) + 1):
        assert seconds(tuple(order[:count])) == pytest.approx(min(map(seconds, combinations(rates, count))))


@given(
    st.lists(
        st.tuples(st.just(0.0) | st.floats(0.01, 90.0), st.floats(0.5, 40.0), st.integers(0, 9), st.floats(0.0, 60.0)),
        min_size=2,
        max_size=9,
    ),
    st.floats(0.0, 100.0),
    st.sampled_from(sorted(RULES)),
)
def test_every_rule_answers_with_something_that_is_possible(
    drawn: list[tuple[float, float, int, float]], open_s: float, name: str
) -> None:
    devices = [
        _device(str(number), ready, link_mb_s=link, left_out=out, busy_for_s=busy, kind=UsageKind.INTERACTIVE)
        for number, (ready, link, out, busy) in enumerate(drawn)
    ]
    decision = make_rule(name).decide(_seen(*devices, open_s=open_s))
    able = {each.device_id for each in devices if each.can_give}
    owed = {each.device_id for each in devices if each.left_out >= 9}
    assert decision.reason
    if isinstance(decision, Close):
        assert len(set(decision.devices)) == len(decision.devices) >= 2
        assert set(decision.devices) <= able
        assert owed <= set(decision.devices)
        assert set(decision.kept) == (owed if name != "all" else set())
    else:
        assert decision.until_s > open_s or decision.until_s == inf
        assert decision.devices
        assert not set(decision.devices) & able


def test_the_best_set_of_now_needs_devices_that_can_give() -> None:
    assert best_set(_seen(_device("a"), _device("b", 1.0)), 9.0, now=True) is None
    found = best_set(_seen(*READY, _device("b", 0.01)), 9.0, now=True)
    assert found is not None
    assert found.close_in_s == 0.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("thrid", "did you mean 'third'"),
        ("third?wait=0.5", "did you mean 'wait_for'"),
        ("third?wait_for=2", "wait_for='2': expected a number from 0 to 1"),
        ("third?grace_s=nan", "grace_s='nan'"),
        ("third?left_out_at_most=0", "from 1 to 1000"),
        ("third?grace_s=inf", "from 0 to 3600"),
    ],
)
def test_a_wrong_rule_is_told_with_what_would_be_valid(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        make_rule(text)


def test_bounds_change_the_rule_and_its_name_keeps_them() -> None:
    rule = make_rule("third?wait_for=1&grace_s=0&left_out_at_most=inf")
    assert rule.name == "third?wait_for=1&grace_s=0&left_out_at_most=inf"
    assert isinstance(rule.decide(_seen(*READY, _device("e", 1.0, left_out=500), open_s=50.0)), WaitFor)


def test_the_bandit_tries_each_arm_and_then_follows_the_best_one() -> None:
    bandit, best, played = Bandit("bandit", Bounds()), ARMS[3], []
    for _ in range(300):
        arm = (bandit.bounds.wait_for, bandit.bounds.grace_s)
        played.append(arm)
        bandit.hear(10.0, 2.0 if arm == best else 1.0)
    assert played[: len(ARMS)] == list(ARMS)
    assert played[100:].count(best) > 0.7 * 200
    for _ in range(300):  # the mesh has changed
        arm = (bandit.bounds.wait_for, bandit.bounds.grace_s)
        played.append(arm)
        bandit.hear(10.0, 2.0 if arm == ARMS[1] else 0.5)
    assert played[-100:].count(ARMS[1]) > 70


def test_a_bandit_that_only_hears_of_abandoned_rounds_goes_on() -> None:
    bandit = Bandit("bandit", Bounds())
    for _ in range(20):
        bandit.hear(5.0, 0.0)
    assert isinstance(bandit.decide(_seen(*READY)), Close)
