"""Forty files of strangers: each is read right, or refused in one line that says what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mdl.data import read_data
from mdl.errors import ConfigError, DataError


def _load_make() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("strangers_make", Path(__file__).with_name("make.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make = _load_make()
WINDOW = 20


def expected_windows() -> dict[bytes, str]:
    """Each window of the stream by its values in float32, and its class."""
    rows = make.stream()
    found = {}
    for start in range(0, make.ROWS, WINDOW):
        part = rows[start : start + WINDOW]
        found[np.array([row[1:4] for row in part], np.float32).T.tobytes()] = part[0][5]
    return found


def test_there_are_forty_files_in_twelve_dialects_as_the_script_writes_them() -> None:
    assert len(make.CASES) >= 40
    assert len({case.dialect for case in make.CASES}) >= 12
    files = {name: content for case in make.CASES for name, content in case.files.items()}
    kept = {str(path.relative_to(make.FILES)): path.read_bytes() for path in make.FILES.rglob("*") if path.is_file()}
    assert kept == files
    assert sum(map(len, kept.values())) < 1 << 20


@pytest.mark.parametrize("case", make.CASES, ids=lambda case: case.path)
def test_a_strangers_file_is_read_right_or_refused_with_the_remedy(case: object, tmp_path: Path) -> None:
    spec = f"csv:{make.FILES / case.path}?{case.options}&window={WINDOW}&step={WINDOW}"  # type: ignore[attr-defined]
    if case.refused:  # type: ignore[attr-defined]
        with pytest.raises((ConfigError, DataError)) as caught:
            read_data(spec, tmp_path)
        assert case.refused in str(caught.value)  # type: ignore[attr-defined]
        assert "\n" not in str(caught.value)
        return
    data = read_data(spec, tmp_path)
    assert any(case.note in note for note in data.notes) or not case.note, data.notes  # type: ignore[attr-defined]
    check_windows(case, data)


def check_windows(case: object, data: object) -> None:
    """Every window is one of the stream's, with its class; as many as there should be are there."""
    names = {"1": "walk", "0": "sit"}
    truth = expected_windows()
    known = np.stack([np.frombuffer(key, np.float32) for key in truth]).reshape(len(truth), 3, WINDOW)
    count = 0
    for windows in (data.train, data.test):  # type: ignore[attr-defined]
        for x, y in zip(windows.x, windows.y, strict=True):
            x = x / case.scale  # type: ignore[attr-defined]
            away = np.abs(known - x).max(axis=(1, 2))
            # What was filled in lies between its neighbours; the stream moves by 0.08 from row to row.
            assert away.min() < (0.1 if case.lost == -1 else 1e-5), away.min()  # type: ignore[attr-defined]
            name = data.classes[y]  # type: ignore[attr-defined]
            assert list(truth.values())[int(away.argmin())] == names.get(name, name)
            count += 1
    lost = max(0, case.lost)  # type: ignore[attr-defined]
    assert count >= (make.ROWS - lost) // WINDOW - (8 if case.lost == -1 else 0)  # type: ignore[attr-defined]
    assert data.subject_names == case.subjects  # type: ignore[attr-defined]
    assert len(data.classes) == 2  # type: ignore[attr-defined]
