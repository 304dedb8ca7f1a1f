"""Requests with very large params, which are forwarded in several turns.

Each of about six looks at them takes up to 1.5 ms per MiB.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.routes import Target
from mcpd.gateway.client_view import View
from mcpd.support.turns import in_turns, rest
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_SHORT_MEMBERS = frozenset({"name", "uri", "ref", "_meta", "requestState"})
_MAX_SHORT_MEMBER = 1024 * 1024
"""Bytes of those members of params that mcpd reads, compares, or signs."""


async def route_large_request(
    request: ClientRequest, view: View, read_request_meta: Callable[[ClientRequest, bytes], bool]
) -> Target:
    """Apply the `_meta` of the params, remove what is not for the server, and return where they go, with
    rests between the looks at them. Raises McpdError, BadFrame.

    `read_request_meta`: see `SessionMethods`.
    """
    members = await in_turns(wire.members_in_steps(request.params))
    for name in _SHORT_MEMBERS & members.keys():
        if (size := len(members[name])) > _MAX_SHORT_MEMBER:
            raise BadFrame(f"`{name}` has {size} bytes, and mcpd accepts at most {_MAX_SHORT_MEMBER}")
    tool = wire.string_or(members, "name")
    meta = bytes(members.pop("_meta", b""))
    keeps_meta = bool(meta) and read_request_meta(request, meta)
    request.has_no_meta = not keeps_meta
    if meta and not keeps_meta:
        await rest()
        request.params = wire.join_members(members)
    target = await in_turns(view.route_in_steps(request.method, request.params))
    if request.method == "tools/call" and not target.tool:
        target = msgspec.structs.replace(target, tool=tool)
    await rest()
    return target
