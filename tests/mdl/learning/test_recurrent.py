"""Models with recurrent layers learn in bfloat16 on any processor."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mdl.learning.models import build_model
from mdl.learning.recurrent import run_recurrent


def test_a_recurrent_layer_runs_behind_one_in_bfloat16() -> None:
    """Whole and packed sequences, forwards and backwards; with or without a library for it the result is nearly one."""
    torch.manual_seed(0)
    before, layer, x = nn.Linear(4, 8), nn.LSTM(8, 16, batch_first=True), torch.randn(3, 5, 4)
    exact = run_recurrent(layer, before(x))[0]
    assert torch.equal(exact, layer(before(x))[0])
    with torch.autocast("cpu", torch.bfloat16):
        half = run_recurrent(layer, before(x))[0]
        packed = pack_padded_sequence(before(x), torch.tensor([5, 3, 1]), batch_first=True)
        parted = pad_packed_sequence(run_recurrent(layer, packed)[0], batch_first=True)[0]
    torch.testing.assert_close(half.float(), exact, atol=0.02, rtol=0.02)
    torch.testing.assert_close(parted[0].float(), exact[0], atol=0.02, rtol=0.02)
    half.float().sum().backward()
    assert before.weight.grad is not None


@pytest.mark.parametrize("is_poor", [False, True])
def test_the_model_with_a_recurrent_layer_learns_in_bfloat16(is_poor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this processor as it is, and as one without bfloat16."""
    if is_poor:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    model = build_model("cnn-lstm", 3, 32, 4, 0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 3, 32)), torch.arange(8) % 4)
    loss.backward()
    assert torch.isfinite(loss)
