"""LocalClient: one connection to the daemon's Unix socket, synchronous, standard library only.

A request is one line, its answer is one line, and notifications may come in between. Nothing here
needs more than `json` and `socket`, because `mcpctl status` pays for every import on each run.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

from ctl.errors import CtlError, DaemonError, DaemonUnreachable, TimedOut
from ctl.json_text import split_message

Json = Mapping[str, object]
NotificationCallback = Callable[[str, Json], None]
"""Told of each notification, with its method and params, while a request waits."""

__all__ = ["DaemonClient", "DaemonReply", "DaemonUnreachable", "socket_path"]

MAX_SOCKET_PATH = 107
"""Bytes that fit into `sockaddr_un.sun_path` on Linux, without the closing NUL."""

CONNECT_TIMEOUT = 5.0
"""A daemon that accepts nobody for so long is not going to."""


def socket_path(environ: Mapping[str, str]) -> str:
    """Where the daemon listens, for whoever has not said `--socket`. Raises DaemonUnreachable."""
    from mcpd.support.paths import UnusablePath
    from mcpd.support.paths import socket_path as find

    try:
        return find(environ)
    except UnusablePath as error:
        raise DaemonUnreachable(str(error)) from None


class DaemonReply:
    """A result, parsed (`value`) and as the exact text that came over the wire (`text`)."""

    __slots__ = ("text", "value")

    def __init__(self, value: Json, text: str) -> None:
        self.value = value
        self.text = text


class DaemonClient:
    """Opens on construction, or raises DaemonUnreachable. Close it, or use it in a `with`.

    Closing cancels upstream whatever was still being waited for.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._received = bytearray()
        self._last_id = 0
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise DaemonUnreachable(
                f"the socket path {path} is longer than {MAX_SOCKET_PATH} bytes",
                hint="choose a shorter one with --socket or MCPD_SOCKET",
            )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(CONNECT_TIMEOUT)
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            message, hint = _connect_error(path, error)
            raise DaemonUnreachable(message, hint=hint) from None

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # ---- requests ----------------------------------------------------------------------------

    def call(
        self,
        method: str,
        params: Json | None = None,
        *,
        timeout: float | None = 60.0,
        on_note: NotificationCallback | None = None,
    ) -> DaemonReply:
        """One request and its answer. Raises Refused, TimedOut after `timeout` seconds, DaemonUnreachable.

        Ctrl-C while waiting cancels the request before KeyboardInterrupt goes on its way.
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
    ) -> list[DaemonReply | DaemonError]:
        """Several requests under way together; their answers in the order of the requests."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ids = range(self._last_id + 1, self._last_id + 1 + len(requests))
        answers: dict[object, DaemonReply | DaemonError] = {}
        try:
            for method, params in requests:
                self._send(method, params, deadline)
            while len(answers) < len(ids):
                message, result = self._read_message(deadline, requests[0][0])
                if "method" in message:
                    if on_note is not None:
                        on_note(str(message["method"]), _object(message.get("params")))
                elif message.get("id") in ids:
                    answers[message["id"]] = _to_reply(message, result)
                elif "error" in message and message.get("id") is None:
                    raise DaemonError(_object(message["error"]))
        except (KeyboardInterrupt, TimedOut):
            for request in ids:
                if request <= self._last_id and request not in answers:
                    self.cancel(request)
            raise
        return [answers[request] for request in ids]

    def stream(
        self,
        method: str,
        params: Json | None = None,
        *,
        tick: float | None = None,
        until: float | None = None,
    ) -> Iterator[DaemonReply | None]:
        """The request's own answer, if there is one, and then every notification's params, as they come.

        With `tick`, None comes whenever nothing else did for that many seconds. Ends by raising: Refused,
        TimedOut at the moment `until` (`time.monotonic()`), DaemonUnreachable when the daemon closes.
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
                yield DaemonReply(_object(message.get("params")), text)
            elif message.get("id") == request:
                outcome = _to_reply(message, text)
                if isinstance(outcome, DaemonError):
                    raise outcome
                yield outcome

    def cancel(self, request: int) -> None:
        """Tell the daemon that nobody waits for `request` any more. Never raises: it is a courtesy."""
        try:
            self._socket.settimeout(1.0)
            self._socket.sendall(
                _encode_line({"method": "notifications/cancelled", "params": {"requestId": request}})
            )
        except OSError:
            return  # closing the connection, which comes next, cancels as well

    # ---- lines -------------------------------------------------------------------------------

    def _send(self, method: str, params: Json | None, deadline: float | None) -> int:
        self._last_id += 1
        message: dict[str, object] = {"id": self._last_id, "method": method, "params": params or {}}
        if method == "mcpd/call":
            given = params or {}
            told = {**_object(given.get("_meta")), "progressToken": self._last_id}
            message["params"] = {**given, "_meta": told}
        try:
            self._socket.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            self._socket.sendall(_encode_line(message))
        except TimeoutError:
            self.close()  # half a line has left: nothing can follow it
            raise TimedOut(f"the daemon did not take {method} in time", hint="mcpctl daemon logs") from None
        except OSError as error:
            raise self._connection_closed(error) from None
        return self._last_id

    def _read_message(self, deadline: float | None, what: str) -> tuple[Json, str]:
        """The next message, and the text of its `result` or `params`. `what` is for the error only."""
        start = 0
        while (end := self._received.find(b"\n", start)) < 0:
            start = len(self._received)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"the daemon did not answer {what} in time", hint="mcpctl daemon logs")
            try:
                self._socket.settimeout(left)
                chunk = self._socket.recv(262144)
            except TimeoutError:
                continue
            except OSError as error:
                raise self._connection_closed(error) from None
            if not chunk:
                raise self._connection_closed(None)
            self._received += chunk
        line = self._received[:end].decode("utf-8", "surrogateescape")
        del self._received[: end + 1]
        try:
            return split_message(line)
        except RecursionError:
            raise CtlError(f"the answer to {what} is nested too deeply to be read") from None
        except ValueError:
            raise DaemonUnreachable(
                f"what answers at {self.path} does not speak mcpd's language",
                hint="is another program listening there? choose the socket with --socket",
            ) from None

    def _connection_closed(self, error: OSError | None) -> DaemonUnreachable:
        reason = f": {error.strerror}" if error is not None else ""
        return DaemonUnreachable(
            f"the daemon closed the connection{reason}", hint="mcpctl daemon status, or mcpctl daemon logs"
        )


def _encode_line(message: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _to_reply(message: Json, text: str) -> DaemonReply | DaemonError:
    if "error" in message:
        return DaemonError(_object(message["error"]))
    return DaemonReply(_object(message.get("result")), text)


def _connect_error(path: str, error: OSError) -> tuple[str, str]:
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return f"no mcpd is running at {path}", "start it with: mcpctl daemon start"
    if isinstance(error, PermissionError):
        return f"this user may not open {path}", "each user has a daemon of their own; check MCPD_SOCKET"
    if isinstance(error, TimeoutError):
        return f"mcpd at {path} does not accept connections", "mcpctl daemon restart"
    return f"cannot connect to {path}: {error.strerror}", "check --socket and MCPD_SOCKET"
