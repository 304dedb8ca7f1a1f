"""How a tool is called together with its server: one name that no other tool has.

A server's name has no `@`, `:` or `/` in it, so `suffix` and `namespace` can be taken apart again;
`prefix` cannot, and is looked up among the tools there are.
"""

from __future__ import annotations

import enum


class NameStyle(enum.Enum):
    """`settings.toolNames`."""

    SUFFIX = "suffix"
    """`echo@test`."""
    PREFIX = "prefix"
    """`mcp_test_echo`."""
    NAMESPACE = "namespace"
    """`test::echo`."""


def qualified_name(style: NameStyle, server: str, tool: str) -> str:
    match style:
        case NameStyle.SUFFIX:
            return f"{tool}@{server}"
        case NameStyle.PREFIX:
            return f"mcp_{server}_{tool}"
        case NameStyle.NAMESPACE:
            return f"{server}::{tool}"


class ClientStyle(enum.Enum):
    """`settings.clientToolNames`: how tools and prompts of several servers are named towards MCP clients."""

    UNDERSCORES = "underscores"
    """`test__echo`: the default, since several clients take letters, digits, `_` and `-` only."""
    SUFFIX = "suffix"
    """`echo@test`."""
    PREFIX = "prefix"
    """`mcp_test_echo`."""
    NAMESPACE = "namespace"
    """`test::echo`."""
    PLAIN = "plain"
    """`echo` where no other server has a tool of that name, else `test__echo`."""
