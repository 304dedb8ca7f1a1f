"""Start an MCP server as an editor does, and list its tools.

    python examples/editor.py mcpctl bridge --client demo

This uses the official MCP SDK and no code of mcpd. Put `--call NAME JSON` before the command to call a tool.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextContent


async def main(words: Sequence[str]) -> None:
    """Print the number of tools per server, and the results of the calls."""
    calls: list[tuple[str, dict[str, object]]] = []
    while words[:1] == ["--call"]:
        calls.append((words[1], json.loads(words[2])))
        words = words[3:]
    if not words:
        sys.exit("usage: python examples/editor.py [--call NAME JSON]... COMMAND [ARGUMENT]...")
    command = StdioServerParameters(command=words[0], args=list(words[1:]), env=dict(os.environ))
    async with stdio_client(command) as (read, write), ClientSession(read, write) as session:
        hello = await session.initialize()
        tools = (await session.list_tools()).tools
        servers = Counter(tool.name.partition("__")[0] for tool in tools)
        summary = ", ".join(f"{number} of {server}" for server, number in servers.items())
        print(f"connected to {hello.server_info.name}, MCP {hello.protocol_version}")
        print(f"{len(tools)} tools: {summary}")
        for name, arguments in calls:
            result = await session.call_tool(name, arguments)
            texts = [block.text for block in result.content if isinstance(block, TextContent)]
            print(f"{name}: {' '.join(' '.join(texts).split())}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
