"""The simulated network: latency for words, bandwidth for values, and faults as often as was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.sim.mesh.network import LATE_S, Network


def _network(**options: object) -> Network:
    return Network(np.random.default_rng(0), **options)  # type: ignore[arg-type]


def test_words_take_the_latency_alone() -> None:
    assert _network().deliver("a", "b", 0, 3.0) == [3.005]


def test_values_travel_at_the_rate_of_the_slower_end() -> None:
    network = _network(rates_mb_s={"a": 10.0, "b": 2.0}, default_mb_s=5.0)
    assert network.deliver("a", "b", 4_000_000, 0.0) == [pytest.approx(2.005)]
    assert network.deliver("c", "d", 5_000_000, 0.0) == [pytest.approx(1.005)]


def test_values_wait_for_a_busy_uplink_and_a_busy_downlink_and_words_do_not() -> None:
    network = _network()
    first = network.deliver("a", "b", 5_000_000, 0.0)
    same_uplink = network.deliver("a", "c", 5_000_000, 0.0)
    same_downlink = network.deliver("d", "c", 5_000_000, 0.5)
    assert [*first, *same_uplink, *same_downlink] == [pytest.approx(at) for at in (1.005, 2.005, 3.005)]
    assert network.deliver("a", "b", 0, 0.1) == [pytest.approx(0.105)]


def test_links_of_different_pairs_run_at_once() -> None:
    network = _network()
    assert network.deliver("a", "b", 5_000_000, 0.0) == network.deliver("c", "d", 5_000_000, 0.0)


def test_a_cut_stops_one_direction() -> None:
    network = _network(cuts={("a", "b")})
    assert network.deliver("a", "b", 0, 0.0) == []
    assert network.deliver("b", "a", 0, 0.0) == [0.005]


def test_loss_and_duplication_come_as_often_as_asked() -> None:
    network = _network(loss=0.3, duplication=0.1)
    copies = np.array([len(network.deliver("a", "b", 0, 0.0)) for _ in range(20_000)])
    assert (copies == 0).mean() == pytest.approx(0.3, abs=0.02)
    assert (copies == 2).mean() == pytest.approx(0.07, abs=0.01)


def test_some_words_come_late_and_values_do_not() -> None:
    network = _network(late=0.1)
    delays = np.array([network.deliver("a", "b", 0, 0.0)[0] for _ in range(20_000)])
    assert (delays > 0.005).mean() == pytest.approx(0.1, abs=0.01)
    assert 0.9 * LATE_S < delays.max() <= 0.005 + LATE_S
    assert network.deliver("a", "b", 5_000_000, 0.0) == [pytest.approx(1.005)]


def test_jitter_reorders_within_its_bound() -> None:
    network = _network(jitter_s=0.5)
    arrivals = [network.deliver("a", "b", 0, 0.001 * sent)[0] - 0.001 * sent for sent in range(500)]
    assert 0.005 <= min(arrivals) < 0.05 < 0.45 < max(arrivals) <= 0.505
