"""What a person would type next, given how a server is: one line, a command at its beginning.

A pure function of a status, shared by `status SERVER`, `why`, `doctor` and `wait`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ctl.daemon_client import Json

DISCONNECTED_REASON = "disconnected by hand"
"""The daemon's word for a server that `mcpctl disconnect` stopped."""


def next_command(server: Mapping[str, object]) -> str:
    """The remark in brackets behind a command says what is done there, or what happens by itself."""
    name = server.get("name", "SERVER")
    found = server.get("last_error")
    failure: Json = found if isinstance(found, dict) else {}
    match server.get("status"):
        case "connected":
            return f"mcpctl list-tools {name}"
        case "idle":
            return f"mcpctl connect {name}   (or call one of its tools, which starts it)"
        case "disabled" if server.get("off_until"):
            return f"mcpctl enable {name}   (or wait: it comes back by itself)"
        case "disabled":
            return f"mcpctl {'connect' if server.get('reason') == DISCONNECTED_REASON else 'enable'} {name}"
        case "needs-auth":
            return "mcpctl edit   (give it an `Authorization` that is valid, in its `headers`)"
        case "pending" if not failure:
            return f"mcpctl wait {name}"
        case _:
            return _after_failure(str(name), server, failure)


def _after_failure(name: str, server: Mapping[str, object], failure: Json) -> str:
    again = "" if server.get("status") == "pending" else f", then: mcpctl reconnect {name}"
    match failure.get("kind"):
        case "secret" if typed := _quoted_command(str(failure.get("message"))):
            return f"{typed}{again}"
        case "spawn":
            return "mcpctl edit   (correct what is named above; a changed definition is tried at once)"
        case "http" if failure.get("http_status") == 429 or _is_server_error(failure):
            return f"mcpctl reconnect {name}   (when it is well again; it is also tried again by itself)"
        case "http" | "protocol" if server.get("transport") != "stdio":
            return "mcpctl edit   (correct its `url`: what answers there speaks no MCP)"
        case "unreachable" if str(failure.get("message")).startswith(("TLS failed", "its TLS certificate")):
            return "mcpctl edit   (correct its `url` or `caFile`; it is also tried again by itself)"
        case "unreachable":
            return f"mcpctl reconnect {name}   (when it runs; or correct its `url`: mcpctl edit)"
        case "timeout" if server.get("transport") != "stdio":
            return f"mcpctl reconnect {name}   (when it is well again; or raise the timeout: mcpctl edit)"
        case "internal":
            return "mcpctl daemon logs   (and please report what it says)"
        case _ if failure.get("stderr"):
            return f"mcpctl logs {name}   (mend what it says){again}"
        case _ if server.get("transport") == "stdio":
            return f"mcpctl debug {name}   (run its command by hand to see what it does){again}"
        case _:
            return f"mcpctl debug {name}{again}"


def _quoted_command(message: str) -> str:
    """The command that a message names. Only for messages all our own: others quote what servers say."""
    _, found, rest = message.partition("`mcpctl ")
    return f"mcpctl {rest.partition('`')[0]}" if found else ""


def _is_server_error(failure: Json) -> bool:
    status = failure.get("http_status")
    return isinstance(status, int) and status >= 500
