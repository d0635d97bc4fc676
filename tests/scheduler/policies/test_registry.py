"""Policies on any legal view: a legal pair or a reason to wait. Tree and ring are those of the paper (4.4)."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError
from mdl.scheduler.explain.watched_play import Bench
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.policies.registry import OPTIMAL, POLICIES, make_policy, name_policies, quick_policies
from mdl.scheduler.study.optimal import Optimal
from mdl.sim.timing.scenario import draw_scenario

FREE, GET, SEND, DONE, DEAD = (DeviceState[name] for name in ("FREE", "GET", "SEND", "DONE", "DEAD"))
GONE = (DONE, DEAD)


@st.composite
def views(draw: st.DrawFn, ends_known: bool = True) -> ChainView:
    """ends_known: of training, hops and times of use; otherwise nothing can be foreseen."""
    seconds = st.floats(0, 100) if ends_known else st.just(0.0)
    devices = [
        DeviceView(
            f"p{number:02d}",
            draw(st.sampled_from(DeviceState)),
            link_mb_s=draw(st.none() | st.floats(0.01, 1000)),
            free_since_s=draw(st.floats(0, 100)),
            n_agg=draw(st.integers(0, 20)),
            theta=draw(st.floats(1, 1e4)),
            energy_j=draw(st.floats(0, 1e5)),
            battery_percent=draw(st.none() | st.floats(0, 100)),
            charging=draw(st.none() | st.booleans()),
            in_use=draw(st.none() | st.booleans()),
            cpu_percent=draw(st.floats(0, 100)),
            free_memory_bytes=draw(st.integers(0, 1 << 40)),
            kind=draw(st.sampled_from(UsageKind)) if ends_known else UsageKind.IDLE,
            busy_for_s=draw(seconds),
            eta_ready_s=draw(seconds),
            op_left_s=draw(seconds),
        )
        for number in range(draw(st.integers(1, 8)))
    ]
    return ChainView(draw(st.floats(0, 1e6)), draw(st.floats(0, 100)), tuple(devices))


def _view(states: list[DeviceState], **changes: dict[str, object]) -> ChainView:
    devices = (DeviceView(f"p{number:02d}", state) for number, state in enumerate(states))
    return ChainView(10.0, 1.0, tuple(msgspec.structs.replace(d, **changes.get(d.peer_id, {})) for d in devices))


def _play(policy: str, count: int) -> list[tuple[int, int]]:
    """All hops of a round, one after the other: (sender, receiver) by position."""
    states, pairs = [FREE] * count, []
    while sum(state is FREE for state in states) > 1:
        decision = make_policy(policy).decide(_view(states))
        assert isinstance(decision, Pair), decision
        sender, receiver = int(decision.sender[1:]), int(decision.receiver[1:])
        states[sender] = DONE
        pairs.append((sender, receiver))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=30)
@given(view=views())
def test_any_view_gives_a_legal_pair_or_a_reason_to_wait(policy: str, view: ChainView) -> None:
    decision = make_policy(policy).decide(view)
    assert decision.reason
    assert decision == make_policy(policy).decide(view)
    if isinstance(decision, Pair):
        free = {device.peer_id for device in view.free()}
        assert decision.sender != decision.receiver
        assert {decision.sender, decision.receiver} <= free


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", [DeviceState.BUSY, GET])
def test_a_model_of_no_size_takes_no_time_and_has_its_pairs(policy: str, state: DeviceState) -> None:
    """Transfers that take no time are no measure of how long a device stays busy."""
    once = {"kind": UsageKind.ONCE, "busy_for_s": 1.0, "op_left_s": 1.0}
    view = msgspec.structs.replace(_view([FREE, FREE, state], p02=once), size_mb=0.0)
    assert isinstance(make_policy(policy).decide(view), Pair | Wait)


@pytest.mark.parametrize("policy", ["greedy", "greedy-risk", "fifo"])
@settings(max_examples=30)
@given(view=views(ends_known=False))
def test_no_one_waits_for_what_may_never_end_while_two_are_free(policy: str, view: ChainView) -> None:
    assert isinstance(make_policy(policy).decide(view), Pair) == (len(view.free()) >= 2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 16])
def test_n_free_devices_need_n_minus_1_hops(policy: str, count: int) -> None:
    pairs = _play(policy, count)
    assert len(pairs) == count - 1
    assert len({sender for sender, _ in pairs}) == count - 1


@pytest.mark.parametrize("count", [2, 3, 5, 8, 9, 16])
def test_4_4_tree_makes_exactly_the_binomial_pairs(count: int) -> None:
    """Position i sends once, to i without its lowest set bit, and only after all that send to it have sent."""
    pairs = _play("tree", count)
    assert sorted(pairs) == [(position, position & (position - 1)) for position in range(1, count)]
    sent: set[int] = set()
    for sender, _ in pairs:
        assert {child for child, parent in pairs if parent == sender} <= sent
        sent.add(sender)


def test_tree_runs_independent_hops_at_once() -> None:
    first = make_policy("tree").decide(_view([FREE, FREE, FREE, FREE]))
    assert (first.sender, first.receiver) == ("p03", "p02")  # type: ignore[union-attr]
    second = make_policy("tree").decide(_view([FREE, FREE, GET, SEND]))
    assert (second.sender, second.receiver) == ("p01", "p00")  # type: ignore[union-attr]
    assert isinstance(make_policy("tree").decide(_view([GET, SEND, GET, SEND])), Wait)


def test_tree_hands_the_children_of_a_dead_position_to_its_parent() -> None:
    decision = make_policy("tree").decide(_view([FREE, DONE, DEAD, FREE]))
    assert (decision.sender, decision.receiver) == ("p03", "p00")  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_4_4_ring_is_the_chain_by_position(count: int) -> None:
    assert _play("ring", count) == [(position, position + 1) for position in range(count - 1)]


def test_ring_waits_for_the_next_in_line_and_steps_over_the_dead() -> None:
    waiting = make_policy("ring").decide(_view([FREE, DeviceState.TRAINING, FREE]))
    assert waiting == Wait("ring: the next in line, p01, is training")
    decision = make_policy("ring").decide(_view([FREE, DEAD, FREE]))
    assert (decision.sender, decision.receiver) == ("p00", "p02")  # type: ignore[union-attr]


def test_fifo_pairs_the_two_who_have_been_free_longest() -> None:
    since = {"p00": 5.0, "p01": 1.0, "p02": 3.0}
    view = _view([FREE] * 3, **{peer: {"free_since_s": at} for peer, at in since.items()})
    decision = make_policy("fifo").decide(view)
    assert {decision.sender, decision.receiver} == {"p01", "p02"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "burden",
    [
        {"link_mb_s": 0.5},
        {"energy_j": 1000.0},
        {"in_use": True},
        {"cpu_percent": 99.0},
        {"battery_percent": 5.0, "charging": False},
    ],
    ids=lambda burden: next(iter(burden)),
)
def test_greedy_relieves_the_burdened_device_first(burden: dict[str, object]) -> None:
    view = _view([FREE] * 4, **{f"p0{n}": {"link_mb_s": 5.0} for n in range(4)} | {"p02": {"link_mb_s": 5.0} | burden})
    decision = make_policy("greedy").decide(view)
    assert isinstance(decision, Pair)
    assert decision.sender == "p02"


def test_greedy_lets_the_fast_receive() -> None:
    view = _view([FREE] * 3, p00={"link_mb_s": 2.0}, p01={"link_mb_s": 50.0}, p02={"link_mb_s": 5.0})
    decision = make_policy("greedy").decide(view)
    assert (decision.sender, decision.receiver) == ("p00", "p01")  # type: ignore[union-attr]
    assert decision.reason == (
        "greedy: p00 sends: it costs 0.50 s (next p02 0.20); p01 receives: its way ends in 0.52 s (next p02 0.70)"
    )


def test_a_charging_device_with_a_low_battery_is_no_burden() -> None:
    view = _view([FREE] * 3, p01={"battery_percent": 5.0, "charging": True}, p02={"in_use": True})
    decision = make_policy("greedy").decide(view)
    assert isinstance(decision, Pair)
    assert decision.sender == "p02"


def test_a_policy_that_does_not_exist_is_named_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'gredy'; did you mean 'greedy'\? \(valid: .*tree"):
        make_policy("gredy")
    assert all(make_policy(name).name == name for name in POLICIES)


def test_optimal_is_there_for_those_who_have_the_scenario() -> None:
    scenario = draw_scenario("hetero", 3, 0)
    assert isinstance(Bench().policy(OPTIMAL, scenario), Optimal)
    with pytest.raises(ConfigError, match="policy 'optimal' knows when busy times end: it can judge"):
        make_policy(OPTIMAL)


def test_help_texts_name_every_policy_and_a_new_one_needs_no_text() -> None:
    *names, last = POLICIES
    assert name_policies() == f"{', '.join(names)} or {last}"
    assert name_policies(OPTIMAL, last="and").endswith(f"{names[-1]}, {last} and optimal")
    assert [make_policy(name).name for name in POLICIES] == list(POLICIES)


def test_naming_the_policies_loads_none_of_them() -> None:
    code = "import sys, mdl.scheduler.policies.registry as r; print(r.name_policies() and 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_compared_by_default_is_of_the_registry_so_that_a_new_policy_is_among_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert quick_policies() == ["dqn", "greedy", "fifo", "tree", "ring"]
    assert quick_policies(with_optimal=True)[-1] == OPTIMAL
    monkeypatch.setitem(POLICIES, "mine", POLICIES["fifo"])
    assert quick_policies()[-1] == "mine"
