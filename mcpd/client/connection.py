"""One connection to the daemon's socket: many requests at once, under trio or asyncio."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream

from mcpd.client.errors import ClientError, ConnectionClosed, NotRunning, error_from_response
from mcpd.support.paths import UnusablePath, socket_path
from mcpd.wire.framing import LineSplitter, LineTooLong

Progress = Callable[[float, float | None, str], None]
"""Called with how far a call is, of how much (None: not known), and a word about it. What it raises ends the
call, and is raised there."""
_CHUNK = 1 << 16
_MAX_LINE = 128 * 1024 * 1024
"""Of a line; the daemon's own limits are lower."""
_SEND_TIMEOUT = 30.0
"""Seconds for the daemon to take a request: one that does not read is stopped, or hangs."""


class _PendingRequest:
    """One request under way."""

    def __init__(self, progress: Progress | None) -> None:
        self.done = anyio.Event()
        self.answer: Mapping[str, Any] = {}
        self.progress = progress
        self.progress_error: Exception | None = None
        """What `progress` has raised."""


class Connection:
    """Made by `open_connection`, and valid inside its block."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._sending = anyio.Lock()
        self._pending: dict[int, _PendingRequest] = {}
        self._ids = itertools.count(1)
        self._close_reason = ""

    async def request(
        self, method: str, params: Mapping[str, object] | None = None, progress: Progress | None = None
    ) -> Any:  # noqa: ANN401 # JSON
        """The result. Cancelling the wait cancels the request. Raises ClientError."""
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
            raise ConnectionClosed(f"{self._close_reason}; {method} was under way")
        if "error" in pending.answer:
            raise error_from_response(pending.answer["error"])
        return pending.answer["result"]

    async def _send_cancelled(self, key: int) -> None:
        try:
            params = {"requestId": key, "reason": "nobody waits for it any more"}
            await self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        except ClientError:
            return  # then nobody is there to be told

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._close_reason:
            raise ConnectionClosed(self._close_reason)
        data = msgspec.json.encode(message) + b"\n"
        async with self._sending:
            try:
                # Shielded: half a line would be the end of the connection for everybody.
                with anyio.move_on_after(_SEND_TIMEOUT, shield=True) as patience:
                    await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise ConnectionClosed("the daemon has closed the connection") from None
            if patience.cancelled_caught:
                self._close(f"the daemon has not read what it was sent for {_SEND_TIMEOUT:g} s")
                raise ConnectionClosed(self._close_reason)

    async def read(self) -> None:
        """Hand out answers until the daemon goes; whoever still waits then is told."""
        splitter = LineSplitter(_MAX_LINE)
        try:
            while True:
                for line in splitter.feed(await self._stream.receive(_CHUNK)):
                    self._handle_message(msgspec.json.decode(line))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._close("the daemon has closed the connection")
        except (msgspec.DecodeError, LineTooLong) as error:
            self._close(f"the daemon sent what cannot be read ({error})")

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
                except Exception as error:  # its caller's own: others' requests go on
                    pending.progress_error = error
                    pending.done.set()

    def _close(self, reason: str) -> None:
        self._close_reason = reason
        for pending in self._pending.values():
            pending.done.set()


@asynccontextmanager
async def open_connection(path: str | None = None) -> AsyncIterator[Connection]:
    """To the daemon at `path`, by default this user's. Raises NotRunning."""
    try:
        path = path or socket_path(os.environ)
        stream = await anyio.connect_unix(path)
    except (OSError, UnusablePath) as error:
        raise NotRunning(
            f"no mcpd answers at {path or 'its socket'} ({error}); `mcpctl daemon start` starts one"
        ) from None
    connection = Connection(stream)
    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(connection.read)
        try:
            yield connection
        finally:
            tasks.cancel_scope.cancel()
