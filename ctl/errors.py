"""Every way a command can end badly, with the exit code each one means.

    CtlError             code                 exit
     ├─ Usage            usage                2    the command line makes no sense
     ├─ DaemonUnreachable  daemon_unreachable 3    nothing answers, or it went away half-way
     ├─ AuthNeeded       auth_needed          4    a person must log in to the server
     ├─ NotFound         not_found            5    there is nothing of that name
     ├─ NotReady         not_ready            6    the server is not connected
     ├─ TimedOut         timeout              7    an answer did not come in time
     ├─ ToolFailed       tool_error           1    the tool ran, and said that it failed
     └─ Refused          (the daemon's)       (the daemon's)

Imported by the fast path of `mcpctl status`, so it needs nothing but the language.
"""

from __future__ import annotations

from collections.abc import Mapping

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (0, "ok"),
    (1, "the operation or the tool failed"),
    (2, "usage: the command line, the arguments or the configuration make no sense"),
    (3, "the daemon cannot be reached"),
    (4, "authentication needed: a person must log in to the server"),
    (5, "no such server, tool, resource, prompt, secret or file"),
    (6, "the server is not ready: down, backing off, switched off"),
    (7, "timed out"),
    (9, "conflict: somebody else changed the set of servers meanwhile"),
    (130, "interrupted (Ctrl-C)"),
    (141, "the reader of the output went away"),
)


class CtlError(Exception):
    """Base of all. `hint` is what to do next, one line; `facts` go into the JSON form."""

    code: str = "error"
    exit: int = 1

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, object] = details

    def to_json(self) -> dict[str, object]:
        """The `error` object of `--json`."""
        hint = {"hint": self.hint} if self.hint else {}
        return {"code": self.code, "message": self.message, "exit": self.exit, **self.facts, **hint}


class UsageError(CtlError):
    code, exit = "usage", 2


class DaemonUnreachable(CtlError):
    code, exit = "daemon_unreachable", 3


class AuthNeeded(CtlError):
    code, exit = "auth_needed", 4


class NotFound(CtlError):
    code, exit = "not_found", 5


class ServerNotReady(CtlError):
    code, exit = "not_ready", 6


class TimedOut(CtlError):
    code, exit = "timeout", 7


class ToolError(CtlError):
    code, exit = "tool_error", 1


class DaemonError(CtlError):
    """The daemon answered with an error; its code word, exit code and facts are kept."""

    def __init__(self, error: Mapping[str, object]) -> None:
        data = error.get("data")
        facts = dict(data) if isinstance(data, dict) else {}
        code, exit_code = facts.pop("code", None), facts.pop("exit", None)
        super().__init__(str(error.get("message", "the daemon refused, without a reason")), **facts)
        self.rpc = error.get("code")
        self.code = code if isinstance(code, str) else "rpc_error"
        self.exit = exit_code if isinstance(exit_code, int) and 0 < exit_code < 256 else 1
        if self.rpc == METHOD_NOT_FOUND and code is None:
            self.hint = "the running mcpd may be older than this mcpctl: mcpctl daemon restart"

    @property
    def problems(self) -> list[Mapping[str, object]]:
        """The daemon's list of complaints about a document, each with `path`, `message` and `fix`."""
        problems = self.facts.get("problems")
        return [p for p in problems if isinstance(p, dict)] if isinstance(problems, list) else []


METHOD_NOT_FOUND = -32601
