"""Clients: their addresses in plain form, the token or network that counts as one client, and those that leave."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable

from fastapi import Request

from service.access.auth import Actor
from service.context import has_ended


def plain_address(address: str) -> str:
    """An address as settings name it: an IPv4 one as such, also from a socket of IPv6."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # of a proxy's header, which may have any text
        return address
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def network_of(address: str) -> str:
    """The network that counts as one client: an IPv4 address, or a 64-bit IPv6 prefix; another text as it is."""
    try:
        ip = ipaddress.ip_address(plain_address(address))
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 32 if ip.version == 4 else 64), strict=False))


def client_of(request: Request, who: Actor) -> Hashable:
    """The client that counts for shares of the service: the token that sends a request, else the network."""
    if who.token_id is not None:
        return who.token_id
    return network_of(request.client.host) if request.client is not None else None


async def may_have_left(request: Request) -> bool:
    """Return whether the client has closed the connection, or its side of it, after which it can still be answered."""
    return await request.is_disconnected() or has_ended(request)
