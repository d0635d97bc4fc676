"""Greedy relieves the costly, waits only for what is worth it, and evens out energy over rounds."""

from __future__ import annotations

from statistics import fmean, pvariance

import msgspec
import pytest

from benchmarks.chain.many_rounds import draw_rounds, play_rounds
from mdl.devices.usage import UsageKind
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Policy
from mdl.scheduler.policies.greedy import Greedy, expected_free_s
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.optimal import solve
from mdl.scheduler.study.play import play
from mdl.sim.timing.scenario import draw_scenario

FREE, TRAINING, BUSY, GET = (DeviceState[name] for name in ("FREE", "TRAINING", "BUSY", "GET"))
TUNING = 500_000


def _view(*devices: DeviceView) -> ChainView:
    named = (msgspec.structs.replace(device, peer_id=f"p{number}") for number, device in enumerate(devices))
    return ChainView(0.0, 10.0, tuple(named))


def _device(state: DeviceState = FREE, link_mb_s: float | None = 5.0, **known: object) -> DeviceView:
    return DeviceView("", state, link_mb_s=link_mb_s, **known)  # type: ignore[arg-type]


def _pair(policy: Policy, view: ChainView) -> tuple[str, str]:
    decision = policy.decide(view)
    assert isinstance(decision, Pair), decision
    return decision.sender, decision.receiver


def test_two_slow_ones_wait_for_a_fast_one_that_is_expected_soon() -> None:
    view = _view(_device(link_mb_s=1.0), _device(link_mb_s=1.2), _device(TRAINING, 20.0, eta_ready_s=0.5))
    decision = Greedy().decide(view)
    assert decision.reason == "greedy: the first hop of the best layout is p0 to p2: p2 not free yet"
    assert _pair(Greedy(waiting=False), view) == ("p0", "p1")


def test_nobody_waits_for_one_that_comes_too_late() -> None:
    view = _view(_device(link_mb_s=1.0), _device(link_mb_s=1.2), _device(TRAINING, 20.0, eta_ready_s=30.0))
    assert _pair(Greedy(), view) == ("p0", "p1")


@pytest.mark.parametrize(
    "unknown",
    [
        _device(TRAINING, 20.0),
        _device(BUSY, 20.0, busy_for_s=5.0),
        _device(BUSY, 20.0, busy_for_s=60.0, kind=UsageKind.CALL),
        _device(GET, 20.0),
        _device(DeviceState.SEND, 20.0, op_left_s=0.1),
        _device(DeviceState.DEAD, 20.0),
    ],
    ids=["no eta", "no kind", "longer than any call", "no progress known", "will be done", "dead"],
)
def test_nobody_waits_for_what_cannot_be_foreseen(unknown: DeviceView) -> None:
    assert expected_free_s(unknown, 2.0) == float("inf")
    assert _pair(Greedy(), _view(_device(link_mb_s=1.0), _device(link_mb_s=1.2), unknown)) == ("p0", "p1")


def test_a_receiver_that_became_busy_is_expected_when_its_use_has_ended() -> None:
    at_work = _device(GET, op_left_s=2.0)
    in_a_call = msgspec.structs.replace(at_work, kind=UsageKind.CALL, busy_for_s=2.0)
    assert expected_free_s(at_work, 1.0) == 2.0
    assert expected_free_s(in_a_call, 1.0) == pytest.approx(2.0 + 8.0)


def test_a_device_that_is_often_interrupted_sends_first() -> None:
    view = _view(_device(), _device(kind=UsageKind.CALL), _device())
    assert _pair(Greedy(), view)[0] == "p1"
    assert _pair(Greedy(risk=False), view)[0] == "p0"


def test_a_low_battery_counts_only_where_it_is_asked_for() -> None:
    view = _view(_device(), _device(battery_percent=3.0, charging=False), _device())
    assert _pair(Greedy(), view)[0] == "p1"
    assert _pair(Greedy(battery=False), view)[0] == "p0"


def test_unknown_links_count_as_typical_ones() -> None:
    assert _pair(Greedy(), _view(_device(link_mb_s=2.0), _device(link_mb_s=None), _device(link_mb_s=5.0)))[0] == "p0"
    everything_unknown = _view(*[_device(link_mb_s=None)] * 3)
    assert set(_pair(Greedy(), everything_unknown)) <= {"p0", "p1", "p2"}


@pytest.mark.parametrize("n", [3, 5, 9])
def test_4_4_on_equal_devices_greedy_is_the_optimum(n: int) -> None:
    for seed in range(TUNING, TUNING + 15):
        scenario = draw_scenario("paper", n, seed)
        for name in ("greedy", "greedy-risk"):
            assert play(scenario, make_policy(name)).makespan_s <= 1.005 * solve(scenario).makespan_s


def test_waiting_for_better_partners_pays_on_unequal_devices() -> None:
    scenarios = [draw_scenario("hetero", 9, seed) for seed in range(TUNING, TUNING + 60)]
    best_s = fmean(solve(scenario).makespan_s for scenario in scenarios)
    waiting_s, hasty_s = (
        fmean(play(scenario, make_policy(name)).makespan_s for scenario in scenarios)
        for name in ("greedy", "greedy-risk")
    )
    assert waiting_s < 1.03 * best_s < 1.08 * best_s < hasty_s


@pytest.mark.parametrize(("family", "of_tree", "of_ring"), [("paper", 0.01, 0.02), ("hetero", 0.10, None)])
def test_energy_evens_out_over_20_rounds_at_hardly_any_time(family: str, of_tree: float, of_ring: float | None) -> None:
    meshes = [draw_rounds(family, 9, seed, 20) for seed in range(30_000, 30_006)]

    def measure(policy: Policy) -> tuple[float, float]:
        played = [play_rounds(mesh, policy) for mesh in meshes]
        spread = fmean(pvariance(rounds[-1].energy_j) for rounds in played)
        return spread, sum(one.makespan_s for rounds in played for one in rounds)

    spread, time_s = measure(Greedy())
    assert spread <= of_tree * measure(make_policy("tree"))[0]
    assert of_ring is None or spread <= of_ring * measure(make_policy("ring"))[0]
    assert time_s <= 1.02 * measure(Greedy(energy=0.0))[1]


def test_a_policy_that_knows_the_battery_loses_less_work() -> None:
    scenarios = [draw_scenario("dying", 9, seed) for seed in range(TUNING, TUNING + 150)]
    aware, blind = ([play(scenario, Greedy(battery=battery)) for scenario in scenarios] for battery in (True, False))
    assert sum(len(one.lost) for one in aware) < 0.85 * sum(len(one.lost) for one in blind)
    assert sum(one.wasted_s for one in aware) < 0.85 * sum(one.wasted_s for one in blind)


def test_rounds_are_on_the_same_devices_and_carry_their_energy() -> None:
    rounds = draw_rounds("dynamic", 4, 7, 3)
    assert len({tuple((one.link_mb_s, one.merge_mb_s) for one in scenario.devices) for scenario in rounds}) == 1
    assert len({tuple(one.ready_s for one in scenario.devices) for scenario in rounds}) == 3
    played = play_rounds(rounds, Greedy())
    spent = [sum(one.energy_j) for one in played]
    assert 0.0 < spent[0] < spent[1] < spent[2]
