"""Every error that users can meet, with its code, HTTP status, JSON-RPC code and exit code.

A message tells the user what failed, on which server, and what to do. This list does not include errors that
a *server* returns to a client's request. mcpd forwards them unchanged wherever the interface allows it.
"""

from __future__ import annotations

from typing import ClassVar, final

import attrs

from mcpd.model.text import shorten


@attrs.frozen
class Problem:
    """An error in a document. It states where the error is, what is wrong, and how to fix it."""

    path: str
    """The position of the error as a JSON path, such as `$.mcpServers.git.command`."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.message} @ {self.path}"
        return f"{text} ({self.fix})" if self.fix else text


class McpdError(Exception):
    """The base of all deliberate errors. `server` is the name of the server concerned, if any."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500
    rpc: ClassVar[int] = -32603
    exit: ClassVar[int] = 1
    may_have_run: bool | None = None
    """Whether the server may have executed the request. This is None if it is unknown or does not apply. For
    a call, see the function `may_have_run`."""
    facts: ClassVar[tuple[str, ...]] = ()
    """The attributes that are members of `data`, except those that are None."""

    def __init__(self, message: str, *, server: str | None = None) -> None:
        super().__init__(message)
        self.server = server

    @property
    def message(self) -> str:
        return str(self.args[0])

    def data(self) -> dict[str, object]:
        """Return the machine-readable part, for `error.data` in JSON-RPC."""
        facts: dict[str, object] = {"code": self.code, "exit": self.exit}
        if self.server is not None:
            facts["server"] = self.server
        if self.may_have_run is not None:
            facts["may_have_run"] = self.may_have_run
        values = {name: getattr(self, name) for name in self.facts}
        return facts | {name: value for name, value in values.items() if value is not None}


@final
class UnknownServer(McpdError):
    code, http, rpc, exit = "unknown_server", 404, -32602, 5


@final
class UnknownProfile(McpdError):
    code, http, rpc, exit = "unknown_profile", 404, -32602, 5


@final
class UnknownTool(McpdError):
    code, http, rpc, exit = "unknown_tool", 404, -32602, 5


@final
class UnknownPrompt(McpdError):
    code, http, rpc, exit = "unknown_prompt", 404, -32602, 5


@final
class UnknownResource(McpdError):
    """`data.uri` is required by the MCP specification (server/resources, error handling)."""

    code, http, rpc, exit = "unknown_resource", 404, -32602, 5
    facts = ("uri",)

    def __init__(self, message: str, uri: str, *, server: str | None = None) -> None:
        super().__init__(message, server=server)
        self.uri = uri


class InvalidArguments(McpdError):
    """The arguments do not match the tool's schema, or the method's parameter types. Nothing was sent."""

    code, http, rpc, exit = "invalid_arguments", 400, -32602, 2

    def __init__(self, message: str, problems: list[Problem], *, server: str | None = None) -> None:
        super().__init__(message, server=server)
        self.problems = problems

    def data(self) -> dict[str, object]:
        return {**super().data(), "problems": [attrs.asdict(problem) for problem in self.problems]}


@final
class SchemaViolation(InvalidArguments):
    """The arguments violate the tool's input schema. The server has not seen the call."""


@final
class BadSpec(McpdError):
    """A configuration or a set of servers has errors. mcpd did not apply any part of it."""

    code, http, rpc, exit = "bad_spec", 400, -32602, 2

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        where = f"{source}: " if source else ""
        super().__init__(where + "; ".join(map(str, problems)))
        self.problems = problems
        self.source = source

    def data(self) -> dict[str, object]:
        return {**super().data(), "problems": [attrs.asdict(problem) for problem in self.problems]}

    @classmethod
    def single(cls, message: str, fix: str, source: object, path: str = "$") -> BadSpec:
        return cls([Problem(path, message, fix)], str(source))


@final
class CannotWrite(McpdError):
    """A file cannot be written, for example because the disk is full. The file and what it configures are
    unchanged. `reason` says what failed, `fix` what to do, and the message contains both."""

    code, exit = "cannot_write", 1
    facts = ("fix",)

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason} ({fix})")
        self.reason = reason
        self.fix = fix


@final
class Conflict(McpdError):
    """`if_generation` did not match: another client has changed the set of servers."""

    code, http, rpc, exit = "conflict", 412, -32000, 9
    facts = ("generation",)

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"the set of servers has changed: it is at generation {actual}, not {expected}; "
            "read it again and repeat the change"
        )
        self.generation = actual


@final
class NotReady(McpdError):
    """The server is not connected, so nothing was sent. `data.exit` is 4 if the user must log in."""

    code, http, rpc, exit = "not_ready", 503, -32000, 6
    facts = ("state", "retry_at")
    may_have_run = False

    def __init__(self, message: str, *, server: str, state: str, retry_at: str | None = None) -> None:
        super().__init__(message, server=server)
        self.state = state
        self.retry_at = retry_at

    def data(self) -> dict[str, object]:
        facts = super().data()
        return {**facts, "exit": NeedsAuth.exit} if self.state == "needs-auth" else facts


@final
class Overloaded(McpdError):
    code, http, rpc, exit = "overloaded", 503, -32000, 6
    may_have_run = False


@final
class LimitReached(McpdError):
    """A rule of `settings.policies` limits how often the client may do this. `rule` is its place, and
    `retry_after` the seconds until it may, if that is known."""

    code, http, rpc, exit = "limit_reached", 429, -32000, 6
    facts = ("rule", "retry_after")
    may_have_run = False

    def __init__(self, message: str, *, server: str, rule: str, retry_after: int | None = None) -> None:
        super().__init__(message, server=server)
        self.rule = rule
        self.retry_after = retry_after


@final
class LinkLost(McpdError):
    """The connection ended before the response. `may_have_run` is true if bytes of the request were sent."""

    code, http, rpc, exit = "link_lost", 502, -32000, 6
    is_session_refused = False
    """Whether the server refused the session of the request: the request may be sent again in a new one."""

    def __init__(self, reason: str, *, server: str | None = None, may_have_run: bool = True) -> None:
        super().__init__(reason, server=server)
        self.may_have_run: bool = may_have_run


@final
class NeedsAuth(McpdError):
    """The server refused access (HTTP 401 or 403). Retrying does not help, but logging in may."""

    code, http, rpc, exit = "auth_required", 401, -32000, 4
    facts = ("status",)
    may_have_run = False

    def __init__(self, message: str, *, server: str, status: int, challenge: tuple[str, ...] = ()) -> None:
        super().__init__(message, server=server)
        self.status = status
        self.challenge = challenge
        """The fields `WWW-Authenticate` of the response; untrusted."""


@final
class LoginLinkOpen(McpdError):
    """The client was shown a link, and nobody has finished the login yet. The call was not executed.

    `data.elicitations` is that of `URLElicitationRequiredError` (MCP 2025-11-25).
    """

    code, http, rpc, exit = "login_link_open", 401, -32042, 4
    facts = ("elicitations",)
    may_have_run = False

    def __init__(self, message: str, *, server: str, elicitation: dict[str, object]) -> None:
        super().__init__(message, server=server)
        self.elicitations = [elicitation]


@final
class LoginFailed(McpdError):
    """A login did not succeed. `step` is the step that failed."""

    code, http, rpc, exit = "login_failed", 502, -32000, 4
    facts = ("step",)

    def __init__(self, message: str, *, server: str | None, step: str) -> None:
        super().__init__(message, server=server)
        self.step = step


@final
class HttpRefused(McpdError):
    """The server returned an HTTP status without an MCP response. `retry_after`: its header, in seconds."""

    code, http, rpc, exit = "http_status", 502, -32000, 6
    facts = ("status", "retry_after")

    def __init__(self, message: str, *, server: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message, server=server)
        self.status = status
        self.retry_after = retry_after
        self.may_have_run = status >= 500


@final
class CallTimeout(McpdError):
    """The server did not respond or report progress for `after` seconds. mcpd sent a cancellation to the
    server."""

    code, http, rpc, exit = "timeout", 504, -32000, 7
    facts = ("after",)

    def __init__(self, message: str, *, server: str, after: float, may_have_run: bool = True) -> None:
        super().__init__(message, server=server)
        self.after = after
        self.may_have_run: bool = may_have_run

    def with_cause(self, cause: str) -> CallTimeout:
        """Return the same error with a message that also says why."""
        message = f"{self.message}: {cause}"
        return CallTimeout(message, server=str(self.server), after=self.after, may_have_run=self.may_have_run)


@final
class Denied(McpdError):
    """A rule of `settings.policies`, or `readOnly`, forbids the call to this client. `rule` is its place."""

    code, http, rpc, exit = "denied", 403, -32000, 1
    facts = ("rule",)
    may_have_run = False

    def __init__(self, message: str, *, server: str, rule: str) -> None:
        super().__init__(message, server=server)
        self.rule = rule


@final
class Unsupported(McpdError):
    code, http, rpc, exit = "unsupported", 501, -32601, 1


@final
class NotUpgraded(McpdError):
    """The installed version cannot replace the running daemon, which goes on."""

    code, http, rpc, exit = "not_upgraded", 409, -32000, 1


@final
class InputNeeded(McpdError):
    """The server needs input from a person or a model to continue, and the client cannot provide it.

    mcpd does not undo anything that the server did before it asked.
    """

    code, http, rpc, exit = "input_required", 502, -32000, 1
    facts = ("asked",)
    may_have_run = True

    def __init__(self, message: str, *, server: str, asked: str) -> None:
        super().__init__(message, server=server)
        self.asked = asked


@final
class UpstreamRefused(McpdError):
    """The server returned a JSON-RPC error to a request of mcpd. Its code and message are kept."""

    code, http, exit = "upstream_error", 502, 1
    facts = ("upstream_code", "upstream_data")

    def __init__(
        self, message: str, *, server: str, upstream_code: int, upstream_data: object = None
    ) -> None:
        super().__init__(message, server=server)
        self.upstream_code = upstream_code
        self.upstream_data = upstream_data


@final
class SlowConsumer(McpdError):
    """A subscriber did not read fast enough and lost messages."""

    code, http, rpc, exit = "fell_behind", 503, -32000, 1


@final
class ProtocolViolation(McpdError):
    """The peer violated the protocol. Quote its bytes with `shorten`, never in full."""

    code, http, rpc, exit = "protocol", 502, -32603, 1


@final
class NoCommonVersion(McpdError):
    """The server supports none of mcpd's protocol revisions. Retrying does not help."""

    code, http, rpc, exit = "version", 502, -32603, 1


@final
class UnsupportedRevision(McpdError):
    """A client requested an unsupported protocol revision (MCP 2026-07-28, basic/versioning)."""

    code, http, rpc, exit = "revision", 400, -32022, 1
    facts = ("requested", "supported")

    def __init__(self, requested: str, supported: tuple[str, ...]) -> None:
        super().__init__(
            f"protocol revision {shorten(requested, 40)!r} is not supported; "
            f"use one of {', '.join(supported)}"
        )
        self.requested = requested
        self.supported = supported


_BEFORE_SENDING = (
    UnknownServer,
    UnknownProfile,
    UnknownTool,
    InvalidArguments,
    BadSpec,
    CannotWrite,
    LoginFailed,
    Unsupported,
    NoCommonVersion,
)


def may_have_run(error: McpdError) -> bool:
    """Return whether a call that failed with `error` may have run.

    It may have unless the error proves that nothing was sent: a server can act and then return an error.
    """
    return not isinstance(error, _BEFORE_SENDING) if error.may_have_run is None else error.may_have_run
