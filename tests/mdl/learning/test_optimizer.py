"""The flat optimizers take the steps of torch.optim."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.learning.flat import FlatModel
from mdl.learning.training import FlatOptimizer


def _make_module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.BatchNorm1d(3), nn.Conv1d(3, 8, 3), nn.Flatten(), nn.Linear(48, 4))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_twenty_steps_equal_those_of_torch(kind: str, momentum: float, decay: float) -> None:
    reference = _make_module()
    flat = FlatModel(copy.deepcopy(reference))
    mine = FlatOptimizer(flat, kind, momentum, decay)  # type: ignore[arg-type]
    mine.attach()
    parameters = list(reference.parameters())
    theirs: torch.optim.Optimizer
    if kind == "sgd":
        theirs = torch.optim.SGD(parameters, 0.01, momentum=momentum, weight_decay=decay)
    else:
        theirs = torch.optim.AdamW(parameters, 0.01, betas=(momentum, 0.999), weight_decay=decay)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = torch.from_numpy(rng.standard_normal((16, 3, 8), dtype=np.float32))
        y = torch.from_numpy(rng.integers(0, 4, 16))
        for module in (reference, flat.module):
            module.zero_grad() if module is reference else mine.clear()
            nn.functional.cross_entropy(module(x), y).backward()
        theirs.step()
        mine.step(0.01)
    for (name, expected), (_, found) in zip(reference.named_parameters(), flat.module.named_parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_frozen_parameters_and_buffers_stay_as_they_are() -> None:
    flat = FlatModel(_make_module())
    flat.module[1].requires_grad_(False)  # type: ignore[index]
    before = {name: tensor.clone() for name, tensor in flat.module.state_dict().items()}
    optimizer = FlatOptimizer(flat, "adam", 0.9, weight_decay=0.5)
    optimizer.attach()
    flat.module.eval()
    flat.module(torch.ones(4, 3, 8)).sum().backward()
    optimizer.step(0.1)
    changed = {name for name, tensor in flat.module.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"0.weight", "0.bias", "3.weight", "3.bias"}


def test_a_fully_frozen_model_has_nothing_to_step() -> None:
    flat = FlatModel(_make_module())
    flat.module.requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen"):
        FlatOptimizer(flat, "sgd", 0.0, 0.0)


def test_training_does_not_import_the_compiler_of_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from mdl.config import TrainingSettings\n"
        "from mdl.learning.flat import FlatModel\n"
        "from mdl.learning.models import build_model\n"
        "from mdl.learning.training import LocalTrainer\n"
        "model = FlatModel(build_model('lenet', 3, 16, 2, 0))\n"
        "x, y = np.ones((8, 3, 16), np.float32), np.arange(8) % 2\n"
        "LocalTrainer(model, x, y, TrainingSettings()).train_round(model.values().copy(), 1)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
