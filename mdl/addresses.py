"""IP addresses as messages and records tell them: parsed here, and nowhere else.

The structs that carry an address check it when they are made, so that a decoder refuses a text that is none; whoever
parses it later cannot fail. A name is no address: nothing is looked up because a message says so.
"""

from __future__ import annotations

import functools
import ipaddress
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, TypeAlias

from msgspec import Meta

from mdl.bounds import MAX_MEMBERS

IpAddress: TypeAlias = IPv4Address | IPv6Address
# An IP address as it is written; a list of a full mesh's fits into one message (`PeersKnown`). No link ("%eth0"): it
# means nothing on another machine.
Host: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]{2,39}\Z")]
# Empty where it is not known.
SomeHost: TypeAlias = Annotated[str, Meta(pattern=r"^(?:[0-9A-Fa-f:.]{2,39})?\Z")]
# Those of all members, each asked for at each look around.
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
