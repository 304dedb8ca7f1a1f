"""A named choice among the servers, for one kind of client."""

from __future__ import annotations

import attrs

from mcpd.model.naming import ClientStyle


@attrs.frozen(kw_only=True)
class Profile:
    """`settings.profiles.<name>`; the nameless default is all servers, all tools."""

    name: str = ""
    servers: tuple[str, ...] | None = None
    """None: all. `*` and `?` allowed."""
    include_tools: tuple[str, ...] | None = None
    """`tool` or `tool@server`, `*` and `?` allowed. None: all."""
    exclude_tools: tuple[str, ...] = ()
    style: ClientStyle | None = None
    """None: `settings.clientToolNames`."""
