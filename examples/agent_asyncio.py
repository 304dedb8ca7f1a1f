"""An agent loop in an asyncio program: a model chooses tools, mcpd runs them, the model goes on.

    python examples/agent_asyncio.py "What time is it in Tokyo?"

Needs a running mcpd (`mcpctl daemon start`) with `mcp-server-time`. The model here is a stand-in of ten
lines that knows one trick, so that the example runs without a key; put your provider's call in its
place: it gets the conversation and the tools in the form that model APIs take, and says what to do next.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mcpd.client import Tool, ToolFailed, connect

Message = dict[str, Any]


async def agent(question: str) -> str:
    async with connect() as mcp:
        tools = {tool.name: tool for tool in await mcp.list_tools()}
        conversation: list[Message] = [{"role": "user", "content": question}]
        while True:
            said = await model(conversation, [described(tool) for tool in tools.values()])
            conversation.append(said)
            if not said.get("tool_calls"):
                return str(said["content"])
            for call in said["tool_calls"]:
                answer = await run(tools[call["name"]], call["arguments"])
                conversation.append({"role": "tool", "name": call["name"], "content": answer})


def described(tool: Tool) -> Message:
    """As model APIs want their tools; a schema that cannot be converted becomes one that takes anything."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.converted(dict)}


async def run(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """What the tool says; its failures are for the model to read."""
    try:
        return (await tool.execute(arguments)).output
    except ToolFailed as failed:
        return f"failed: {failed}"


async def model(conversation: Sequence[Message], tools: Sequence[Message]) -> Message:
    """Knows how to ask for the time in a place, and how to pass on what it is told."""
    last = conversation[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"The server says: {last['content']}"}
    place = re.search(r"in ([A-Z]\w+)", last["content"])
    clock = next((tool["name"] for tool in tools if tool["name"].endswith("__get_current_time")), None)
    if clock is None:
        return {"role": "assistant", "content": "No server here tells the time."}
    zone = f"Asia/{place[1]}" if place else "UTC"
    return {"role": "assistant", "tool_calls": [{"name": clock, "arguments": {"timezone": zone}}]}


if __name__ == "__main__":
    print(asyncio.run(agent(" ".join(sys.argv[1:]) or "What time is it in Tokyo?")))
