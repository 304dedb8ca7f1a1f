"""The connection to the daemon's Unix socket: synchronous, standard library only.

A request is one line, its answer is one line, and notifications may come in between. Needs no more than
`_json` and `_socket`, because `mcpctl status` pays for every import on each run.
"""

from __future__ import annotations

import _socket  # `socket` adds selectors and enumerations: 2 ms in each run of `mcpctl status`
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ctl.cli.errors import CtlError, DaemonError, DaemonGone, DaemonUnreachable, TimedOut, UsageError
from ctl.cli.json_text import mapping, split_message

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ctl.api_types import Call, Stream

    class Connection(Protocol):
        """What is used of a socket."""

        def settimeout(self, seconds: float | None, /) -> None: ...
        def sendall(self, data: bytes, /) -> None: ...
        def recv(self, size: int, /) -> bytes: ...
        def close(self) -> None: ...


Json = Mapping[str, object]
NotificationCallback = Callable[[str, Json], None]
"""Called with method and params of each notification that comes while a request waits for its answer."""

MAX_SOCKET_PATH = 107
"""Bytes that fit into `sockaddr_un.sun_path` on Linux, without the terminating NUL."""

CONNECT_TIMEOUT = 5.0

CHANGES = (
    "mcpd/add",
    "mcpd/approve",
    "mcpd/call",
    "mcpd/logout",
    "mcpd/reconnect",
    "mcpd/remove",
    "mcpd/servers/set",
)
"""Methods that must not be repeated blindly. If the daemon is lost, the error says if they may have run."""


def socket_path(environ: Mapping[str, str]) -> str:
    """Return the default socket path. Raises DaemonUnreachable if there is no usable directory for it."""
    from mcpd.files.paths import UnusablePath
    from mcpd.files.paths import socket_path as find

    try:
        return find(environ)
    except UnusablePath as error:
        raise DaemonUnreachable(str(error)) from None


class DaemonReply:
    """A result, parsed (`value`) and as the exact text that came over the wire (`text`)."""

    __slots__ = ("text", "value")
    value: Any

    def __init__(self, value: object, text: str) -> None:
        self.value = value
        self.text = text


ReplyCallback = Callable[[int, "DaemonReply | DaemonError"], None]
"""Called with the number of a request, from 0, and its answer or error, as soon as that comes."""


class DaemonClient:
    """Connects on construction, or raises DaemonUnreachable. Close it, or use it as a context manager.

    Closing cancels all requests in flight.
    """

    def __init__(self, path: str, connection: Connection | None = None) -> None:
        """`connection` is one that exists already; `path` then only says in errors where it leads."""
        self.path = path
        self._received = bytearray()
        self._longest = float("inf")
        """Bytes that may be received before they are used."""
        self._last_id = 0
        self.connection: Connection = self._connect(path) if connection is None else connection

    @staticmethod
    def _connect(path: str) -> _socket.socket:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            message = f"the socket path {path} is longer than {MAX_SOCKET_PATH} bytes"
            raise DaemonUnreachable(message, hint="choose a shorter one with --socket or MCPD_SOCKET")
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_TIMEOUT)
            connection.connect(path)
        except OSError as error:
            connection.close()
            message, hint = _connect_error(path, error)
            raise DaemonUnreachable(message, hint=hint) from None
        return connection

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    @property
    def call(self) -> Call:
        """`request`, with the types of params and answer known from the method's name."""
        return self.request

    def request(
        self,
        method: str,
        params: Json | None = None,
        *,
        timeout: float | None = 60.0,
        on_note: NotificationCallback | None = None,
    ) -> DaemonReply:
        """Send one request and return its answer.

        Raises DaemonError, TimedOut after `timeout` seconds, or DaemonUnreachable. The details of the last
        two contain `may_have_run` if the method is one of `CHANGES`. Ctrl-C cancels the request before
        KeyboardInterrupt propagates.
        """
        outcome = self.call_all([(method, params)], timeout=timeout, on_note=on_note)[0]
        if isinstance(outcome, CtlError):
            raise outcome
        return outcome

    def call_all(
        self,
        requests: Sequence[tuple[str, Json | None]],
        *,
        timeout: float | None = 60.0,
        on_note: NotificationCallback | None = None,
        on_reply: ReplyCallback | None = None,
    ) -> list[DaemonReply | DaemonError]:
        """Send several requests concurrently. Returns answers and errors in the order of the requests."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ids = range(self._last_id + 1, self._last_id + 1 + len(requests))
        answers: dict[object, DaemonReply | DaemonError] = {}
        try:
            for method, params in requests:
                self._send(method, params, deadline)
            while len(answers) < len(ids):
                message, result = self._read_message(deadline, requests[0][0])
                answered = message.get("id")
                if "method" in message:
                    if on_note is not None:
                        on_note(str(message["method"]), mapping(message.get("params")))
                elif answered in ids:
                    assert isinstance(answered, int)
                    answers[answered] = outcome = _to_reply(message, result)
                    if on_reply is not None:
                        on_reply(answered - ids[0], outcome)
                elif answered is None and "error" in message:
                    raise DaemonError(mapping(message["error"]))
        except (KeyboardInterrupt, TimedOut):
            for request in range(ids[0], self._last_id + 1):
                if request not in answers:
                    self.cancel(request)
            raise
        return [answers[request] for request in ids]

    @property
    def stream(self) -> Stream:
        """`notifications`, with the types known from the method's name."""
        return self.notifications

    def notifications(
        self,
        method: str,
        params: Json | None = None,
        *,
        tick: float | None = None,
        until: float | None = None,
    ) -> Iterator[DaemonReply | None]:
        """Yield the request's own answer, if there is one, and then the params of every notification.

        With `tick`, yields None whenever nothing came for that many seconds. Ends by raising: DaemonError,
        TimedOut at `until` (`time.monotonic()`), or DaemonUnreachable when the daemon closes the connection.
        """
        request = self._send(method, params, until)
        while True:
            pause = None if tick is None else time.monotonic() + tick
            deadline = min((t for t in (pause, until) if t is not None), default=None)
            try:
                message, text = self._read_message(deadline, method)
            except TimedOut:
                if until is not None and time.monotonic() >= until:
                    raise
                yield None
                continue
            if "method" in message:
                yield DaemonReply(mapping(message.get("params")), text)
            elif message.get("id") == request:
                outcome = _to_reply(message, text)
                if isinstance(outcome, DaemonError):
                    raise outcome
                yield outcome

    def subscribe(self, servers: Sequence[str]) -> None:
        """Ask for the events of servers; they reach the `on_note` of later requests on this connection."""
        self._send("mcpd/events", {"servers": list(servers)}, time.monotonic() + CONNECT_TIMEOUT)

    def cancel(self, request: int) -> None:
        """Send `notifications/cancelled` for `request`. Never raises."""
        try:
            self.connection.settimeout(1.0)
            self.connection.sendall(
                _encode_line({"method": "notifications/cancelled", "params": {"requestId": request}})
            )
        except OSError:
            return  # closing the connection, which comes next, cancels as well

    def _send(self, method: str, params: Json | None, deadline: float | None) -> int:
        self._last_id += 1
        params = params or {}
        if method == "mcpd/call":
            params = {**params, "_meta": {**mapping(params.get("_meta")), "progressToken": self._last_id}}
        try:
            self.connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            self.connection.sendall(_encode_line({"id": self._last_id, "method": method, "params": params}))
        except TimeoutError:
            self.close()  # part of the line was sent: nothing can follow it
            error = TimedOut(f"the daemon did not accept {method} in time", hint="mcpctl daemon logs")
            raise with_effect(error, method, sent=False) from None
        except OSError as failure:
            raise self._closed(failure, method, sent=False) from None
        return self._last_id

    def _read_message(self, deadline: float | None, method: str) -> tuple[Json, str]:
        """Return the next message and the text of its `result` or `params`. `method` is for errors only."""
        line = self._read_line(deadline, method)
        try:
            return split_message(line)
        except RecursionError:
            raise CtlError(f"the answer to {method} is nested too deeply") from None
        except ValueError:
            raise DaemonUnreachable(
                f"the program listening at {self.path} is not mcpd (invalid response)",
                hint="choose another socket with --socket or MCPD_SOCKET",
            ) from None

    def _read_line(self, deadline: float | None, method: str) -> str:
        start = 0
        while (end := self._received.find(b"\n", start)) < 0:
            start = len(self._received)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                error = TimedOut(f"the daemon did not answer {method} in time", hint="mcpctl daemon logs")
                raise with_effect(error, method, sent=True)
            try:
                self.connection.settimeout(left)
                chunk = self.connection.recv(262144)
            except TimeoutError:
                continue
            except OSError as failure:
                raise self._closed(failure, method, sent=True) from None
            if not chunk:
                raise self._closed(None, method, sent=True)
            self._received += chunk
            if len(self._received) > self._longest:
                raise DaemonUnreachable(
                    f"a line of more than {self._longest:.0f} bytes came instead of {method}"
                )
        line = self._received[:end].decode("utf-8", "surrogateescape")
        del self._received[: end + 1]
        return line

    def _closed(self, error: OSError | None, method: str, *, sent: bool) -> CtlError:
        """Return the error for a connection that ended. `sent` as in `with_effect`."""
        reason = f": {error.strerror}" if error is not None else ""
        hint = "mcpctl daemon status, or mcpctl daemon logs"
        return with_effect(
            DaemonGone(f"the daemon closed the connection{reason}", hint=hint), method, sent=sent
        )


def with_effect(error: CtlError, method: str, *, sent: bool) -> CtlError:
    """Add to an error whether a request may have run, if that makes a difference, and return the error.

    `sent`: it was sent completely. The daemon ignores a part of a line.
    """
    if method in CHANGES:
        error.details["may_have_run"] = sent
    return error


def _encode_line(message: Json) -> bytes:
    if not message.get("params"):  # `json` takes as long as the rest of `mcpctl status`
        head = f'{{"jsonrpc":"2.0","id":{message["id"]},"method":"{message["method"]}"'
        return f'{head},"params":{{}}}}\n'.encode()
    import json

    from mcpd.model.message_limit import MAX_MESSAGE, describe_excess

    line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()
    if len(line) > MAX_MESSAGE:
        raise UsageError(describe_excess(len(line)), may_have_run=False)
    return line + b"\n"


def _to_reply(message: Json, text: str) -> DaemonReply | DaemonError:
    if "error" in message:
        return DaemonError(mapping(message["error"]))
    return DaemonReply(mapping(message.get("result")), text)


def _connect_error(path: str, error: OSError) -> tuple[str, str]:
    """Return message and hint."""
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        from mcpd.process.instance_lock import find_lock_holder

        if pid := find_lock_holder(path):
            message = f"mcpd is running (pid {pid}), but not listening at {path}"
            return message, "mcpctl daemon restart"
        return f"mcpd is not running at {path}", "start it with: mcpctl daemon start"
    if isinstance(error, PermissionError):
        return f"permission denied: {path}", "each user runs a separate daemon; check MCPD_SOCKET"
    if isinstance(error, TimeoutError):
        return f"mcpd at {path} does not accept connections", "mcpctl daemon restart"
    return f"cannot connect to {path}: {error.strerror}", "check --socket and MCPD_SOCKET"
