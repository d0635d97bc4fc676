"""Networks by their sizes, and recurrent layers in bfloat16 on any processor.

What is said is built, what cannot be is refused before memory is taken, a file keeps it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mdl.errors import ConfigError, DataError
from mdl.files.export import ModelDescription, export_model, import_model
from mdl.learning.models import build_model
from mdl.learning.networks import MOST_PARAMETERS, parse_sizes, plain_sizes, run_recurrent

NAME = "cnn?channels=8,16,16&kernel=7,5,3&pool=2,1,2&hidden=24,12&dropout=0.25"


def test_what_is_said_is_built() -> None:
    module = build_model(NAME, 3, 50, 4, seed=0)
    kinds = [layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.Linear)]
    shapes = [
        (each.in_channels, each.out_channels, each.kernel_size[0]) for each in kinds if isinstance(each, nn.Conv1d)
    ]
    assert shapes == [(3, 8, 7), (8, 16, 5), (16, 16, 3)]
    assert [each.weight.shape for each in kinds if isinstance(each, nn.Linear)] == [(24, 16 * 12), (12, 24), (4, 12)]
    assert {each.p for each in module.modules() if isinstance(each, nn.Dropout)} == {0.25}
    assert module(torch.zeros(2, 3, 50)).shape == (2, 4)


@pytest.mark.parametrize(("channels", "time", "outputs"), [(3, 50, 4), (9, 128, 6), (1, 16, 1)])
def test_parameters_are_counted_before_they_are_there(channels: int, time: int, outputs: int) -> None:
    for name in (NAME, "cnn", "cnn?hidden=0"):
        module = build_model(name, channels, time, outputs, 0, targets="labels")
        assert parse_sizes(name).count(channels, time, outputs) == sum(each.numel() for each in module.parameters())


def test_lenet_and_alexnet_are_such_networks() -> None:
    lenet, cnn = (build_model(name, 3, 50, 4, 5).state_dict() for name in ("lenet", "cnn?channels=32,64&hidden=64"))
    assert all(torch.equal(lenet[name], cnn[name]) for name in lenet.keys() | cnn.keys())
    alexnet = "cnn?channels=64,128,192,192,128&kernel=7,5,3,3,3&pool=2,2,1,1,2&hidden=512,256"
    shapes = [
        {name: t.shape for name, t in build_model(each, 3, 50, 4, 5).state_dict().items()}
        for each in ("alexnet", alexnet)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cnn?chanels=8", "unknown option 'chanels'; did you mean channels? valid: channels, kernel"),
        ("cnn?channels=0", "option channels=0: expected 1 to 12 whole numbers from 1 to 1024, as 32,64"),
        ("cnn?channels=8,,8", "option channels=8,,8: expected"),
        ("cnn?channels=99999999999", "expected 1 to 12 whole numbers"),
        ("cnn?channels=" + ",".join("8" * 13), "expected 1 to 12 whole numbers"),
        ("cnn?hidden=5000", "expected 1 to 6 whole numbers from 1 to 4096"),
        ("cnn?kernel=4", "option kernel=4: expected an odd number, as 5"),
        ("cnn?kernel=3,5,7", "option kernel=3,5,7: expected one number, or 2: one for each of channels="),
        ("cnn?dropout=1", "option dropout=1: expected a number from 0 to below 1"),
        ("cnn?dropout=nan", "option dropout=nan"),
        ("cnn?pool=16,16", "its pooling leaves nothing of 50 samples; take windows of 256"),
        ("cnn?channels=1024,1024&pool=1&hidden=4096", f"parameters; at most {MOST_PARAMETERS:,}"),
        ("cnn?kernel=3&pool", "model 'cnn?kernel=3&pool': option 'pool'; expected name=value"),
        ("cnnn?kernel=3", "unknown model 'cnnn?kernel=3': did you mean 'cnn'?"),
        ("lenet?hidden=5", "lenet takes no options; cnn?channels=32,64&kernel=5&hidden=128 does"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_with_what_would_be_valid(name: str, told: str) -> None:
    with pytest.raises(ConfigError) as found:
        build_model(name, 3, 50, 4, seed=0)
    assert told in str(found.value)


def test_a_file_is_read_back_by_the_sizes_in_it(tmp_path: Path) -> None:
    module = build_model(NAME, 3, 50, 4, seed=1).eval()
    described = ModelDescription(NAME, 3, 50, ("a", "b", "c", "d"), "motion")
    export_model(tmp_path / "m.safetensors", module, described)
    again, read = import_model(tmp_path / "m.safetensors")
    assert read.model == NAME
    x = torch.randn(5, 3, 50)
    assert torch.equal(module(x), again(x))
    with pytest.raises(DataError, match="does not fit model"):
        import_model(tmp_path / "m.safetensors", NAME.replace("16,16", "16,32"))


def test_two_spellings_are_one_model_and_two_poolings_are_not() -> None:
    assert plain_sizes("cnn") == plain_sizes("cnn?kernel=5,5&channels=32,64")
    assert plain_sizes("cnn?pool=2,1") != plain_sizes("cnn?pool=1,2")
    assert plain_sizes("lenet") == ()


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
