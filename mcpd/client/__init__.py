"""Use the tools of all mcpd servers from Python, with trio or asyncio; without both, see `mcpd.client.sync`.

    async with connect() as mcp:
        for tool in await mcp.list_tools(server="git"):
            print(tool.name, tool.description)
        now = await mcp.call("time", "get_current_time", {"timezone": "UTC"})
        print(now.output)

The daemon starts servers and restarts failed ones. A call either returns a result or raises a ClientError.
"""

from mcpd.client.connecting import connect
from mcpd.client.connection import Connection
from mcpd.client.errors import (
    CallTimedOut,
    ClientError,
    ConnectionClosed,
    Denied,
    InvalidCall,
    LimitReached,
    LoginRequired,
    NotReady,
    NotRunning,
    ServerRefused,
    ToolFailed,
    ToolResult,
    Unknown,
)
from mcpd.client.handlers import Handlers
from mcpd.client.mcpd_client import CallOptions, ItemList, Mcp, Prompt, Resource, Tool
from mcpd.model.api import MissingServer

__all__ = [
    "CallOptions",
    "CallTimedOut",
    "ClientError",
    "Connection",
    "ConnectionClosed",
    "Denied",
    "Handlers",
    "InvalidCall",
    "ItemList",
    "LimitReached",
    "LoginRequired",
    "Mcp",
    "MissingServer",
    "NotReady",
    "NotRunning",
    "Prompt",
    "Resource",
    "ServerRefused",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "Unknown",
    "connect",
]
