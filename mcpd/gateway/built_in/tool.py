"""What each tool of mcpd itself consists of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View

Arguments = Mapping[str, Raw]
Handler = Callable[[ClientSession, ClientRequest, Arguments], bytes | Awaitable[bytes] | None]
"""Returns the result of a `tools/call`, or what to wait for; None if it has forwarded the request.

What it raises becomes the response. Work that waits is cancelled together with the request.
"""


class BuiltInTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of mcpd itself: one file of this package, and one entry of `table.TOOLS`.

    Clients of several servers can always call it by its name, which no other tool gets.
    """

    name: str
    describe: Callable[[View], str]
    """Returns its description for clients of a view, which must not change without need: it is cached."""
    arguments: Mapping[str, object]
    """The JSON Schema of each argument."""
    required: tuple[str, ...] = ()
    handler: Handler
    is_read_only: bool = True
    surfaces: tuple[str, ...] = ("search",)
    """What lists it: `search`, `full`, and `only tools` for hosts that know nothing else."""

    def entry(self, view: View) -> bytes:
        """Return its entry in `tools/list`."""
        entry = {
            "name": self.name,
            "description": self.describe(view),
            "inputSchema": {"type": "object", "properties": self.arguments, "required": self.required},
            "annotations": {"readOnlyHint": self.is_read_only, "openWorldHint": not self.is_read_only},
            "_meta": {"anthropic/alwaysLoad": True},
        }
        return msgspec.json.encode(entry)
