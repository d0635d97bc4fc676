"""peers: the roles, the command line, and `peers.join`, by which an own PyTorch loop joins a mesh."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peers.api import Member, Replay, Round, RoundDone, join

__all__ = ["Member", "Replay", "Round", "RoundDone", "join"]


def __getattr__(name: str) -> Any:
    # Late, because it imports torch: the agent and `mdl --help` do without.
    if name in __all__:
        from peers import api

        return getattr(api, name)
    raise AttributeError(f"module 'peers' has no attribute {name!r}")
