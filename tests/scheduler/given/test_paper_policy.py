"""The paper's DQN on a live round: what it sees, that it is asked for free devices only, and that it says why."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.scheduler.paper.policy import MlpQ, PaperChain, PaperPolicy, PaperRules, PaperState
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.study.play import view_of
from mdl.sim.timing.iteration import Iteration

TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = DeviceState
RULES = PaperRules()


def see(*states: DeviceState) -> ChainView:
    return ChainView(1.0, 1.0, tuple(DeviceView(f"p{index}", state) for index, state in enumerate(states)))


def network(n: int, seed: int = 0) -> MlpQ:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((n, 5 * n)).astype(np.float32)
    return MlpQ([(weights, np.zeros(n, np.float32))], n, PaperRules(), counts=False)


def likes(n: int, *, send: list[float], get: list[float]) -> MlpQ:
    """Values devices as given, whatever they do; `get` once somebody sends."""
    weights = np.zeros((n, 5 * n), np.float32)
    for index in range(n):
        weights[:, 5 * index + PaperState.SEND] = np.array(get) - np.array(send)
    return MlpQ([(weights, np.array(send, np.float32))], n, PaperRules(), counts=False)


def test_3_3_1_the_best_by_q_sends_and_the_best_of_the_others_gets_and_the_reason_says_so() -> None:
    policy = PaperPolicy(likes(3, send=[0.1, 0.6, 0.2], get=[0.3, 0.9, -0.1]), "paper.safetensors")
    decision = policy.decide(see(FREE, FREE, FREE))
    assert isinstance(decision, Pair)
    assert (decision.sender, decision.receiver) == ("p1", "p0")
    assert decision.reason == (
        "paper.safetensors: it sees 3 free; p1 sends: its Q is 0.60 (next p2 0.20); "
        "p0 receives: its Q is 0.30 (next p2 -0.10)"
    )
    assert [action for action, _ in policy.explain(see(FREE, FREE, FREE))] == [
        "p1 sends", "p2 sends", "p0 sends", "p1 -> p0", "p1 -> p2",
    ]  # fmt: skip


def test_3_3_1_a_busy_device_comes_last_and_the_reason_says_what_it_was_worth() -> None:
    policy = PaperPolicy(likes(3, send=[0.1, 0.6, 0.2], get=[0.3, 0.9, -0.1]), "paper")
    decision = policy.decide(see(FREE, BUSY, FREE))
    assert decision.reason == (
        "paper: it sees 2 free, 1 busy; p2 sends: its Q is 0.20 (next p0 0.10); not p1: it is busy; "
        "p0 receives: its Q is 0.30; not p1: it is busy"
    )


def test_eq_4_who_may_not_receive_sends_and_the_only_one_that_may_does_not() -> None:
    policy = PaperPolicy(likes(3, send=[0.1, 0.6, 0.2], get=[0.3, 0.9, -0.1]), "paper")
    view = see(FREE, FREE, FREE)
    full = [msgspec.structs.replace(device, may_receive=device.peer_id == "p1") for device in view.devices]
    decision = policy.decide(msgspec.structs.replace(view, devices=tuple(full)))
    assert decision.reason == (
        "paper: it sees 3 free; p2 sends: its Q is 0.20 (next p0 0.10); not p1: no other may receive; "
        "p1 receives: its Q is 0.90"
    )


def test_3_1_it_schedules_once_all_devices_are_ready() -> None:
    decision = PaperPolicy(network(3), "paper").decide(see(FREE, TRAINING, FREE))
    assert decision == Wait("paper: it orders a round once all are ready; p1 train")


def test_a_pair_that_is_under_way_is_waited_for() -> None:
    policy = PaperPolicy(likes(5, send=[0, 9, 1, 5, 2], get=[0, 1, 9, 2, 5]), "paper")
    assert policy.decide(see(SEND, GET, FREE, DONE, FREE)) == Wait(
        "paper: it sees 2 free, 1 sending, 1 receiving, 1 done; its next pair is p1 to p2, not both free yet"
    )


def test_pairs_that_its_next_picks_leave_alone_run_at_once() -> None:
    """p1 receives yet and is to send to p2 next; once it has, p3 would send to p4, and both are free now."""
    wants = likes(5, send=[0, 9, 1, 0, 0], get=[0, 0, 9, 0, 0])
    weights = wants.layers[0][0]
    weights[[3, 4], 5 * 1 + PaperState.DONE] = 30, 20
    decision = PaperPolicy(wants, "paper").decide(see(SEND, GET, FREE, FREE, FREE))
    assert isinstance(decision, Pair)
    assert (decision.sender, decision.receiver) == ("p3", "p4")


def test_eq_7_a_network_with_counts_sees_in_a_round_what_it_was_trained_on() -> None:
    """Device by device the counts of the paper's own process, of those who have sent among them."""
    iteration, chain = (
        Iteration(Scenario("0", "paper", 10.0, 0.0, (ScenarioDevice(0.0, 10.0, 100.0),) * 5)),
        PaperChain([0] * 5, RULES),
    )
    weights = np.zeros((5, 30), np.float32)
    weights[:, 25:] = 1.0  # every value is the sum of all counts
    policy = PaperPolicy(MlpQ([(weights, np.zeros(5, np.float32))], 5, RULES, counts=True), "paper")
    for sender, receiver in ((0, 1), (2, 1), (1, 3)):
        iteration.start(sender, receiver)
        while len(iteration.idle()) < 5 - len(iteration.hops):
            assert iteration.advance()
        chain.step(sender)
        chain.step(receiver)
        view = view_of(iteration)
        assert [device.received for device in view.devices] == chain.n_agg
        assert policy.explain(view)[0][1] == pytest.approx(sum(chain.n_agg) / 4)


def test_in_a_mesh_of_another_size_greedy_decides_and_the_reason_says_so() -> None:
    decision = PaperPolicy(network(4), "paper").decide(see(FREE, FREE, FREE))
    assert isinstance(decision, Pair)
    assert decision.reason.startswith("paper leaves it to greedy (it orders 4 devices, the mesh has 3): greedy: ")
    lost = PaperPolicy(network(3), "paper").decide(see(FREE, DEAD, FREE))
    assert lost.reason.startswith("paper: it sees 2 free, 1 lost")


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_n_devices_need_n_minus_1_hops_whatever_the_network_wants(n: int) -> None:
    states, policy = [FREE] * n, PaperPolicy(network(n, seed=n), "paper")
    for _ in range(n - 1):
        decision = policy.decide(see(*states))
        assert isinstance(decision, Pair)
        states[int(decision.sender[1:])] = DONE
    assert states.count(FREE) == 1


@pytest.mark.slow
@settings(max_examples=60)
@given(states=st.lists(st.sampled_from(DeviceState), min_size=6, max_size=6), seed=st.integers(0, 20))
def test_any_view_gives_two_free_devices_or_a_wait_that_ends(states: list[DeviceState], seed: int) -> None:
    view = see(*states)
    decision = PaperPolicy(network(6, seed), "paper").decide(view)
    if isinstance(decision, Pair):
        free = [device.peer_id for device in view.free()]
        assert decision.sender != decision.receiver
        assert decision.sender in free
        assert decision.receiver in free
    elif len(view.free()) >= 2:
        assert {TRAINING, GET} & set(states)
