"""Worker processes: what happens to them, and to whoever waits for them, when one side is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from mdl.errors import MdlError
from mdl.workers import ProcessPool, result_of

PATIENCE_S = 60.0
PARENT = """
import os, sys
from mdl.workers import ProcessPool
if __name__ == "__main__":
    with ProcessPool(1) as workers:
        print(workers.submit(os.getpid).result(), flush=True)
        sys.stdin.read()
"""


def test_a_worker_that_is_killed_is_one_line() -> None:
    with ProcessPool(1) as workers:
        os.kill(result_of(workers.submit(os.getpid)), signal.SIGKILL)
        with pytest.raises(MdlError, match="a worker process was ended from outside"):
            result_of(workers.submit(os.getpid))


def test_a_worker_ends_with_its_parent_and_not_by_ctrl_c() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1, text=True) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        worker.send_signal(signal.SIGINT)
        assert worker.is_running()
        parent.kill()
        parent.wait(PATIENCE_S)
        worker.wait(PATIENCE_S)
