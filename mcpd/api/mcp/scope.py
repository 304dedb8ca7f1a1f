"""What an address of the MCP endpoints stands for."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from mcpd.calls.client_context import ClientIdentity
from mcpd.model.policy import Surface


class EndpointScope(NamedTuple):
    """The servers behind an endpoint path: one server, or the servers of a profile as one."""

    server: str | None = None
    profile: str | None = None
    is_sse: bool = False
    """Whether its transport is HTTP+SSE, and not Streamable HTTP."""
    surface: Surface | None = None
    """See `ClientIdentity.surface`."""

    def identify(self, client: ClientIdentity) -> ClientIdentity:
        """Return a client as it is known at this address."""
        return msgspec.structs.replace(client, surface=self.surface) if self.surface else client
