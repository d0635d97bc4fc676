"""The process that `mdl up` forks its peers from; run as a script, it is that process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mdl.peers.edge.small import VARIABLE as THREADS_VARIABLE
from mdl.peers.launch.nursery import Nursery, become, share_of_threads, wait_for_a_command
from mdl.signals import blocked


@contextmanager
def begun_nursery(peers: int) -> Iterator[Nursery | None]:
    """Start the process that forks those of a run with so many peers; None if the system cannot do that."""
    if not Nursery.is_possible():
        yield None
        return
    # numpy's threads, started at its import, would be missing in a forked process.
    environment = {**os.environ, THREADS_VARIABLE: str(share_of_threads(peers)), "OPENBLAS_NUM_THREADS": "1"}
    with blocked():
        nursery = Nursery(__file__, environment, subprocess.DEVNULL)
    with nursery:
        yield nursery


def _import_all() -> None:
    """Import the modules that `mdl peer` and `mdl cloud` need."""
    import torch  # noqa: F401


if __name__ == "__main__":
    gc.disable()  # a tenth of the time
    _import_all()
    gc.enable()
    asked, given = wait_for_a_command(int(sys.argv[1]))
    become(asked, given)
    sys.argv = ["mdl", *asked["words"]]
    from mdl.__main__ import main

    main()
