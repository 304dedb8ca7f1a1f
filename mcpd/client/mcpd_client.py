"""The client: `connect` to the daemon, list tools, call them, read resources and prompts."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs
import msgspec
from anyio.abc import ByteStream
from msgspec import Raw

from mcpd.client.errors import ClientError, ConnectionClosed, NotRunning, ToolFailed, error_from_response
from mcpd.model.tool_result import ToolResult
from mcpd.support.paths import UnusablePath, socket_path
from mcpd.wire.framing import LineSplitter, LineTooLong

T = TypeVar("T")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
PERMISSIVE: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""Accepts any arguments; the server validates them."""


class Mcp:
    """A connection to the daemon. Any number of tasks may use it; calls run concurrently."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        """Gives access to all other methods of the control API: `mcp.connection.request`."""

    async def list_tools(self, *, server: str | None = None, prefix: str = "") -> list[Tool]:
        """Return the tools of all servers or of one. `prefix` filters by server or tool name.

        The daemon answers from its cache, which follows the servers' notifications, so this is cheap.
        Raises Unknown if `server` is not defined.
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
        timeout: float | None = None,  # enforced by the daemon
        progress: Progress | None = None,
    ) -> ToolResult:
        """Call a tool of a server. Cancelling this call cancels the tool call.

        `timeout` replaces the configured seconds without a response or progress. Raises ToolFailed if the
        tool reports an error, and the other ClientErrors. Calls are never repeated.
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
            raise ToolFailed(f"{tool}@{server}: {result.error or result.output or 'the tool failed'}", result)
        return result

    async def read(self, server: str, uri: str) -> list[Mapping[str, Any]]:
        """Return the contents of a resource, as sent by the server."""
        answer = await self.connection.request("mcpd/read", {"server": server, "uri": uri})
        return list(answer["contents"])

    async def prompt(
        self, server: str, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> list[Mapping[str, Any]]:
        """Return the messages of a prompt."""
        request = {"server": server, "prompt": prompt, "arguments": dict(arguments or {})}
        return list((await self.connection.request("mcpd/prompt", request))["messages"])

    async def status(self) -> Mapping[str, Any]:
        """Return the same object as `mcpctl status --json`."""
        answer: Mapping[str, Any] = await self.connection.request("mcpd/status")
        return answer


@attrs.frozen(kw_only=True, eq=False)
class Tool:
    """A tool of one server. `definition` is the server's complete entry."""

    name: str
    """Unique among all servers and valid for model APIs: `server__tool`."""
    server: str
    tool: str
    """The name that the server uses."""
    title: str
    description: str
    schema: Mapping[str, Any]
    """The JSON Schema of its arguments, unchanged."""
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]
    definition: Mapping[str, Any]
    _mcp: Mcp

    async def execute(
        self,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # enforced by the daemon
        progress: Progress | None = None,
        **named: object,
    ) -> ToolResult:
        """Call the tool with arguments as a mapping or keywords. See `Mcp.call`."""
        given = {**(arguments or {}), **named}
        return await self._mcp.call(self.server, self.tool, given, timeout=timeout, progress=progress)

    def converted(self, convert: Callable[[Mapping[str, Any]], T]) -> T:
        """Return `convert(schema)`, for example the tool type of an agent framework.

        If `convert` raises, warn and return `convert(PERMISSIVE)`, so that the tool can still be called.
        """
        try:
            return convert(self.schema)
        except Exception as error:
            warnings.warn(
                f"{self.name}: its schema cannot be converted ({error}); accepting any object", stacklevel=2
            )
            return convert(PERMISSIVE)


def tool_from_definition(definition: Mapping[str, Any], mcp: Mcp) -> Tool:
    """Create a Tool from an entry of `mcpd/tools`."""
    own = {key: value for key, value in definition.items() if key not in ("server", "qualified_name")}
    server, tool = str(definition["server"]), str(definition["name"])
    schema, output = own.get("inputSchema"), own.get("outputSchema")
    annotations = own.get("annotations")
    return Tool(
        name=_NOT_ALLOWED.sub("_", f"{server}__{tool}"),
        server=server,
        tool=tool,
        title=str(own.get("title") or ""),
        description=str(own.get("description") or ""),
        schema=schema if isinstance(schema, dict) else PERMISSIVE,
        output_schema=output if isinstance(output, dict) else None,
        annotations=annotations if isinstance(annotations, dict) else {},
        definition=own,
        mcp=mcp,
    )


@asynccontextmanager
async def connect(socket: str | None = None, *, start: bool = False) -> AsyncIterator[Mcp]:
    """Connect to the daemon at `socket`, by default that of this user. `start`: start it if necessary.

    Raises NotRunning. Leaving the block closes the connection and cancels pending requests.
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
        raise NotRunning("mcpd is not running, and mcpctl was not found to start it")
    where = [] if socket is None else ["--socket", socket]
    done = await anyio.run_process([mcpctl, *where, "daemon", "start"], check=False, stderr=subprocess.STDOUT)
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace").strip()
        raise NotRunning(f"mcpd could not be started: {output}")


Progress = Callable[[float, float | None, str], None]
"""Called with the progress of a call, its total (None: unknown) and a message. An exception that it raises
cancels the call and is raised there."""
_CHUNK = 1 << 16
_MAX_LINE = 128 * 1024 * 1024
"""Maximum length of a line; the daemon's own limits are lower."""
_SEND_TIMEOUT = 30.0
"""Seconds within which the daemon must read a request; otherwise it is stopped or hangs."""


class _PendingRequest:
    """A request without a response yet."""

    def __init__(self, progress: Progress | None) -> None:
        self.done = anyio.Event()
        self.answer: Mapping[str, Any] = {}
        self.progress = progress
        self.progress_error: Exception | None = None
        """The exception that `progress` has raised."""


class Connection:
    """Created by `open_connection` and valid inside its block. Any number of tasks may use it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._sending = anyio.Lock()
        self._pending: dict[int, _PendingRequest] = {}
        self._ids = itertools.count(1)
        self._close_reason = ""

    async def request(
        self, method: str, params: Mapping[str, object] | None = None, progress: Progress | None = None
    ) -> Any:  # noqa: ANN401 # JSON
        """Send a control API request and return its result. Raises ClientError.

        Cancelling this call cancels the request.
        """
        key = next(self._ids)
        pending = _PendingRequest(progress)
        arguments: dict[str, object] = dict(params or {})
        if progress is not None:
            arguments["_meta"] = {"progressToken": key}
        self._pending[key] = pending
        try:
            await self._send({"jsonrpc": "2.0", "id": key, "method": method, "params": arguments})
            await pending.done.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(1, shield=True):
                await self._send_cancelled(key)
            raise
        finally:
            self._pending.pop(key, None)
        if pending.progress_error is not None:
            await self._send_cancelled(key)
            raise pending.progress_error
        if not pending.answer:
            raise ConnectionClosed(f"{self._close_reason}; {method} was in progress")
        if "error" in pending.answer:
            raise error_from_response(pending.answer["error"])
        return pending.answer["result"]

    async def _send_cancelled(self, key: int) -> None:
        try:
            params = {"requestId": key, "reason": "the caller no longer waits for it"}
            await self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        except ClientError:
            return  # the connection has ended anyway

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._close_reason:
            raise ConnectionClosed(self._close_reason)
        data = msgspec.json.encode(message) + b"\n"
        async with self._sending:
            try:
                # Shielded, because a partial line would break the connection for all requests.
                with anyio.move_on_after(_SEND_TIMEOUT, shield=True) as patience:
                    await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise ConnectionClosed("the daemon has closed the connection") from None
            if patience.cancelled_caught:
                self._close(f"the daemon has not read its input for {_SEND_TIMEOUT:g} s")
                raise ConnectionClosed(self._close_reason)

    async def read(self) -> None:
        """Read responses until the connection ends; pending requests then raise ConnectionClosed."""
        splitter = LineSplitter(_MAX_LINE)
        try:
            while True:
                for line in splitter.feed(await self._stream.receive(_CHUNK)):
                    self._handle_message(msgspec.json.decode(line))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._close("the daemon has closed the connection")
        except (msgspec.DecodeError, LineTooLong) as error:
            self._close(f"the daemon sent an invalid message ({error})")

    def _handle_message(self, message: Mapping[str, Any]) -> None:
        if "method" not in message:
            pending = self._pending.get(message.get("id", 0))
            if pending is not None:
                pending.answer = message
                pending.done.set()
        elif message["method"] == "notifications/progress":
            params = message["params"]
            pending = self._pending.get(params.get("progressToken", 0))
            if pending is not None and pending.progress is not None:
                try:
                    pending.progress(
                        params.get("progress", 0), params.get("total"), params.get("message", "")
                    )
                except Exception as error:  # the caller's own error; other requests continue
                    pending.progress_error = error
                    pending.done.set()

    def _close(self, reason: str) -> None:
        self._close_reason = reason
        for pending in self._pending.values():
            pending.done.set()


@asynccontextmanager
async def open_connection(path: str | None = None) -> AsyncIterator[Connection]:
    """Connect to the daemon at `path`, by default that of this user. Raises NotRunning."""
    try:
        path = path or socket_path(os.environ)
        stream = await anyio.connect_unix(path)
    except (OSError, UnusablePath) as error:
        raise NotRunning(
            f"mcpd is not running at {path or 'its socket'} ({error}); start it with `mcpctl daemon start`"
        ) from None
    connection = Connection(stream)
    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(connection.read)
        try:
            yield connection
        finally:
            tasks.cancel_scope.cancel()
