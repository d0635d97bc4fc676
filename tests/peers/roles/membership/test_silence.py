"""How long a silence is borne: learned from the pauses that were seen, between two bounds."""

from __future__ import annotations

import pytest

from mdl.peers.roles.membership.members import Arrivals


def _heard_every(pause_s: float, times: int, arrivals: Arrivals | None = None) -> Arrivals:
    arrivals = arrivals or Arrivals(0.0, 2.0, 10.0)
    for _ in range(times):
        arrivals.hear(arrivals.heard_at + pause_s)
    return arrivals


def test_nothing_is_known_at_first_so_the_shortest_patience_holds() -> None:
    arrivals = Arrivals(5.0, 2.0, 10.0)
    assert (arrivals.patience_s, arrivals.silent_at) == (2.0, 7.0)
    assert (arrivals.is_silent(6.9), arrivals.is_silent(7.0)) == (False, True)


@pytest.mark.parametrize(("pause_s", "patience_s"), [(0.5, 2.0), (1.0, 3.0), (2.5, 7.5), (5.0, 10.0)])
def test_silence_of_three_usual_pauses_is_no_accident_between_the_bounds(pause_s: float, patience_s: float) -> None:
    assert _heard_every(pause_s, 5).patience_s == pytest.approx(patience_s)


def test_one_long_pause_is_remembered_and_fades_slowly() -> None:
    arrivals = _heard_every(3.0, 1)
    _heard_every(0.5, 10, arrivals)
    assert 6.0 < arrivals.patience_s < 9.0
    _heard_every(0.5, 300, arrivals)
    assert arrivals.patience_s == 2.0


def test_an_absence_longer_than_the_longest_patience_says_nothing_about_the_network() -> None:
    arrivals = _heard_every(0.5, 5)
    arrivals.hear(arrivals.heard_at + 60.0)
    assert arrivals.patience_s == 2.0


def test_a_suspension_of_this_process_is_nobody_elses_silence() -> None:
    arrivals = _heard_every(0.5, 4)
    arrivals.forgive(60.0)
    assert not arrivals.is_silent(63.9)
    assert arrivals.is_silent(64.0)
    arrivals.hear(62.3)
    assert arrivals.patience_s == 2.0


@pytest.mark.parametrize("pause_s", [0.1, 0.7, 1.3, 3.1])
def test_who_is_silent_is_so_at_the_very_time_its_deadline_says(pause_s: float) -> None:
    """A driver that ticks at the deadline must not find nothing to do."""
    arrivals = _heard_every(pause_s, 9)
    assert arrivals.is_silent(arrivals.silent_at)
