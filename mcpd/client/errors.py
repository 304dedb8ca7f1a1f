"""What a program that uses mcpd can meet.

ClientError
 ├─ NotRunning          no daemon answers at the socket
 ├─ ConnectionClosed    the daemon went away; a call under way may or may not have run
 ├─ Unknown             no such server, tool, prompt or resource
 ├─ InvalidCall         arguments that the tool's schema refuses; nothing was sent
 ├─ NotReady            the server is not connected, or too busy; nothing was sent
 ├─ CallTimedOut        no answer in time; the server was told to cancel
 ├─ ServerRefused       the server answered with an error, or its connection was lost
 └─ ToolFailed          the tool ran, and says that it failed; `result` has what it said
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcpd.model.tool_result import ToolResult


class ClientError(Exception):
    """Base class. `code` and `data` are the daemon's (docs/reference/control-api.md), or empty."""

    def __init__(self, message: str, code: str = "", data: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data: Mapping[str, object] = data or {}

    @property
    def may_have_run(self) -> bool:
        """Whether the call may have done its work all the same: then think before calling again."""
        return self.data.get("may_have_run") is True


class NotRunning(ClientError): ...


class ConnectionClosed(ClientError):
    @property
    def may_have_run(self) -> bool:
        return True


class Unknown(ClientError): ...


class InvalidCall(ClientError): ...


class NotReady(ClientError): ...


class CallTimedOut(ClientError): ...


class ServerRefused(ClientError):
    @property
    def may_have_run(self) -> bool:
        known = self.data.get("may_have_run")
        return known is True if known is not None else self.code in _CODES_AFTER_SEND


class ToolFailed(ClientError):
    """Its `code` is `tool_error`."""

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message, "tool_error")
        self.result = result

    @property
    def may_have_run(self) -> bool:
        return True  # it has


_CODES_AFTER_SEND = ("upstream_error", "protocol")
"""The server had the call, and answered; what it had done by then, nobody knows."""


_KINDS: Mapping[str, type[ClientError]] = {
    "unknown_server": Unknown,
    "unknown_tool": Unknown,
    "unknown_prompt": Unknown,
    "unknown_resource": Unknown,
    "unknown_profile": Unknown,
    "invalid_arguments": InvalidCall,
    "not_ready": NotReady,
    "overloaded": NotReady,
    "auth_required": NotReady,
    "timeout": CallTimedOut,
}


def error_from_response(error: Mapping[str, object]) -> ClientError:
    """The daemon's error object as an exception."""
    data = error.get("data")
    facts = data if isinstance(data, Mapping) else {}
    code = str(facts.get("code", ""))
    return _KINDS.get(code, ServerRefused)(str(error.get("message", "refused")), code, facts)
