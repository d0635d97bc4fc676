"""`mdl` from its first moment. Its modules take up to half a second to be there: until then Ctrl-C just ends it."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Entry point of the command and of `python -m peers`."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from peers.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(*_: object) -> None:
    """Nothing has been begun; an exception would come up in the middle of somebody's import."""
    if "--json" in sys.argv:
        os.write(1, b'{"error": "interrupted", "hint": "", "exit_code": 130}\n')
    os._exit(130)


if __name__ == "__main__":
    main()
