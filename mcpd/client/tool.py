"""One tool, as an agent wants it: what it is called, what it takes, and a way to run it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from mcpd.client.connection import Progress
from mcpd.model.tool_result import ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.client.mcp import Mcp

T = TypeVar("T")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
PERMISSIVE: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""Takes everything: the server's own validation decides then."""


@attrs.frozen(kw_only=True, eq=False)
class Tool:
    """Of one server. `definition` is what the server said, whole."""

    name: str
    """Unique among all servers, and fit for model APIs: `server__tool`."""
    server: str
    tool: str
    """The server's own name for it."""
    title: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of its arguments, unchanged."""
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]
    definition: Mapping[str, Any]
    _mcp: Mcp

    async def execute(
        self,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # the server's patience, kept by the daemon
        progress: Progress | None = None,
        **named: object,
    ) -> ToolResult:
        """Run it, with arguments as a mapping or by name. See `Mcp.call`."""
        given = {**(arguments or {}), **named}
        return await self._mcp.call(self.server, self.tool, given, timeout=timeout, progress=progress)

    def converted(self, convert: Callable[[Mapping[str, Any]], T]) -> T:
        """The schema as a host's own type, made by `convert`.

        Where `convert` raises, it is given a permissive object instead, with a warning: a tool with an
        unusual schema is better called loosely than not at all.
        """
        try:
            return convert(self.schema)
        except Exception as error:
            warnings.warn(
                f"{self.name}: its schema cannot be converted ({error}); any object is taken", stacklevel=2
            )
            return convert(PERMISSIVE)


def tool_from_definition(definition: Mapping[str, Any], mcp: Mcp) -> Tool:
    """From an entry of `mcpd/tools`."""
    own = {key: value for key, value in definition.items() if key not in ("server", "qualified_name")}
    server, tool = str(definition["server"]), str(definition["name"])
    schema, output = own.get("inputSchema"), own.get("outputSchema")
    annotations = own.get("annotations")
    return Tool(
        name=_NOT_ALLOWED.sub("_", f"{server}__{tool}"),
        server=server,
        tool=tool,
        title=str(own.get("title") or ""),
        description=str(own.get("description") or ""),
        schema=schema if isinstance(schema, dict) else PERMISSIVE,
        output_schema=output if isinstance(output, dict) else None,
        annotations=annotations if isinstance(annotations, dict) else {},
        definition=own,
        mcp=mcp,
    )
