"""The learned policy: decides legally and in bounds, says why, and leaves to greedy what it must not decide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chain.many_rounds import draw_rounds, play_rounds
from mdl.devices.usage import UsageKind
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.policies.fixed import Tree
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.policies.learned import Learned, load_shipped
from mdl.scheduler.policies.qnet_numpy import NumpyQ, Picks, draw_weights, save_weights
from mdl.scheduler.study.judging import finish, judge_network
from mdl.scheduler.study.play import play, view_of
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import FAMILIES, draw_scenario

FREE = DeviceState.FREE


def _view(links: list[float | None], **changes: object) -> ChainView:
    devices = tuple(DeviceView(f"p{index}", FREE, link, 500.0) for index, link in enumerate(links))
    return msgspec.structs.replace(ChainView(1.0, 10.0, devices, 0.02), **changes)


def _with_energy(energy_j: float) -> ChainView:
    view = _view([5.0, 2.0, 3.0])
    spent = msgspec.structs.replace(view.devices[0], energy_j=energy_j)
    return msgspec.structs.replace(view, devices=(spent, *view.devices[1:]))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was never trained: any values at all must lead to legal decisions."""
    path = tmp_path_factory.mktemp("policy") / "fresh.safetensors"
    save_weights(path, draw_weights(np.random.default_rng(5)), {})
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_judging_side_by_side_is_playing_one_after_the_other(family: str) -> None:
    scenarios = [draw_scenario(family, n, seed) for seed in range(3) for n in (3, 9, 12)]
    learned = Learned()
    together = finish(Batch(pack(scenarios)), learned.picks)
    for row, scenario in enumerate(scenarios):
        played = play(scenario, learned)
        assert together.makespan_s[row] == pytest.approx(played.makespan_s, abs=1e-9)
        assert together.energy_j[row][: len(scenario.devices)] == pytest.approx(played.energy_j, abs=1e-9)
        assert together.lost[row] == len(played.lost)
    judged = judge_network("shipped", NumpyQ(load_shipped()[0]), scenarios)
    assert judged.everywhere_s == pytest.approx([play(each, learned).everywhere_s for each in scenarios], abs=1e-9)


@pytest.mark.parametrize(("family", "n"), [("paper", 9), ("hetero", 9), ("dynamic", 9), ("dynamic", 16)])
def test_the_shipped_policy_is_not_worse_than_the_layout_it_starts_from(family: str, n: int) -> None:
    packed = pack([draw_scenario(family, n, seed) for seed in range(500_000, 500_060)])
    learned, laid_out = finish(Batch(packed), Learned().picks), finish(Batch(packed), Picks(None))
    assert learned.makespan_s.mean() < 1.01 * laid_out.makespan_s.mean()


def test_the_shipped_policy_is_faster_than_greedy_that_does_not_wait() -> None:
    scenarios = [draw_scenario("dynamic", 9, seed) for seed in range(500_000, 500_060)]
    learned = finish(Batch(pack(scenarios)), Learned().picks).makespan_s
    greedy = [play(scenario, Greedy(waiting=False)).makespan_s for scenario in scenarios]
    assert learned.mean() < 0.95 * np.mean(greedy)


def test_the_shipped_policy_says_where_it_comes_from() -> None:
    assert {"command", "seed", "evaluation"} <= set(Learned().metadata)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_network_decides_legally_in_any_view(fresh: Path, data: st.DataObject) -> None:
    devices = tuple(
        DeviceView(
            f"p{index}",
            data.draw(st.sampled_from(DeviceState)),
            data.draw(st.none() | st.floats(1e-6, 1e6)),
            data.draw(st.none() | st.floats(1e-6, 1e6)),
            energy_j=data.draw(st.floats(0, 1e9)),
            battery_percent=data.draw(st.none() | st.floats(0, 100)),
            kind=data.draw(st.sampled_from(UsageKind)),
            busy_for_s=data.draw(st.floats(0, 1e6)),
            eta_ready_s=data.draw(st.floats(0, 1e6)),
            op_left_s=data.draw(st.floats(0, 1e6)),
        )
        for index in range(data.draw(st.integers(1, 8)))
    )
    view = ChainView(data.draw(st.floats(0, 1e6)), data.draw(st.floats(1e-3, 1e3)), devices)
    decision = Learned(fresh).decide(view)
    free = {device.peer_id for device in view.free()}
    if isinstance(decision, Wait):
        assert len(free) < 2 or view.may_wait()
    else:
        assert decision.sender != decision.receiver
        assert {decision.sender, decision.receiver} <= free


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (_view([5.0] * 129), "129 devices, it knows 2 to 128"),
        (_view([None, None, None]), "no link speed is known yet"),
        (_view([5.0, 2.0], size_mb=0.0), "a size of 0 MB"),
        (_view([5.0, 2.0], size_mb=float("nan")), "a size of nan MB"),
        (_view([5.0, 2.0], time_s=float("nan")), "not finite"),
        (_with_energy(float("nan")), "not finite"),
        (_with_energy(float("inf")), "not finite"),
        (_view([5e-324, 5.0, 5.0]), "not finite"),
    ],
)
def test_what_is_outside_of_its_range_is_left_to_greedy(view: ChainView, why: str) -> None:
    decision = Learned().decide(view)
    assert isinstance(decision, Pair)
    assert decision.reason.startswith("dqn leaves it to greedy (")
    assert why in decision.reason
    if why != "not finite":
        assert Learned().explain(view) == []


def test_an_unknown_kind_of_use_is_left_to_greedy() -> None:
    view = _view([5.0, 2.0])
    odd = msgspec.structs.replace(view.devices[0], kind=17)
    decision = Learned().decide(msgspec.structs.replace(view, devices=(odd, view.devices[1])))
    assert "p0 is of an unknown kind of use" in decision.reason


def test_a_late_decision_is_left_to_greedy() -> None:
    ticks = iter(range(100))
    learned = Learned(deadline_s=0.5, clock=lambda: float(next(ticks)))
    assert "dqn leaves it to greedy (no decision within 0.5 s)" in learned.decide(_view([5.0, 2.0])).reason
    in_time = Learned(deadline_s=50.0, clock=lambda: float(next(ticks)))
    assert in_time.decide(_view([5.0, 2.0])).reason.startswith("dqn: ")


def test_fewer_than_two_free_devices_wait() -> None:
    view = _view([5.0, 2.0])
    training = msgspec.structs.replace(view.devices[0], state=DeviceState.TRAINING)
    assert isinstance(Learned().decide(msgspec.structs.replace(view, devices=(training, view.devices[1]))), Wait)


def test_the_reason_and_the_explanation_name_the_values_of_the_alternatives() -> None:
    view = view_of(Iteration(draw_scenario("paper", 5, 3)))
    decision, told = Learned().decide(view), Learned().explain(view)
    assert "worth" in decision.reason
    assert "4 -2.31 is better by less than the margin of 0.31 s for the layout's pick" in decision.reason
    free = [device.peer_id for device in view.free()]
    names = [name for name, _ in told]
    assert {f"{peer} sends" for peer in free} <= set(names)
    if isinstance(decision, Pair):
        assert f"{decision.sender} -> {decision.receiver}" in names
    senders = [value for name, value in told if "->" not in name]
    assert senders == sorted(senders, reverse=True)
    assert all(value < 5.0 for _, value in told)


def test_energy_evens_out_over_twenty_rounds_of_equal_devices() -> None:
    rounds = draw_rounds("paper", 9, 25_000, 20)
    spent = {policy.name: play_rounds(rounds, policy)[-1].energy_j for policy in (Learned(), Tree())}
    assert np.var(spent["dqn"]) < 0.01 * np.var(spent["tree"])


def test_a_peer_that_decides_loads_no_torch() -> None:
    heavy = {"torch", "gymnasium", "stable_baselines3"}
    code = f"import sys, mdl.scheduler.policies.learned; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
