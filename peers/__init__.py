"""peers: the roles, the command line, and `peers.join`, by which an own PyTorch loop joins a mesh."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peers.join import Member, Round, join

__all__ = ["Member", "Round", "join"]


def __getattr__(name: str) -> Any:
    # Late, because it imports torch: the agent and `mdl --help` do without.
    if name in __all__:
        import importlib

        module = importlib.import_module("peers.join")
        # The import has put the module of that name here, which nobody could call a second time.
        globals().update({each: getattr(module, each) for each in __all__})
        return globals()[name]
    raise AttributeError(f"module 'peers' has no attribute {name!r}")
