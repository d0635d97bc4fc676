"""The first moments of `mdl`: loading all its modules takes up to half a second."""

from __future__ import annotations

import sys
from pathlib import Path

from mdl.peers import interrupts, streams

# The kept output of `mdl --help`: loading the commands' modules and their imports takes 0.3 s.
HELP = Path(__file__).parent / "peers" / "cli" / "help.txt"
HELP_COLUMNS = 80


def main() -> None:
    """Run the command `mdl`, also as `python -m mdl`."""
    interrupts.begin()
    streams.open_streams()
    if sys.argv[1:] == ["--help"] and _tell_help():
        return
    from mdl.peers.cli.main import main as run

    run()


def _tell_help() -> bool:
    """Print the kept help; return False where the terminal is too narrow for it."""
    import shutil  # Ctrl-C is handled by now

    if shutil.get_terminal_size().columns < HELP_COLUMNS:
        return False
    with HELP.open(encoding="utf-8") as text:
        shutil.copyfileobj(text, sys.stdout)
    return True


if __name__ == "__main__":
    main()
