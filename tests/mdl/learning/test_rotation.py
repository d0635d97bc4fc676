"""Windows that are turned as a device is that somebody else wears."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mdl.config import TrainingSettings
from mdl.errors import ConfigError
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, draw_rotations, find_axes, make_turn

MOTION = ("heart_rate", "acc_x", "acc_y", "acc_z", "gyroZ", "gyroX", "gyroY", "mag_x", "mag_y")


def test_axes_are_found_by_their_names_in_any_order_of_channels() -> None:
    assert find_axes(MOTION) == [[1, 2, 3], [5, 6, 4]]
    assert find_axes(("x", "Y", "z")) == [[0, 1, 2]]
    assert find_axes(("ax", "ay", "az", "gx", "gy", "gz")) == [[0, 1, 2], [3, 4, 5]]
    assert find_axes(("emg 1", "emg 2", "emg 3")) == []


def test_rotations_are_rotations_by_angles_of_that_spread() -> None:
    torch.manual_seed(0)
    found = draw_rotations(4000, math.radians(10))
    assert torch.allclose(found @ found.transpose(1, 2), torch.eye(3).expand(4000, 3, 3), atol=1e-5)
    assert torch.allclose(torch.linalg.det(found), torch.ones(4000), atol=1e-5)
    angles = torch.acos(((found.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2).clamp(-1, 1))
    assert math.degrees(float(angles.square().mean().sqrt())) == pytest.approx(10, rel=0.05)


def test_sensors_turn_together_and_other_channels_stay() -> None:
    turn = make_turn(30.0, MOTION)
    assert turn
    torch.manual_seed(1)
    x = torch.randn(5, 9, 16)
    x[:, [5, 6, 4]] = 2 * x[:, [1, 2, 3]]
    kept = x.clone()
    turned = turn(x)
    assert torch.equal(x, kept)
    assert torch.equal(turned[:, [0, 7, 8]], x[:, [0, 7, 8]])
    assert torch.allclose(turned[:, [5, 6, 4]], 2 * turned[:, [1, 2, 3]], atol=1e-5)
    assert torch.allclose(turned[:, 1:4].norm(dim=1), x[:, 1:4].norm(dim=1), atol=1e-5)
    assert (turned[:, 1:4] - x[:, 1:4]).abs().amax(dim=(1, 2)).min() > 0.01


def test_windows_without_axes_are_refused_and_zero_degrees_are_nothing() -> None:
    assert make_turn(0.0, ()) is None
    with pytest.raises(ConfigError, match=r"rotate_deg is 10: no three channels .* named are emg 1, emg 2$"):
        make_turn(10.0, ("emg 1", "emg 2"))


def test_training_turns_its_windows_and_a_restart_turns_them_alike() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 3, 16)).astype(np.float32), np.arange(64) % 2

    def trained(degrees: float) -> np.ndarray:
        model = FlatModel(build_model("fcn", 3, 16, 2, seed=0))
        start, turn = model.values().copy(), make_turn(degrees, ("x", "y", "z"))
        trainer = LocalTrainer(model, x, y, TrainingSettings(rotate_deg=degrees), augment=turn)
        return trainer.train_round(start, 1).values.copy()

    assert np.array_equal(trained(10.0), trained(10.0))
    assert not np.allclose(trained(10.0), trained(0.0))
