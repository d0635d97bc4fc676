"""Which tests pytest-xdist gives to one worker (`make test`): a file's, and all those of real processes.

What a module prepares is prepared once. Meshes of real processes, with their waits and their CPU times, run one after
the other: next to each other they would measure each other.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

ONE_AFTER_THE_OTHER = "tests/integration/"


class SideBySide(LoadFileScheduling):
    """`--dist loadfile`, with the folder of real processes as one file. It is long, so it is handed out first."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_AFTER_THE_OTHER if nodeid.startswith(ONE_AFTER_THE_OTHER) else super()._split_scope(nodeid)
