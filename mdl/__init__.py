"""mdl: what is learned and what is said. Knows no sockets, clocks, roles or schedules."""

from mdl.errors import ConfigError, DataError, LocalProtocolError, MdlError, RemoteProtocolError

__all__ = ["ConfigError", "DataError", "LocalProtocolError", "MdlError", "RemoteProtocolError"]
