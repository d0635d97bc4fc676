"""mdl: devices that train one model together.

    import mdl
    member = mdl.join("home", model=net, optimizer=optimizer)     # an own training loop takes part in a mesh
    module, description = mdl.load("mdl-runs/home/alice")         # what a mesh has trained, to use it

The names here are for programs, and so is `mdl.gym`, which registers the environments `mdl/Chain-v0` and
`mdl/Rounds-v0`. Everything else may change with any version.
"""

from typing import TYPE_CHECKING, Any

from mdl.errors import ConfigError, DataError, LocalProtocolError, MdlError, RemoteProtocolError

if TYPE_CHECKING:
    from mdl.peers.api import Member, ModelDescription, Replay, Round, RoundDone, join, load

__all__ = [
    "ConfigError",
    "DataError",
    "LocalProtocolError",
    "MdlError",
    "Member",
    "ModelDescription",
    "RemoteProtocolError",
    "Replay",
    "Round",
    "RoundDone",
    "join",
    "load",
]


def __getattr__(name: str) -> Any:
    # Imported late, because it imports torch: the agent and `mdl --help` do without.
    if name in __all__:
        from mdl.peers import api

        return getattr(api, name)
    raise AttributeError(f"module 'mdl' has no attribute {name!r}")
