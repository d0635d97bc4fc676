"""`mdl` from its first moment: its modules take up to half a second to be there."""

from __future__ import annotations

from mdl.peers import interrupts, streams


def main() -> None:
    """Entry point of the command and of `python -m mdl`."""
    interrupts.begin()
    streams.open_streams()
    from mdl.peers.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
