"""An agent in a trio program: it gathers facts with many tools at once, whichever servers have them.

    python examples/agent_trio.py [SERVER]

Needs a running mcpd (`mcpctl daemon start`) with at least one server, such as `mcp-server-time`.
"""

from __future__ import annotations

import sys

import trio

from mcpd.client import ClientError, Tool, connect


async def main(server: str = "") -> None:
    """Run every tool that needs no argument and changes nothing, all together, and show what they say."""
    async with connect() as mcp:
        tools = [tool for tool in await mcp.list_tools(prefix=server) if is_harmless(tool)]
        print(f"{len(tools)} tools to ask")
        async with trio.open_nursery() as nursery:
            for tool in tools:
                nursery.start_soon(ask, tool)


def is_harmless(tool: Tool) -> bool:
    """By the server's own word, which is only a hint: a real agent asks its user."""
    return not tool.schema.get("required") and tool.annotations.get("readOnlyHint") is True


async def ask(tool: Tool) -> None:
    try:
        result = await tool.execute(timeout=20)
    except ClientError as error:
        print(f"{tool.name}: {error}")
    else:
        print(f"{tool.name}: {result.output[:200]}")


if __name__ == "__main__":
    trio.run(main, "".join(sys.argv[1:2]))
