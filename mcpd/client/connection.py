"""The connection to the daemon's socket: requests, their responses, progress and cancellation."""

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
"""Called with the progress of a call, its total (None: unknown) and a message. An exception that it raises
cancels the call and is raised there."""
_CHUNK = 1 << 16
_MAX_LINE = 128 * 1024 * 1024
"""Maximum length of a line; the daemon's own limits are lower."""
_CLOSED_BY_US = "this connection has been closed; connect again"
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

    async def close(self) -> None:
        """Close the connection. Pending requests are cancelled, and later ones raise ConnectionClosed."""
        self._close(_CLOSED_BY_US)
        await self._stream.aclose()

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._close_reason:
            raise ConnectionClosed(self._close_reason, data={"may_have_run": False})
        data = msgspec.json.encode(message) + b"\n"
        async with self._sending:
            try:
                # Shielded, because a partial line would break the connection for all requests.
                with anyio.move_on_after(_SEND_TIMEOUT, shield=True) as patience:
                    await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._close("the daemon has closed the connection")
                raise ConnectionClosed(self._close_reason) from None
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
        self._close_reason = self._close_reason or reason
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
    failed: Exception | None = None
    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(connection.read)
        try:
            yield connection
        except Exception as error:  # raised below, because the task group would wrap it in a group
            failed = error
        finally:
            connection._close(_CLOSED_BY_US)
            tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
