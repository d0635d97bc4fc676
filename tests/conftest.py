"""What tests share. Real data sets are read in place: none of them lives in this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no reason for a test to fail.
settings.register_profile("mdl", deadline=None)
settings.load_profile("mdl")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets: MDL_TEST_DATA, else ../shared/data beside the repository."""
    given = os.environ.get("MDL_TEST_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real data sets not found: set MDL_TEST_DATA")
    return folder
