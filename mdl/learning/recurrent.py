"""Recurrent layers under autocast to bfloat16, on processors with libraries that cannot run them in it."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

_Steps = TypeVar("_Steps", Tensor, PackedSequence)


def run_recurrent(layer: nn.RNNBase, steps: _Steps, state: Any = None) -> Any:
    """Return the result of `layer(steps, state)`, in single precision where the processor has no bfloat16.

    There oneDNN raises RuntimeError for recurrent layers in bfloat16; it computes all other layers in some way.
    """
    values = steps.data if isinstance(steps, PackedSequence) else steps
    if values.device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return layer(steps, state)
    with torch.autocast("cpu", enabled=False):
        return layer(steps.float() if values.dtype is torch.bfloat16 else steps, state)
