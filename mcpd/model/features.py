"""What servers offer (tools, resources, prompts, completion) and its use, as the control API has them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec


@attrs.frozen(kw_only=True)
class ToolsResult:
    """`mcpd/tools`. Each entry is the server's own tool object plus `server` and `qualified_name`."""

    tools: tuple[msgspec.Raw, ...]
    dropped: int = 0
    """Entries that were no usable tools; the rest is kept (CA12)."""


@attrs.frozen(kw_only=True)
class ResourcesResult:
    """`mcpd/resources`. Entries are the servers' own objects plus `server`."""

    resources: tuple[msgspec.Raw, ...]
    resource_templates: tuple[msgspec.Raw, ...]


@attrs.frozen(kw_only=True)
class PromptsResult:
    """`mcpd/prompts`. Entries are the servers' own objects plus `server`."""

    prompts: tuple[msgspec.Raw, ...]


@attrs.frozen(kw_only=True)
class CallParams:
    server: str
    tool: str
    arguments: Mapping[str, object] = attrs.field(factory=dict)
    timeout: float | None = None
    """Seconds of silence allowed; progress starts it afresh. None: the configured one."""
    raw: bool = False
    """Answer the MCP result byte for byte instead of a ToolResult."""


@attrs.frozen(kw_only=True)
class ReadParams:
    server: str
    uri: str


@attrs.frozen(kw_only=True)
class PromptParams:
    server: str
    prompt: str
    arguments: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class CompleteParams:
    server: str
    ref: Mapping[str, object]
    """MCP's own: `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`."""
    argument: Mapping[str, object]
    """`{"name": …, "value": …}`."""
    context: Mapping[str, object] | None = None
