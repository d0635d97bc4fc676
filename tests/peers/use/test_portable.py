"""What `mdl export --out` calls its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.errors import ConfigError
from mdl.peers.use.portable import with_ending


@pytest.mark.parametrize(
    ("out", "form", "name"),
    [
        ("walk", "onnx", "walk.onnx"),
        ("walk.v2", "onnx", "walk.v2.onnx"),
        ("walk.onnx", "onnx", "walk.onnx"),
        ("walk", "torch", "walk.pt2"),
        ("walk", "safetensors", "walk.safetensors"),
    ],
)
def test_an_exported_file_has_the_ending_of_its_form(out: str, form: str, name: str) -> None:
    assert with_ending(Path("runs") / out, form) == Path("runs") / name


def test_the_ending_of_another_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"walk\.pt2: onnx ends in \.onnx; --format torch writes \.pt2"):
        with_ending(Path("walk.pt2"), "onnx")
