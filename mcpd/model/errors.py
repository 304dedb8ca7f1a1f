"""Every error a person can meet, with the four facts each door needs to show it.

    McpdError                code               http  rpc      exit
     ├─ UnknownServer        unknown_server     404   -32602   5
     ├─ UnknownProfile       unknown_profile    404   -32602   5
     ├─ UnknownTool          unknown_tool       404   -32602   5
     ├─ UnknownPrompt        unknown_prompt     404   -32602   5
     ├─ UnknownResource      unknown_resource   404   -32602   5    the URI is in its data
     ├─ InvalidArguments     invalid_arguments  400   -32602   2
     ├─ BadSpec              bad_spec           400   -32602   2    a list of Problem
     ├─ Conflict             conflict           412   -32000   9    the generation moved on
     ├─ NotReady             not_ready          503   -32000   6    what it waits for, until when
     ├─ Overloaded           overloaded         503   -32000   6    a bounded queue is full
     ├─ LinkLost             link_lost          502   -32000   6    says whether the call may have run
     ├─ NeedsAuth            auth_required      401   -32000   4    a person must log in; nothing was done
     ├─ HttpRefused          http_status        502   -32000   6    an HTTP status that is no answer
     ├─ CallTimeout          timeout            504   -32000   7
     ├─ Unsupported          unsupported        501   -32601   1    the server has no such capability
     ├─ InputNeeded          input_required     502   -32000   1    the server asks, and nobody can answer
     ├─ UpstreamRefused      upstream_error     502   (its own) 1   the server answered with an error
     ├─ SlowConsumer         fell_behind        503   -32000   1    a subscriber read too slowly
     ├─ ProtocolViolation    protocol           502   -32603   1    quoted bytes, shortened
     ├─ NoCommonVersion      version            502   -32603   1    no protocol revision in common
     └─ UnsupportedRevision  revision           400   -32022   1    a client's, that we do not speak

Messages are for a person: what failed, on which server, what to do next. Errors that a *server* sent
in answer to a request are not ours: they pass through as bytes wherever the door allows it.
"""

from __future__ import annotations

from typing import ClassVar, final

import attrs

from mcpd.model.text import shorten


@attrs.frozen
class Problem:
    """One complaint about a document: what is wrong, where, and how to mend it."""

    path: str
    """Where, as a JSON path: `$.mcpServers.git.command`."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.message} @ {self.path}"
        return f"{text} ({self.fix})" if self.fix else text


class McpdError(Exception):
    """Base of everything we raise on purpose. `server` names the server concerned, when there is one."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500
    rpc: ClassVar[int] = -32603
    exit: ClassVar[int] = 1

    def __init__(self, message: str, *, server: str | None = None) -> None:
        super().__init__(message)
        self.server = server

    @property
    def message(self) -> str:
        return str(self.args[0])

    def data(self) -> dict[str, object]:
        """The structured half of the error: goes into JSON-RPC `error.data`."""
        facts: dict[str, object] = {"code": self.code, "exit": self.exit}
        if self.server is not None:
            facts["server"] = self.server
        return facts


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
    """`data.uri` names it, as the specification wants (resources, error handling)."""

    code, http, rpc, exit = "unknown_resource", 404, -32602, 5

    def __init__(self, message: str, uri: str, *, server: str | None = None) -> None:
        super().__init__(message, server=server)
        self.uri = uri

    def data(self) -> dict[str, object]:
        return {**super().data(), "uri": self.uri}


@final
class InvalidArguments(McpdError):
    """Arguments that the tool's own schema, or our parameter types, refuse. Nothing was sent."""

    code, http, rpc, exit = "invalid_arguments", 400, -32602, 2

    def __init__(self, message: str, problems: list[Problem], *, server: str | None = None) -> None:
        super().__init__(message, server=server)
        self.problems = problems

    def data(self) -> dict[str, object]:
        return {**super().data(), "problems": [attrs.asdict(p) for p in self.problems]}


@final
class BadSpec(McpdError):
    """A configuration or a set of servers that cannot be used. Nothing of it was applied."""

    code, http, rpc, exit = "bad_spec", 400, -32602, 2

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        where = f"{source}: " if source else ""
        super().__init__(where + "; ".join(map(str, problems)))
        self.problems = problems
        self.source = source

    @classmethod
    def single(cls, message: str, fix: str, source: object, path: str = "$") -> BadSpec:
        return cls([Problem(path, message, fix)], str(source))

    def data(self) -> dict[str, object]:
        return {**super().data(), "problems": [attrs.asdict(p) for p in self.problems]}


@final
class Conflict(McpdError):
    """`if_generation` did not match: somebody else changed the set meanwhile."""

    code, http, rpc, exit = "conflict", 412, -32000, 9

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"the set of servers is at generation {actual}, not {expected}: read it again and decide anew"
        )
        self.actual = actual

    def data(self) -> dict[str, object]:
        return {**super().data(), "generation": self.actual}


@final
class NotReady(McpdError):
    """The server is not connected, so nothing was sent. Its `data` has exit 4 where a person must log in."""

    code, http, rpc, exit = "not_ready", 503, -32000, 6

    def __init__(self, message: str, *, server: str, state: str, retry_at: str | None = None) -> None:
        super().__init__(message, server=server)
        self.state = state
        self.retry_at = retry_at

    def data(self) -> dict[str, object]:
        facts = {**super().data(), "state": self.state, "retry_at": self.retry_at, "may_have_run": False}
        return {**facts, "exit": NeedsAuth.exit} if self.state == "needs-auth" else facts


@final
class Overloaded(McpdError):
    code, http, rpc, exit = "overloaded", 503, -32000, 6

    def data(self) -> dict[str, object]:
        return {**super().data(), "may_have_run": False}


@final
class LinkLost(McpdError):
    """The connection ended before the answer came. `may_have_run` says whether the bytes had left."""

    code, http, rpc, exit = "link_lost", 502, -32000, 6

    def __init__(self, reason: str, *, server: str | None = None, may_have_run: bool = True) -> None:
        super().__init__(reason, server=server)
        self.may_have_run = may_have_run

    def data(self) -> dict[str, object]:
        return {**super().data(), "may_have_run": self.may_have_run}


@final
class NeedsAuth(McpdError):
    """The server does not let us in (HTTP 401 or 403): trying again does not help, logging in may."""

    code, http, rpc, exit = "auth_required", 401, -32000, 4

    def __init__(self, message: str, *, server: str, status: int) -> None:
        super().__init__(message, server=server)
        self.status = status

    def data(self) -> dict[str, object]:
        return {**super().data(), "status": self.status, "may_have_run": False}


@final
class HttpRefused(McpdError):
    """The server answered with an HTTP status that is no MCP answer.

    `retry_after` in seconds, where it said so.
    """

    code, http, rpc, exit = "http_status", 502, -32000, 6

    def __init__(self, message: str, *, server: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message, server=server)
        self.status = status
        self.retry_after = retry_after

    def data(self) -> dict[str, object]:
        facts = {**super().data(), "status": self.status, "may_have_run": self.status >= 500}
        return facts if self.retry_after is None else {**facts, "retry_after": self.retry_after}


@final
class CallTimeout(McpdError):
    """No answer, and no progress, for `after` seconds; the server was told to cancel."""

    code, http, rpc, exit = "timeout", 504, -32000, 7

    def __init__(self, message: str, *, server: str, after: float) -> None:
        super().__init__(message, server=server)
        self.after = after

    def data(self) -> dict[str, object]:
        return {**super().data(), "after": self.after, "may_have_run": True}


@final
class Unsupported(McpdError):
    code, http, rpc, exit = "unsupported", 501, -32601, 1


@final
class InputNeeded(McpdError):
    """The server wants an answer from a person or a model to go on, and here is nobody to ask.

    It was asked nothing further; what it did until then, it did.
    """

    code, http, rpc, exit = "input_required", 502, -32000, 1

    def __init__(self, message: str, *, server: str, asked: str) -> None:
        super().__init__(message, server=server)
        self.asked = asked

    def data(self) -> dict[str, object]:
        return {**super().data(), "asked": self.asked, "may_have_run": True}


@final
class UpstreamRefused(McpdError):
    """The server answered a request of ours with a JSON-RPC error; its code and words are kept."""

    code, http, exit = "upstream_error", 502, 1

    def __init__(
        self, message: str, *, server: str, upstream_code: int, upstream_data: object = None
    ) -> None:
        super().__init__(message, server=server)
        self.upstream_code = upstream_code
        self.upstream_data = upstream_data

    def data(self) -> dict[str, object]:
        return {**super().data(), "upstream_code": self.upstream_code, "upstream_data": self.upstream_data}


@final
class SlowConsumer(McpdError):
    code, http, rpc, exit = "fell_behind", 503, -32000, 1


@final
class ProtocolViolation(McpdError):
    """The peer broke the protocol. `quote` the offending bytes with `shorten`, never in full."""

    code, http, rpc, exit = "protocol", 502, -32603, 1


@final
class NoCommonVersion(McpdError):
    """The server and we have no protocol revision in common. Trying again does not help."""

    code, http, rpc, exit = "version", 502, -32603, 1


@final
class UnsupportedRevision(McpdError):
    """A client's request names a protocol revision that we do not speak (2026-07-28, versioning)."""

    code, http, rpc, exit = "revision", 400, -32022, 1

    def __init__(self, requested: str, supported: tuple[str, ...]) -> None:
        super().__init__(f"protocol revision {shorten(requested, 40)!r} is not spoken here")
        self.requested = requested
        self.supported = supported

    def data(self) -> dict[str, object]:
        return {**super().data(), "requested": self.requested, "supported": list(self.supported)}
