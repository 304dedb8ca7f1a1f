"""The errors that end a command, with their codes and exit codes.

The fast path of `mcpctl status` imports this module, so it uses the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (0, "ok"),
    (1, "the operation or the tool failed"),
    (2, "invalid command line, arguments or configuration"),
    (3, "cannot connect to the daemon"),
    (4, "authentication required: log in to the server"),
    (5, "no such server, tool, resource, prompt, secret or file"),
    (6, "server not ready: failed, retrying or disabled"),
    (7, "timed out"),
    (9, "conflict: the set of servers was changed in the meantime"),
    (130, "interrupted (Ctrl-C)"),
    (141, "broken pipe: the output was closed"),
)


class CtlError(Exception):
    """Base class. `hint` is one line on what to do next; `details` are added to the JSON form."""

    code: str = "error"
    exit: int = 1

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = details

    def suggest(self, wanted: str, known: Iterable[str], otherwise: str) -> CtlError:
        """Add the names closest to `wanted` as a hint, or `otherwise` if there are none. Returns self."""
        import difflib

        near = difflib.get_close_matches(wanted, known, n=2, cutoff=0.5)
        self.hint = f"did you mean {' or '.join(near)}?" if near else otherwise
        self.details["suggestions"] = near
        return self

    @property
    def problems(self) -> list[Mapping[str, object]]:
        """The problems found in a document, each with `path`, `message` and `fix`."""
        problems = self.details.get("problems")
        return [p for p in problems if isinstance(p, dict)] if isinstance(problems, list) else []

    def to_json(self) -> dict[str, object]:
        step = {"next": self.hint} if self.hint else {}
        return {"code": self.code, "message": self.message, "exit": self.exit, **self.details, **step}


class UsageError(CtlError):
    code, exit = "usage", 2  # the command line is invalid


class DaemonUnreachable(CtlError):
    code, exit = "daemon_unreachable", 3  # the daemon does not respond, or closed the connection


class DaemonGone(DaemonUnreachable):
    """The daemon closed the connection before it answered."""


class BadConfiguration(DaemonUnreachable):
    code, exit = "bad_spec", 2  # the daemon was not started, because its configuration is invalid


class AuthNeeded(CtlError):
    code, exit = "auth_needed", 4  # a person must log in to the server


class NotFound(CtlError):
    code, exit = "not_found", 5  # there is nothing of that name


class ServerNotReady(CtlError):
    code, exit = "not_ready", 6  # the server is not connected


class TimedOut(CtlError):
    code, exit = "timeout", 7  # an answer did not come in time


class ToolError(CtlError):
    code, exit = "tool_error", 1  # the tool ran and reported an error


class WriteFailed(CtlError):
    code, exit = "cannot_write", 1  # a file cannot be written, and is unchanged


class DaemonError(CtlError):
    """The daemon answered with an error. Keeps its code, exit code and details."""

    def __init__(self, error: Mapping[str, object]) -> None:
        data = error.get("data")
        facts = dict(data) if isinstance(data, dict) else {}
        code, exit_code = facts.pop("code", None), facts.pop("exit", None)
        super().__init__(str(error.get("message", "the daemon returned an error without a message")), **facts)
        self.rpc = error.get("code")
        self.code = code if isinstance(code, str) else "rpc_error"
        self.exit = exit_code if isinstance(exit_code, int) and 0 < exit_code < 256 else 1
        if self.code == "not_ready" and (server := self.details.get("server")):
            # The message has the command, because only the daemon knows whether it was disconnected.
            named = (
                self.message.rpartition("run `")[2].rstrip("`")
                if self.details.get("state") == "disabled"
                else ""
            )
            self.hint = named if named.startswith("mcpctl ") else f"mcpctl why {server}"
        if isinstance(fix := self.details.pop("fix", None), str):  # the message has it in parentheses
            self.message, self.hint = self.message.removesuffix(f" ({fix})"), fix
        if self.rpc == METHOD_NOT_FOUND and code is None:
            self.hint = "the running mcpd may be older than mcpctl; update it with: mcpctl daemon restart"


METHOD_NOT_FOUND = -32601
