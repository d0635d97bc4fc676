"""An exported model computes in another runtime what it computes here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mdl.errors import ConfigError
from mdl.peers.deeptype.model.model_file import save_onnx
from tests.peers.deeptype.model.examples import invented_text, small_model


@pytest.mark.parametrize("rank", [0, 5])
def test_onnxruntime_gives_the_same_also_with_the_state_of_a_run_before(tmp_path: Path, rank: int) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    table, _ = invented_text()
    model = small_model(table, rank=rank)
    save_onnx(tmp_path / "mine.onnx", model, table)
    session = runtime.InferenceSession(tmp_path / "mine.onnx")
    tokens = torch.randint(table.size, (3, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features, state = model.read(tokens)
        logits = model.output(features)
    empty = np.zeros((2, 3, model.hidden), np.float32)
    whole = session.run(None, {"tokens": tokens.numpy(), "hidden": empty, "cell": empty})
    for found, expected in zip(whole, (logits, features, *state), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    hidden, cell = empty, empty
    for step in range(7):
        last, _, hidden, cell = session.run(
            None, {"tokens": tokens[:, step : step + 1].numpy(), "hidden": hidden, "cell": cell}
        )
    np.testing.assert_allclose(last[:, 0], logits[:, -1].numpy(), atol=1e-5)
    words = json.loads(session.get_modelmeta().custom_metadata_map["table"])["words"]
    assert tuple(words) == table.words


def test_without_the_package_one_line_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    table, _ = invented_text()
    with pytest.raises(ConfigError, match=r"mdl\[onnx\]"):
        save_onnx(tmp_path / "mine.onnx", small_model(table), table)
