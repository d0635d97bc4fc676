"""Rounds in virtual time, and the means of a master: what the modelled figures of MDLdroid are made of."""

import numpy as np
import pytest

from benchmarks.evaluation.modelled import BATTERY_MAH, TRAIN_W, Phone, battery_percent, play
from benchmarks.evaluation.sequential import add_up, merge
from mdl.devices.energy import RECEIVE_W, SEND_W

PHONE = Phone(windows_s=100.0, link_mb_s=1.0)
VALUES = 250_000  # a second on the link


def test_one_device_alone_only_trains():
    one = play("chain", 1, VALUES, PHONE, 500)
    assert (one.seconds, one.busiest_j) == (5.0, 5.0 * TRAIN_W)


def test_a_master_takes_in_and_gives_out_one_model_for_each_slave():
    one = play("master", 4, VALUES, PHONE, 500)
    assert one.radio_j[0] == pytest.approx(3 * (SEND_W + RECEIVE_W))
    assert one.radio_j[1:] == pytest.approx([SEND_W + RECEIVE_W] * 3)
    # The first slave has its model after a second, and trains while the master serves the others.
    assert one.seconds == pytest.approx(5.0 + 1 + 3, abs=0.5)


def test_a_mesh_moves_no_more_and_its_busiest_device_less():
    one, master = play("chain", 6, VALUES, PHONE, 500), play("master", 6, VALUES, PHONE, 500)
    assert sum(one.radio_j) <= sum(master.radio_j) * 1.001
    assert max(one.radio_j) < max(master.radio_j) * 0.8


def test_joules_as_a_share_of_the_papers_battery():
    assert battery_percent(BATTERY_MAH * 3.6 * 3.85) == pytest.approx(100.0)


def test_all_ways_to_a_mean_give_the_same():
    models = [np.random.default_rng(number).standard_normal(1000, dtype=np.float32) for number in range(5)]
    _, merged = merge([lambda each=each: each.copy() for each in models], is_timed=True)
    assert np.allclose(merged, np.mean(models, axis=0), atol=1e-6)
    assert np.allclose(add_up(models), np.mean(models, axis=0), atol=1e-6)
