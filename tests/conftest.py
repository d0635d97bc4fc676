"""What tests share. Real data sets are read in place: none of them lives in this repository."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.leftovers import Belongings, left_since

# Read by libraries at their import, also in processes that tests start. Several threads for a tiny model wait for each
# other, and take six times the processor time where another program has a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background has them ignore Ctrl-C, and every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason for a test to fail.
settings.register_profile("mdl", deadline=None)
settings.load_profile("mdl")


# Options of unshare(2).
_NEW_NETWORK = 0x40000000


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several workers a network of its own: meshes of two tests must not meet."""
    if not hasattr(config, "workerinput") or not os.environ.get("MDL_OWN_NETWORKS"):
        return
    if ctypes.CDLL(None).unshare(_NEW_NETWORK):
        raise pytest.UsageError("MDL_OWN_NETWORKS: this user may make no network namespaces")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """A test whose thread, child process or socket outlives it fails: it would fail another one, later."""
    before = Belongings.now()
    yield
    left = left_since(before)
    assert not left, f"left behind: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that is called in the tests' own process writes its log to that test's stderr, which ends with it."""
    loggers = [logging.getLogger(name) for name in ("", "mdl", "zeroconf")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        for handler in [handler for handler in logger.handlers if handler not in handlers]:
            logger.removeHandler(handler)
    for name, each in logging.root.manager.loggerDict.items():
        if name.startswith("mdl.") and isinstance(each, logging.Logger):
            each.filters.clear()  # of floods, whose lines a later test counts


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets: MDL_TEST_DATA, else ../shared/data beside the repository."""
    given = os.environ.get("MDL_TEST_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real data sets not found: set MDL_TEST_DATA")
    return folder
