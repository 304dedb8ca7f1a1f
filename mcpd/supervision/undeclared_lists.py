"""Finds lists that a server answers without having declared the capability.

Such servers exist, and they work with clients that do not read capabilities. MCP 2025-06-18 and later forbid
using a capability that was not negotiated, so a server is asked only once per connection.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from mcpd.model.errors import McpdError
from mcpd.protocol.upstream_session import FEATURES, Upstream
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_TIMEOUT = 5.0
"""Seconds for an answer: a server that ignores unknown methods must not be kept from connecting for long."""


async def find_undeclared_lists(upstream: Upstream) -> None:
    """Ask for `tools/list` if the server declared no tools, and for all lists if it declared none of them.

    A feature whose list the server answers counts as declared (`Upstream.has`) from then on. Raises LinkLost
    if the connection ends.
    """
    async with trio.open_nursery() as nursery:
        for feature in _undeclared(upstream):
            nursery.start_soon(_ask, upstream, feature)
    if upstream.link.end_error is not None:
        raise upstream.link.end_error


def _undeclared(upstream: Upstream) -> Iterable[str]:
    if not any(upstream.has(feature) for feature in FEATURES):
        return FEATURES
    return () if upstream.has("tools") else ("tools",)


async def _ask(upstream: Upstream, feature: str) -> None:
    try:
        result = await upstream.request(f"{feature}/list", {}, timeout=_TIMEOUT)
        members = wire.members(result)
    except (McpdError, BadFrame):
        return
    if bytes(members.get(feature, b"")).startswith(b"["):
        upstream.capabilities = {**upstream.capabilities, feature: {}}
