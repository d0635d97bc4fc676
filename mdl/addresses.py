"""IP addresses in messages and records. Only this module parses them.

The structs that carry an address check it when they are made, so a decoder refuses any other text and later parsing
cannot fail. A host name is no address: mdl looks nothing up because a message says so.
"""

from __future__ import annotations

import functools
import ipaddress
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, TypeAlias

from msgspec import Meta

from mdl.bounds import MAX_MEMBERS

IpAddress: TypeAlias = IPv4Address | IPv6Address
# An IP address as text. The addresses of a full mesh fit into one message (`PeersKnown`). A link ("%eth0") is not
# allowed: it means nothing on another machine.
Host: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]{2,39}\Z")]
# Empty if the address is not known.
SomeHost: TypeAlias = Annotated[str, Meta(pattern=r"^(?:[0-9A-Fa-f:.]{2,39})?\Z")]
# The addresses of all members: each look around asks for each of them.
_REMEMBERED = 2 * MAX_MEMBERS


@functools.lru_cache(maxsize=_REMEMBERED)
def parse_host(text: str) -> IpAddress:
    """Return the address that a text names. Raises ValueError for any other text."""
    return ipaddress.ip_address(text)


def check_reachable(text: str) -> None:
    """Raise ValueError unless the text names an address at which one machine can be reached."""
    host = parse_host(text)
    if host.is_unspecified or host.is_multicast:
        raise ValueError(f"nobody can be reached at {text}")
