"""A request to the test server: its parameters, progress, logs, errors and cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

Json = dict[str, object]
Send = Callable[[object], None]

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN = ("2026-07-28",)
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
LEGACY_NO_RESOURCE, HEADER_MISMATCH, UNSUPPORTED_VERSION = -32002, -32020, -32022


class RequestError(Exception):
    """Ends a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})


class RequestCancelled(Exception):
    """Ends a request without a response because it was cancelled."""


class TestServerRequest:
    """A request that is being executed, with the means to send notifications to its client."""

    def __init__(self, message: Json, version: str, log_level: str | None, send: Send) -> None:
        self.id = message["id"]
        self.method = cast("str", message["method"])
        self.params = mapping(message.get("params", {}), "params")
        self.meta = mapping(self.params.get("_meta", {}), "params._meta")
        self.version = version
        self.modern = version in MODERN
        self.log_level = log_level
        self._send = send
        self.cancelled = threading.Event()
        self.hung_up: Callable[[], bool] | None = None
        """Returns whether the client has disconnected; None if only a notification cancels."""

    def progress(self, done: int, total: int) -> None:
        if (token := self.meta.get("progressToken")) is not None:
            params: Json = {"progressToken": token, "progress": done, "total": total}
            if self.version != "2024-11-05":
                params["message"] = f"step {done} of {total}"
            self._notify("notifications/progress", params)

    def log(self, level: str, text: str) -> None:
        """Send a log message if the client asked for logs of this level."""
        if self.log_level is not None and LEVELS.index(level) >= LEVELS.index(self.log_level):
            params: Json = {"level": level, "logger": "testserver", "data": text}
            self._notify("notifications/message", params)

    def sleep(self, until: float) -> None:
        """Sleep until a monotonic time. Raises RequestCancelled as soon as the request is cancelled."""
        while (left := until - time.monotonic()) > 0:
            if self.cancelled.wait(left if self.hung_up is None else min(left, 0.1)):
                raise RequestCancelled
            if self.hung_up is not None and self.hung_up():
                raise RequestCancelled

    def _notify(self, method: str, params: Json) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})


def mapping(value: object, what: str) -> Json:
    """Return `value` if it is an object. Raises RequestError otherwise."""
    if not isinstance(value, dict):
        raise RequestError(INVALID_PARAMS, f"{what} must be an object")
    return value
