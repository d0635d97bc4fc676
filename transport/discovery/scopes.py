"""Link-local addresses of IPv6, and the link of this machine that each is on (RFC 4007).

fe80::1 can be on any link, and each machine numbers its own links. So this machine adds the link when it dials, and no
address that is told to others names one: only `Scopes` knows. Pure, but for `socket_address`.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv6Interface
from typing import TypeAlias

from mdl.addresses import parse_host
from mdl.bounds import MAX_MEMBERS
from mdl.protocol.statements import MAX_HOSTS

Interface: TypeAlias = IPv4Interface | IPv6Interface
# All addresses of all members.
_REMEMBERED = MAX_MEMBERS * MAX_HOSTS
_MAPPED = "::ffff:"


def bare(host: str) -> str:
    """Return the address as others may hear it: without a link."""
    return host.partition("%")[0]


def is_link_local(host: str) -> bool:
    """Return True if this IP address needs a link: fe80::/10."""
    address = parse_host(host)
    return address.version == 6 and address.is_link_local


def links_of(own: Iterable[Interface]) -> list[str]:
    """Return the names of the links that these addresses of ours are on, of IPv6 alone."""
    return [each.scope_id for each in own if isinstance(each, IPv6Interface) and each.scope_id]


def with_link(own: Interface) -> str:
    """Return an address of ours as this machine takes it."""
    return f"{own.ip}%{own.scope_id}" if isinstance(own, IPv6Interface) and own.scope_id else str(own.ip)


def unmapped(host: str) -> str:
    """Return an IPv4 address without the prefix that a socket for both kinds adds."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


def socket_address(family: int, host: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return the address for a socket of this family. Raises OSError for a link that is gone."""
    if family == socket.AF_INET:
        return host, port
    if ":" not in host:
        return f"{_MAPPED}{host}", port, 0, 0
    address, _, link = host.partition("%")
    return address, port, 0, int(link) if link.isdigit() else socket.if_nametoindex(link) if link else 0


class Scopes:
    """The links of link-local addresses. own: this machine's addresses.

    An address never heard of on a link is looked for on the first of this machine's links.
    """

    def __init__(self, own: Iterable[Interface] = ()) -> None:
        self._links: OrderedDict[str, str] = OrderedDict()
        self._first = ""
        self.move(own)

    def move(self, own: Iterable[Interface]) -> None:
        """Use these addresses as this machine's from now on."""
        self._first = next(iter(links_of(own)), "")

    def note(self, host: str) -> str:
        """Return the bare address, and remember its link if it names one."""
        address, _, link = host.partition("%")
        if link:
            self._links[address] = link
            self._links.move_to_end(address)
            if len(self._links) > _REMEMBERED:
                self._links.popitem(last=False)
        return address

    def follow(self, host: str, other: str) -> None:
        """Note that the peer at `other` tells of `host`: it is on the same link, unless it was heard of on another."""
        if host not in self._links and is_link_local(host) and other in self._links:
            self.note(f"{host}%{self._links[other]}")

    def dial(self, host: str) -> str:
        """Return the address as this machine dials it."""
        if "%" in host or not is_link_local(host):
            return host
        link = self._links.get(host, self._first)
        return f"{host}%{link}" if link else host
