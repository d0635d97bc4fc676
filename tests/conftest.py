"""What tests share. Real data sets are read in place: none of them lives in this repository."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background has them ignore Ctrl-C, and every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
