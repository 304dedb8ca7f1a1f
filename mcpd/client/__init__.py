"""For agents and programs: the tools of every server that mcpd keeps, in trio and in asyncio programs.

    async with connect() as mcp:
        for tool in await mcp.list_tools(prefix="git"):
            print(tool.name, tool.description)
        now = await mcp.call("time", "get_current_time", {"timezone": "UTC"})
        print(now.output)

What is not there is started by the daemon, what breaks is mended by it; here a call either has a result
or raises.
"""

from mcpd.client.connection import Connection
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
from mcpd.client.mcp import Mcp, Tool, connect
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
