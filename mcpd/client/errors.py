"""What calls return and raise.

ClientError
 ├─ NotRunning          the daemon is not running
 ├─ ConnectionClosed    the connection to the daemon was lost; see `may_have_run`
 ├─ Unknown             no such server, tool, prompt or resource
 ├─ InvalidCall         the arguments do not match the tool's schema, or are too large; nothing was sent
 ├─ NotReady            the server is not connected or overloaded; nothing was sent
 │   └─ LoginRequired   the server requires a login first
 ├─ CallTimedOut        no response in time; the call was cancelled, or not even sent
 ├─ ServerRefused       the server returned an error, or its connection was lost
 │   └─ Denied          a policy forbids the call, or nobody has approved it; nothing was sent
 │       └─ LimitReached   a policy limits how often the client may make the call
 └─ ToolFailed          the tool ran and reported an error; see `result`
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import attrs
import msgspec

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class ToolResult:
    """The result of a tool call. `output` contains all text, separated by newlines, and placeholders for
    other content."""

    success: bool
    output: str = ""
    data: Any = None
    """The `structuredContent` from the server."""
    error: str | None = None
    """The error text if the tool reported an error (`isError`)."""
    content: tuple[dict[str, Any], ...] = ()
    """The MCP content blocks that are not text, such as images, whose `data` is encoded in base64."""
    warnings: tuple[str, ...] = ()

    def as_(self, kind: type[T]) -> T:
        """Return the structured content, or else the text as JSON, as a value of this type: a dataclass, an
        attrs class, a TypedDict, a pydantic model, or a combination such as `list[Issue]`.

        Servers put a result that is no object into an object with the member `result`, which is looked into
        if only that fits. Raises ValueError if the content does not fit.
        """
        content = self.output if self.data is None else self.data
        if self.data is None and kind is not str:
            with suppress(msgspec.DecodeError):
                content = msgspec.json.decode(self.output)
        convert = getattr(kind, "model_validate", None) or partial(msgspec.convert, type=kind)
        try:
            return cast("T", convert(content))
        except (msgspec.ValidationError, ValueError) as error:
            if isinstance(content, dict) and content.keys() == {"result"}:
                return attrs.evolve(self, data=content["result"]).as_(kind)
            raise ValueError(f"the result is no {getattr(kind, '__name__', kind)}: {error}") from error

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> ToolResult:
        """Create it from the result of `mcpd/call`."""
        content, warnings = answer.get("content") or (), answer.get("warnings") or ()
        return cls(**{**answer, "content": tuple(content), "warnings": tuple(warnings)})


class ClientError(Exception):
    """Base class. `code` and `data` are the daemon's (docs/reference/control-api.md), or empty.

    The code is `daemon_unreachable`, as in mcpctl, if there is no connection to the daemon.
    """

    _code_without_daemon = ""

    def __init__(self, message: str, code: str = "", data: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code or self._code_without_daemon
        self.data: Mapping[str, object] = data or {}

    @property
    def may_have_run(self) -> bool:
        """Whether the call may have run despite the error, so that repeating it may not be safe."""
        return self.data.get("may_have_run") is True


class NotRunning(ClientError):
    _code_without_daemon = "daemon_unreachable"


class ConnectionClosed(ClientError):
    _code_without_daemon = "daemon_unreachable"

    @property
    def may_have_run(self) -> bool:
        return self.data.get("may_have_run") is not False


class Unknown(ClientError): ...


class InvalidCall(ClientError): ...


class NotReady(ClientError): ...


class LoginRequired(NotReady): ...


class CallTimedOut(ClientError): ...


class ServerRefused(ClientError):
    @property
    def may_have_run(self) -> bool:
        known = self.data.get("may_have_run")
        return known is True if known is not None else self.code in _CODES_AFTER_SEND


class Denied(ServerRefused):
    @property
    def rule(self) -> str:
        """The place of the rule that denies the call, such as `$.settings.policies[0]`."""
        return str(self.data.get("rule", ""))


class LimitReached(Denied):
    @property
    def retry_after(self) -> float | None:
        """The seconds until the limit allows the next call; None if that is not known."""
        seconds = self.data.get("retry_after")
        return float(seconds) if isinstance(seconds, int | float) else None


class ToolFailed(ClientError):
    """The tool reported an error. `code` is `tool_error`."""

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message, "tool_error")
        self.result = result

    @property
    def may_have_run(self) -> bool:
        return True


NOT_SENT: Mapping[str, object] = {"may_have_run": False}
"""The `data` of an error because of which nothing was sent."""
_CODES_AFTER_SEND = ("upstream_error", "protocol")
"""Codes of responses that a server sent after it had received the call."""


_INVALID_REQUEST = -32600
_KINDS: Mapping[str, type[ClientError]] = {
    "unknown_server": Unknown,
    "unknown_tool": Unknown,
    "unknown_prompt": Unknown,
    "unknown_resource": Unknown,
    "unknown_profile": Unknown,
    "invalid_arguments": InvalidCall,
    "not_ready": NotReady,
    "overloaded": NotReady,
    "auth_required": LoginRequired,
    "timeout": CallTimedOut,
    "denied": Denied,
    "limit_reached": LimitReached,
}


def error_from_response(error: Mapping[str, object]) -> ClientError:
    """Return the exception for an error object of the daemon."""
    data = error.get("data")
    facts = data if isinstance(data, Mapping) else {}
    code = str(facts.get("code", ""))
    kind = _KINDS.get(code, ServerRefused)
    if error.get("code") == _INVALID_REQUEST and not code:  # too large: the daemon has not read it
        kind, facts = InvalidCall, {**facts, "may_have_run": False}
    if facts.get("daemon_stopped") is True:  # an orderly stop is no different from a daemon that was killed
        kind = ConnectionClosed
    if kind is NotReady and facts.get("state") == "needs-auth":
        kind = LoginRequired
    return kind(str(error.get("message", "refused")), code, facts)
