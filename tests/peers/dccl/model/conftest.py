"""A small log, and a cloud's model of it that has learned nothing yet."""

from __future__ import annotations

import pytest
import torch

from mdl.peers.dccl.model.din import DinSettings
from mdl.peers.dccl.model.interactions import Interactions
from mdl.peers.dccl.model.momodistill import CloudModel, make_cloud_model
from tests.peers.dccl.model.logs import small_log


@pytest.fixture
def log() -> Interactions:
    return small_log()


@pytest.fixture
def cloud(log: Interactions) -> CloudModel:
    torch.manual_seed(0)
    return make_cloud_model(log, DinSettings(embedding=8, hidden=16, history=5, dropout=0.0, has_user=False), size=4)
