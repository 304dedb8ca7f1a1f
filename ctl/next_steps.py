"""The command to type next for a server in a given state: one line, beginning with the command.

A pure function of a status, shared by `status SERVER`, `why`, `doctor` and `wait`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import Failure, ServerStatus


def next_command(server: ServerStatus) -> str:
    """Return the command, followed by a remark in parentheses on what to do there."""
    name, failure = server["name"], server.get("last_error")
    match server["status"]:
        case "connected":
            return f"mcpctl list-tools {name}"
        case "idle":
            return f"mcpctl connect {name}   (or call one of its tools to start it)"
        case "disabled" if server.get("off_until"):
            return f"mcpctl enable {name}   (or wait until it is enabled automatically)"
        case "disabled":  # by `mcpctl disconnect`, or by `mcpctl disable`
            by_hand = server.get("reason", "").startswith("disconnected")
            return f"mcpctl {'connect' if by_hand else 'enable'} {name}"
        case "needs-auth":
            return "mcpctl edit   (set a valid `Authorization` header under `headers`)"
        case "pending" if not failure:
            return f"mcpctl wait {name}"
    return (
        _after_failure(server, failure) if failure else f"mcpctl debug {name}, then: mcpctl reconnect {name}"
    )


def _after_failure(server: ServerStatus, failure: Failure) -> str:
    name, remote, message = server["name"], server["transport"] != "stdio", failure["message"]
    again = "" if server["status"] == "pending" else f", then: mcpctl reconnect {name}"
    match failure["kind"]:
        case "secret" if command := _quoted_command(message):
            return f"{command}{again}"
        case "spawn" | "config":
            return "mcpctl edit   (fix the definition; the server is restarted when the file is saved)"
        case "http" if failure.get("http_status") == 429 or (failure.get("http_status") or 0) >= 500:
            return f"mcpctl reconnect {name}   (when it has recovered; mcpd also retries automatically)"
        case "http" | "protocol" if remote:
            return "mcpctl edit   (fix its `url`; the service at that address does not speak MCP)"
        case "unreachable" if "TLS" in message:
            return "mcpctl edit   (fix its `url` or `caFile`; mcpd also retries automatically)"
        case "unreachable":
            return f"mcpctl reconnect {name}   (when the server is running; or fix its `url`: mcpctl edit)"
        case "timeout" if remote:
            return f"mcpctl reconnect {name}   (when it has recovered; or raise the timeout: mcpctl edit)"
        case "internal":
            return "mcpctl daemon logs   (please report the error shown there)"
        case _ if failure.get("stderr"):
            return f"mcpctl logs {name}   (fix the error shown there){again}"
        case _ if not remote:
            return f"mcpctl debug {name}   (run its command by hand to see the error){again}"
    return f"mcpctl debug {name}{again}"


def _quoted_command(message: str) -> str:
    """Return the `mcpctl` command quoted in one of mcpd's own messages; empty if there is none.

    Not for messages that quote a server: it could name any command.
    """
    _, found, rest = message.partition("`mcpctl ")
    return f"mcpctl {rest.partition('`')[0]}" if found else ""
