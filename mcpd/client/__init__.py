"""Use the tools of all mcpd servers from Python, with trio or asyncio.

    async with connect() as mcp:
        for tool in await mcp.list_tools(prefix="git"):
            print(tool.name, tool.description)
        now = await mcp.call("time", "get_current_time", {"timezone": "UTC"})
        print(now.output)

The daemon starts servers and restarts failed ones. A call either returns a result or raises a ClientError.
"""

from mcpd.client.errors import (
    CallTimedOut,
    ClientError,
    ConnectionClosed,
    InvalidCall,
    NotReady,
    NotRunning,
    ServerRefused,
    ToolFailed,
    Unknown,
)
from mcpd.client.mcpd_client import Connection, Mcp, Tool, connect
from mcpd.model.tool_result import ToolResult

__all__ = [
    "CallTimedOut",
    "ClientError",
    "Connection",
    "ConnectionClosed",
    "InvalidCall",
    "Mcp",
    "NotReady",
    "NotRunning",
    "ServerRefused",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "Unknown",
    "connect",
]
