"""All servers, from a program: `connect`, list, call, read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from mcpd.client.connection import Connection, Progress, open_connection
from mcpd.client.errors import NotRunning, ToolFailed
from mcpd.client.tool import Tool, tool_from_definition
from mcpd.model.tool_result import ToolResult


class Mcp:
    """A connection to the daemon. Any number of tasks may use it at once; calls run beside each other."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        """For what is not here: `request` takes every method of the control API."""

    async def list_tools(self, *, server: str | None = None, prefix: str = "") -> list[Tool]:
        """The tools of all servers, or of one; with `prefix`, whose server's name or own name begins so.

        From the daemon's lists, which follow what servers announce: asking again is cheap.
        Raises Unknown for a server that is not defined.
        """
        answer = await self.connection.request("mcpd/tools", {} if server is None else {"server": server})
        found = [tool_from_definition(definition, self) for definition in answer["tools"]]
        return [tool for tool in found if tool.server.startswith(prefix) or tool.tool.startswith(prefix)]

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,  # the server's patience, kept by the daemon
        progress: Progress | None = None,
    ) -> ToolResult:
        """Run a tool by its server's name and its own. Cancelling the wait cancels the call.

        `timeout`: seconds of silence allowed, in place of the configured ones. Raises ToolFailed when the
        tool says that it failed, and the other ClientErrors; nothing is ever tried twice.
        """
        request: dict[str, object] = {"server": server, "tool": tool, "arguments": dict(arguments or {})}
        if timeout is not None:
            request["timeout"] = timeout
        answer = await self.connection.request("mcpd/call", request, progress)
        result = ToolResult(
            success=answer["success"],
            output=answer.get("output", ""),
            data=answer.get("data"),
            error=answer.get("error"),
            content=tuple(Raw(msgspec.json.encode(block)) for block in answer.get("content", ())),
            warnings=tuple(answer.get("warnings", ())),
        )
        if not result.success:
            raise ToolFailed(f"{tool}@{server}: {result.error or result.output or 'it failed'}", result)
        return result

    async def read(self, server: str, uri: str) -> list[Mapping[str, Any]]:
        """The contents of a resource, as the server gives them."""
        answer = await self.connection.request("mcpd/read", {"server": server, "uri": uri})
        return list(answer["contents"])

    async def prompt(
        self, server: str, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> list[Mapping[str, Any]]:
        """The messages of a prompt."""
        request = {"server": server, "prompt": prompt, "arguments": dict(arguments or {})}
        return list((await self.connection.request("mcpd/prompt", request))["messages"])

    async def status(self) -> Mapping[str, Any]:
        """What `mcpctl status --json` prints."""
        answer: Mapping[str, Any] = await self.connection.request("mcpd/status")
        return answer


@asynccontextmanager
async def connect(socket: str | None = None, *, start: bool = False) -> AsyncIterator[Mcp]:
    """Use the daemon at `socket`, by default this user's; `start` one if none runs.

    Raises NotRunning. Leaving the block ends the connection, and cancels what is still under way.
    """
    if start:
        try:
            async with open_connection(socket):
                pass
        except NotRunning:
            await _start_daemon(socket)
    async with open_connection(socket) as connection:
        yield Mcp(connection)


async def _start_daemon(socket: str | None) -> None:
    beside = Path(sys.executable).with_name("mcpctl")
    mcpctl = str(beside) if beside.exists() else shutil.which("mcpctl")
    if mcpctl is None:
        raise NotRunning("no mcpd runs, and there is no mcpctl to start one")
    where = [] if socket is None else ["--socket", socket]
    done = await anyio.run_process([mcpctl, *where, "daemon", "start"], check=False, stderr=subprocess.STDOUT)
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()
        raise NotRunning(f"mcpd could not be started: {said}")
