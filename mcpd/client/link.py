"""One connection to the daemon's socket: requests, their responses, progress and cancellation."""

from __future__ import annotations

import itertools
import json
import math
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio import CancelScope
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import RunVar

from mcpd.client.errors import NOT_SENT, ClientError, ConnectionClosed, InvalidCall, error_from_response
from mcpd.client.handlers import Handlers, answer, log, notify, resolve
from mcpd.model.message_limit import MAX_MESSAGE, describe_excess
from mcpd.wire.framing import LineSplitter, LineTooLong

Progress = Callable[[float, float | None, str], object]
"""Called with the progress of a call, its total (None: unknown) and a message, in the task of the call. May
be an async function. An exception that it raises cancels the call and is raised there."""
_MAX_WAITING = 1000
"""Progress, and other notifications, that a slow function of the program has not taken yet; older ones are
dropped."""
_METHOD_NOT_FOUND, _INTERNAL = -32601, -32603
T = TypeVar("T")
_CHUNK = 1 << 16
_MAX_LINE = 128 * 1024 * 1024
"""Maximum length of a line; the daemon's own limits are lower."""
CLOSED_BY_US = "this connection has been closed; connect again"
_CLOSED_BY_DAEMON = "the daemon has closed the connection"
_SEND_TIMEOUT = 30.0
"""Seconds within which the daemon must read a request; otherwise it is stopped or hangs."""
_CLOSE_TIMEOUT = 1.0
"""Seconds to wait for the end of `run` and of what it has started."""


_OTHER_LOOP = (
    "this connection belongs to another event loop; connect in the loop that uses it, or use "
    "mcpd.client.sync, which works in all threads"
)
_LOOP = RunVar[object]("the event loop that is running")


def _current_loop() -> object:
    try:
        return _LOOP.get()
    except LookupError:
        loop = object()
        _LOOP.set(loop)
        return loop


class _Arrivals(Generic[T]):
    """What has arrived and was not taken yet."""

    def __init__(self) -> None:
        self._items: deque[T] = deque(maxlen=_MAX_WAITING)
        self._changed = anyio.Event()
        self.is_closed = False

    def put(self, item: T) -> None:
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """Let `next` return None once all items are taken."""
        self.is_closed = True
        self._changed.set()

    async def next(self) -> T | None:
        while not self._items:
            if self.is_closed:
                return None
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._items.popleft()


class _PendingRequest:
    """A request without a response yet."""

    def __init__(self, progress: Progress | None) -> None:
        self.answer: Mapping[str, Any] = {}
        self.progress = progress
        self.reports: _Arrivals[Mapping[str, Any]] = _Arrivals()
        """Its progress; closed when it has been answered."""

    async def wait_answered(self) -> None:
        """Raises what `progress` raises."""
        while (report := await self.reports.next()) is not None:
            if self.progress is not None:
                total, words = report.get("total"), report.get("message", "")
                await resolve(self.progress(report.get("progress", 0), total, words))


class Link:
    """A connection that is used until it ends. The creator runs `run` in a task."""

    def __init__(self, stream: ByteStream, handlers: Handlers | None = None) -> None:
        self._stream = stream
        self.handlers = handlers or Handlers()
        self._answering: dict[object, anyio.CancelScope] = {}
        """The questions of servers that the program is answering, by their ids."""
        self._notices: _Arrivals[tuple[str, Mapping[str, Any]]] = _Arrivals()
        self._sending = anyio.Lock()
        self._pending: dict[int, _PendingRequest] = {}
        self._ids = itertools.count(1)
        self._loop = _current_loop()
        self.close_reason = ""
        """Why it has ended; empty while it can be used."""
        self.was_lost = False
        """Whether the daemon has closed it, so that it makes sense to connect again."""
        self.closed = anyio.Event()
        self.closed_at = math.inf
        """When it has ended, by the clock of anyio."""
        self._scope = anyio.CancelScope()
        """Of `run`."""
        self._ended = anyio.Event()
        """Set at the end of `run`."""

    def __repr__(self) -> str:
        return f"<Link: {self.close_reason or f'{len(self._pending)} requests in progress'}>"

    async def request(
        self, method: str, params: Mapping[str, object] | None = None, progress: Progress | None = None
    ) -> Any:  # noqa: ANN401 # JSON
        """Send a control API request and return its result. Raises ClientError.

        Cancelling this call cancels the request. `may_have_run` of a ConnectionClosed is False if the daemon
        cannot have read the whole request. Raises RuntimeError in another event loop, where it would hang.
        """
        if _current_loop() is not self._loop:
            raise RuntimeError(_OTHER_LOOP)
        key = next(self._ids)
        pending = _PendingRequest(progress)
        arguments: dict[str, object] = dict(params or {})
        if progress is not None:
            given = arguments.get("_meta")
            arguments["_meta"] = {**(given if isinstance(given, Mapping) else {}), "progressToken": key}
        self._pending[key] = pending
        is_sent = False
        try:
            await self._send({"jsonrpc": "2.0", "id": key, "method": method, "params": arguments})
            is_sent = True
            await pending.wait_answered()
        except BaseException as error:
            if is_sent or isinstance(error, anyio.get_cancelled_exc_class()):
                with anyio.move_on_after(1, shield=True):
                    await self._send_cancelled(key)
            raise
        finally:
            self._pending.pop(key, None)
        if not pending.answer:
            raise ConnectionClosed(f"{self.close_reason}; {method} was in progress")
        if "error" in pending.answer:
            raise error_from_response(pending.answer["error"])
        return pending.answer["result"]

    async def notify(self, method: str, params: Mapping[str, object] | None = None) -> None:
        """Send a notification. Raises ConnectionClosed."""
        await self._send({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

    async def _send_cancelled(self, key: int) -> None:
        try:
            params = {"requestId": key, "reason": "the caller no longer waits for it"}
            await self.notify("notifications/cancelled", params)
        except ClientError:
            return  # the connection has ended anyway

    async def close(self) -> None:
        """Close the connection. Pending requests are cancelled, and later ones raise ConnectionClosed.

        In another event loop than its own, which may have ended, this only tells the daemon.
        """
        if _current_loop() is not self._loop:
            with suppress(OSError):  # closed before
                own: socket.socket = self._stream.extra(SocketAttribute.raw_socket)  # noqa: S610 # not Django's
                own.shutdown(socket.SHUT_RDWR)
            return
        self.abandon()
        with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await self._stream.aclose()  # `run` does it, unless its task was cancelled before
            await self._ended.wait()

    def abandon(self) -> None:
        """Close the connection without waiting for anything."""
        self._close(CLOSED_BY_US)
        self._scope.cancel()

    async def _send(self, message: Mapping[str, object]) -> None:
        data = _encode(message)
        async with self._sending:
            if self.close_reason:
                raise ConnectionClosed(self.close_reason, data=NOT_SENT)
            try:
                # Shielded, because a partial line would break the connection for all requests.
                with anyio.move_on_after(_SEND_TIMEOUT, shield=True) as patience:
                    await self._stream.send(data + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._close(_CLOSED_BY_DAEMON, was_lost=True)
                # The end of the line was not sent, and the daemon ignores a line without its end.
                raise ConnectionClosed(self.close_reason, data=NOT_SENT) from None
            if patience.cancelled_caught:
                self._close(f"the daemon has not read its input for {_SEND_TIMEOUT:g} s")
                raise ConnectionClosed(self.close_reason)

    async def run(self) -> None:
        """Read responses until the connection ends; pending requests then raise ConnectionClosed."""
        try:
            with self._scope:
                async with self._stream, anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._notify)
                    await self._read()
                    self._tasks.cancel_scope.cancel()
        finally:
            self._close(CLOSED_BY_US)  # unless there was another reason, its task was cancelled
            self._ended.set()

    async def _read(self) -> None:
        splitter = LineSplitter(_MAX_LINE)
        try:
            while True:
                for line in splitter.feed(await self._stream.receive(_CHUNK)):
                    self._handle_message(msgspec.json.decode(line))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._close(_CLOSED_BY_DAEMON, was_lost=True)
        except (msgspec.DecodeError, LineTooLong) as error:
            self._close(f"the daemon sent an invalid message ({error})")

    def _handle_message(self, message: Mapping[str, Any]) -> None:
        params = message.get("params") or {}
        if "method" not in message:
            pending = self._pending.get(message.get("id", 0))
            if pending is not None:
                pending.answer = message
                pending.reports.close()
        elif "id" in message:
            scope = self._answering[message["id"]] = anyio.CancelScope()
            self._tasks.start_soon(self._answer, message["id"], message["method"], params, scope)
        elif message["method"] == "notifications/progress":
            pending = self._pending.get(params.get("progressToken", 0))
            if pending is not None:
                pending.reports.put(params)
        elif message["method"] == "notifications/cancelled":
            if (asked := self._answering.get(params.get("requestId"))) is not None:
                asked.cancel()
        else:
            self._notices.put((message["method"], params))

    async def _answer(self, key: object, method: str, params: Mapping[str, Any], scope: CancelScope) -> None:
        """Answer a question of a server. No exception of the program ends the connection."""
        response: dict[str, object] = {"jsonrpc": "2.0", "id": key}
        with scope, suppress(ClientError):
            try:
                result = await answer(self.handlers, method, params)
                if result is not None:
                    await self._send({**response, "result": result})
                    return
                error = {"code": _METHOD_NOT_FOUND, "message": f"the program has no handler for {method}"}
            except (anyio.get_cancelled_exc_class(), ConnectionClosed):
                raise
            except BaseException as problem:
                log.exception("the handler of %s failed", method)
                text = f"the program's handler of {method} failed: {type(problem).__name__}: {problem}"
                error = {"code": _INTERNAL, "message": text}
            await self._send({**response, "error": error})
        self._answering.pop(key, None)

    async def _notify(self) -> None:
        """Pass on notifications, one after the other."""
        while (notice := await self._notices.next()) is not None:
            await notify(self.handlers, *notice)

    def _close(self, reason: str, *, was_lost: bool = False) -> None:
        if self.close_reason:
            return
        self.close_reason, self.was_lost = reason, was_lost
        self.closed_at = anyio.current_time()
        self.closed.set()
        for pending in self._pending.values():
            pending.reports.close()


def _encode(message: Mapping[str, object]) -> bytes:
    """Raises InvalidCall for what JSON cannot express, such as NaN, and TypeError for types that it lacks."""
    try:
        data = json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        text = f"the request cannot be sent as JSON: {error}"
        raise InvalidCall(text, "invalid_arguments", NOT_SENT) from None
    if len(data) > MAX_MESSAGE:
        raise InvalidCall(describe_excess(len(data)), "invalid_arguments", NOT_SENT)
    return data
