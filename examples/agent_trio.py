"""Call many tools of many servers concurrently with trio.

    python examples/agent_trio.py [SERVER]

This requires a running daemon (`mcpctl daemon start`) with a server that has read-only tools without
required arguments, such as `@modelcontextprotocol/server-memory`.
"""

from __future__ import annotations

import sys

import trio

from mcpd.client import ClientError, Tool, connect


async def main(server: str = "") -> None:
    """Call all tools that are read-only and need no arguments, and print their output."""
    async with connect() as mcp:
        tools = [tool for tool in await mcp.list_tools(prefix=server) if is_harmless(tool)]
        print(f"{len(tools)} tools to call")
        async with trio.open_nursery() as nursery:
            for tool in tools:
                nursery.start_soon(call, tool)


def is_harmless(tool: Tool) -> bool:
    """Return whether the tool is declared read-only. A real agent should ask its user as well."""
    return not tool.schema.get("required") and tool.annotations.get("readOnlyHint") is True


async def call(tool: Tool) -> None:
    try:
        result = await tool.execute(timeout=20)
    except ClientError as error:
        print(f"{tool.name}: {error}")
    else:
        print(f"{tool.name}: {result.output[:200]}")


if __name__ == "__main__":
    trio.run(main, "".join(sys.argv[1:2]))
