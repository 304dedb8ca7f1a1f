"""The suggested next command for every state and failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from ctl.next_steps import next_command

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus

SOON = "2026-11-22T00:00:00.000Z"


def how(status: str, failure: dict[str, Any] | None = None, **more: object) -> ServerStatus:
    """A status as the daemon writes it."""
    failure = failure and {"message": "", "at": SOON, **failure}
    answer = {"name": "it", "status": status, "since": SOON, "transport": "stdio", "last_error": failure}
    return cast("ServerStatus", {**answer, **more})


TABLE: list[tuple[ServerStatus, str]] = [
    (how("connected"), "mcpctl list-tools it"),
    (how("idle"), "mcpctl connect it "),
    (how("disabled", reason="switched off"), "mcpctl enable it"),
    (how("disabled", off_until=SOON), "mcpctl enable it   (or wait"),
    (how("disabled", reason="disconnected by hand"), "mcpctl connect it"),
    (how("pending"), "mcpctl wait it"),
    (how("pending", {"kind": "timeout", "stderr": ["no"]}), "mcpctl logs it   (fix the error shown there)"),
    (how("needs-auth", {"kind": "auth", "http_status": 401}, transport="http"), "mcpctl edit "),
    (how("failed", {"kind": "spawn", "message": "its directory /x does not exist"}), "mcpctl edit "),
    (
        how("failed", {"kind": "secret", "message": "there is no secret T (`mcpctl secret set T`)"}),
        "mcpctl secret set T, then: mcpctl reconnect it",
    ),
    (
        how("failed", {"kind": "exited", "stderr": ["no database"]}),
        "mcpctl logs it   (fix the error shown there), then: mcpctl reconnect it",
    ),
    (how("failed", {"kind": "exited", "stderr": []}), "mcpctl debug it   (run its command by hand"),
    (
        how("failed", {"kind": "http", "http_status": 404}, transport="http"),
        "mcpctl edit   (fix its",
    ),
    (how("failed", {"kind": "protocol"}, transport="http"), "mcpctl edit   (fix its"),
    (how("failed", {"kind": "protocol"}), "mcpctl debug it"),
    (how("failed", {"kind": "http", "http_status": 429}, transport="http"), "mcpctl reconnect it "),
    (how("failed", {"kind": "http", "http_status": 503}, transport="http"), "mcpctl reconnect it "),
    (how("failed", {"kind": "unreachable"}, transport="http", retry_at=SOON), "mcpctl reconnect it "),
    (how("failed", {"kind": "unreachable", "message": "TLS failed: it speaks none"}), "mcpctl edit "),
    (how("failed", {"kind": "unreachable", "message": "its TLS certificate was rejected"}), "mcpctl edit "),
    (how("failed", {"kind": "timeout"}, transport="http"), "mcpctl reconnect it "),
    (how("failed", {"kind": "internal"}), "mcpctl daemon logs "),
    (how("failed", {"kind": "version"}, transport="http"), "mcpctl debug it, then: mcpctl reconnect it"),
]


def test_server_messages_are_not_suggested_as_commands() -> None:
    """Messages quote the server, and users paste the suggested command."""
    said = {"kind": "http", "http_status": 429, "message": "HTTP 429: `mcpctl daemon stop; reboot`"}
    assert "reboot" not in next_command(how("failed", said, transport="http"))


@pytest.mark.parametrize(("server", "beginning"), TABLE)
def test_next_command_fits_the_cause(server: ServerStatus, beginning: str) -> None:
    """A remote server has no log, and neither has a missing program."""
    assert next_command(server).startswith(beginning)
