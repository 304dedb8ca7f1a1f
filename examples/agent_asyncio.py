"""Run an agent loop with asyncio: a model chooses tools, and mcpd runs them.

    python examples/agent_asyncio.py "What time is it in Tokyo?"

It requires `mcp-server-time`; to add it, run:

    mcpctl add time -- uvx mcp-server-time

The daemon is started if it is not running. The function `model` is a placeholder that can only ask for the
time, so the example runs without an API key. Replace it with a call to your model provider. It receives the
conversation and the tools in the format of common model APIs, and returns the next message.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mcpd.client import ClientError, Tool, connect

Message = dict[str, Any]


async def agent(question: str) -> str:
    async with connect(client="agent-example") as mcp:
        tools = {tool.name: tool for tool in await mcp.list_tools()}
        conversation: list[Message] = [{"role": "user", "content": question}]
        while True:
            reply = await model(conversation, [describe(tool) for tool in tools.values()])
            conversation.append(reply)
            if not reply.get("tool_calls"):
                return str(reply["content"])
            for call in reply["tool_calls"]:
                answer = await run(tools[call["name"]], call["arguments"])
                conversation.append({"role": "tool", "name": call["name"], "content": answer})


def describe(tool: Tool) -> Message:
    """Return the tool in the format of model APIs. An unconvertible schema accepts anything."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.converted(dict)}


async def run(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Call the tool and return its output. The model also receives failures as text."""
    try:
        return (await tool.execute(arguments)).output
    except ClientError as error:
        return f"failed: {error}"


async def model(conversation: Sequence[Message], tools: Sequence[Message]) -> Message:
    """Request the time in the place that the question names, and then repeat the tool's output."""
    last = conversation[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"The server says: {last['content']}"}
    place = re.search(r"in ([A-Z]\w+)", last["content"])
    clock = next((tool["name"] for tool in tools if tool["name"].endswith("__get_current_time")), None)
    if clock is None:
        return {"role": "assistant", "content": "No server provides the time."}
    zone = f"Asia/{place[1]}" if place else "UTC"
    return {"role": "assistant", "tool_calls": [{"name": clock, "arguments": {"timezone": zone}}]}


if __name__ == "__main__":
    print(asyncio.run(agent(" ".join(sys.argv[1:]) or "What time is it in Tokyo?")))
