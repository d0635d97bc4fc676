"""`mdl` from its first moment: its modules take up to half a second to be there."""

from __future__ import annotations

import sys
from pathlib import Path

from mdl.peers import interrupts, streams

# What `mdl --help` prints, kept: the commands' modules and what they import take 0.3 s to be there.
HELP = Path(__file__).parent / "peers" / "cli" / "help.txt"
HELP_COLUMNS = 80


def main() -> None:
    """Entry point of the command and of `python -m mdl`."""
    interrupts.begin()
    streams.open_streams()
    if sys.argv[1:] == ["--help"] and _tell_help():
        return
    from mdl.peers.cli.main import main as run

    run()


def _tell_help() -> bool:
    """Print the kept help; False where the terminal is too narrow for it."""
    import shutil  # Ctrl-C is handled by now

    if shutil.get_terminal_size().columns < HELP_COLUMNS:
        return False
    with HELP.open(encoding="utf-8") as text:
        shutil.copyfileobj(text, sys.stdout)
    return True


if __name__ == "__main__":
    main()
