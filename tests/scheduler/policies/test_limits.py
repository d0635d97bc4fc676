"""Devices whose owners' limits leave no room for one more delta (Eq. 4), as policies and the environment see them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError
from mdl.scheduler.explain.watched_play import Bench
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, stand_of
from mdl.scheduler.policies.features import COLUMN, look_at, observe_receivers, observe_senders
from mdl.scheduler.policies.layout import lay_out, prospects
from mdl.scheduler.policies.registry import POLICIES, make_policy
from mdl.scheduler.study.optimal import Optimal, solve
from mdl.scheduler.study.play import play
from mdl.scheduler.training.env import ChainEnv
from mdl.sim.timing.scenario import draw_scenario

FREE = DeviceState.FREE


def see(*full: str, links: tuple[float, ...] = (4.0, 9.0, 5.0)) -> ChainView:
    names = "abcdef"[: len(links)]
    devices = (
        DeviceView(name, FREE, link, 100.0, may_receive=name not in full)
        for name, link in zip(names, links, strict=True)
    )
    return ChainView(0.0, 10.0, tuple(devices))


def limit(scenario: Scenario, *full: int) -> Scenario:
    devices = (
        msgspec.structs.replace(device, may_receive=index not in full) for index, device in enumerate(scenario.devices)
    )
    return msgspec.structs.replace(scenario, devices=tuple(devices))


@pytest.mark.parametrize("policy", ["greedy", "greedy-risk", "dqn"])
def test_eq_4_the_fastest_would_receive_and_sends_if_it_may_not(policy: str) -> None:
    free = make_policy(policy).decide(see())
    assert isinstance(free, Pair)
    assert free.receiver == "b"
    decision = make_policy(policy).decide(see("b"))
    assert isinstance(decision, Pair)
    assert decision.receiver in "ac"
    if policy != "dqn":
        assert decision.sender == "b"
        assert "b sends: its owner's limit lets it receive nothing" in decision.reason


def test_eq_4_the_layout_lets_who_may_not_receive_send_first_and_to_others() -> None:
    layout = lay_out(prospects(stand_of(see("b", "d", links=(4.0, 9.0, 5.0, 8.0)))))
    targets = layout.targets[0].tolist()
    assert not {1, 3} & set(targets)
    assert targets[1] >= 0 <= targets[3]


def test_eq_4_the_network_may_pick_who_may_receive_and_not_the_only_such_device_as_sender() -> None:
    look = look_at(stand_of(see("b", "c")))
    features, valid, _ = observe_senders(look)
    assert valid[0].tolist() == [False, True, True, False]
    assert features[0, :, COLUMN["may_pick"]].tolist() == [0.0, 1.0, 1.0]
    features, valid, planned = observe_receivers(look, np.array([1]))
    assert valid[0].tolist() == [True, False, False, False]
    assert planned.tolist() == [0]
    assert features[0, :, COLUMN["may_pick"]].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("policy", POLICIES)
def test_eq_4_a_played_round_keeps_every_limit(policy: str) -> None:
    for seed in range(3):
        scenario = limit(draw_scenario("dynamic", 6, seed), 0, 2, 5)
        played = play(scenario, Bench().policy(policy, scenario))
        assert not {ordered.hop.receiver for ordered in played.ordered} & {0, 2, 5}
        assert len(played.ordered) == 5


@pytest.mark.parametrize(("family", "full"), [("hetero", (0, 2, 5)), ("hetero", (1, 2, 3, 4, 5)), ("paper", (0, 1))])
def test_eq_4_the_planner_plans_with_the_limits(family: str, full: tuple[int, ...]) -> None:
    """Not around them afterwards: where nothing is hidden it is as good as the best that keeps them."""
    planned_s, best_s = [], []
    for seed in range(6):
        scenario = limit(draw_scenario(family, 6, seed), *full)
        planned_s.append(play(scenario, make_policy("dp")).makespan_s)
        best_s.append(solve(scenario).makespan_s)
        best = play(scenario, Optimal(scenario))
        assert best.makespan_s >= best_s[-1] - 1e-9
        assert not {ordered.hop.receiver for ordered in best.ordered} & set(full)
    assert sum(best_s) - 1e-9 <= sum(planned_s) <= 1.03 * sum(best_s)


def test_eq_4_the_planner_says_with_whom_the_round_ends_first_of_those_who_may_receive() -> None:
    decision = make_policy("dp").decide(see("b"))
    assert isinstance(decision, Pair)
    assert decision.receiver in "ac"
    assert decision.reason.startswith("dp:")
    assert "to b" not in decision.reason
    nobody = make_policy("dp").decide(see("a", "b", "c"))
    assert nobody.reason.startswith("greedy:")


def test_eq_4_there_is_no_best_round_where_nobody_may_receive() -> None:
    with pytest.raises(ConfigError, match="no device may receive"):
        solve(limit(draw_scenario("hetero", 3, 0), 0, 1, 2))


def test_eq_4_in_the_environment_a_device_beyond_its_limit_is_no_valid_receiver() -> None:
    env = ChainEnv(n=4)
    env.reset(seed=1, options={"scenario": limit(draw_scenario("paper", 4, 3), 1, 2)})
    over = False
    while not over:
        valid = np.flatnonzero(env.valid)
        _, _, over, _, info = env.step(np.int64(valid[0]))
    assert info["end"] == "goal"
    assert not {hop.receiver for hop in env.iteration.hops} & {1, 2}
    env.reset(options={"scenario": limit(draw_scenario("hetero", 2, 3), 1)})
    assert env.valid.tolist() == [False, True, False, False, False]
    env.step(np.int64(1))
    _, _, _, _, info = env.step(np.int64(1))
    assert info["reason"] == "device 1 is the sender of this pair"
