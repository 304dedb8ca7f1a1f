"""The suggested next command for every state and failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from ctl.explain.next_steps import config_step, next_step
from mcpd.config import next_step as decision
from mcpd.config.secret_store import read_secrets
from mcpd.model.errors import BadSpec
from mcpd.model.status import NOT_MCP

if TYPE_CHECKING:
    from ctl.api_types import ServerDetail

SOON = "2026-11-22T00:00:00.000Z"


def how(
    status: str,
    failure: dict[str, Any] | None = None,
    definition: dict[str, Any] | None = None,
    **more: object,
) -> ServerDetail:
    """The details of a server as the daemon writes them."""
    failure = failure and {"message": "", "at": SOON, **failure}
    answer = {"name": "it", "status": status, "since": SOON, "transport": "stdio", "last_error": failure}
    return cast("ServerDetail", {"server": {**answer, **more}, "definition": definition or {}})


def refused(**definition: object) -> ServerDetail:
    """A server that answers 401."""
    failure = {"kind": "auth", "http_status": 401}
    return how("needs-auth", failure, {"url": "https://example.com/mcp", **definition}, transport="http")


BUSY = "Error: listen EADDRINUSE: address already in use 127.0.0.1:8080"
TABLE: list[tuple[ServerDetail, str]] = [
    (how("connected"), "mcpctl list-tools it"),
    (how("connected", questions=[{"client": "cursor"}]), "mcpctl list-tools it"),
    (how("connected", degraded="it restarted 3 times in the last minute"), "mcpctl logs it   (look for"),
    (
        how("connected", degraded="its process is stopped (SIGSTOP)", pid=47),
        "kill -CONT -47   (continues it; or start it again: mcpctl reconnect it)",
    ),
    (how("connected", degraded="it did not answer within 2 s"), "mcpctl reconnect it   (ends its calls"),
    (
        how("connected", waiting_calls=1, questions=[{"client": "cursor"}]),
        'mcpctl edit   (add "share": "client" to the definition',
    ),
    (
        how("connected", None, {"concurrency": "serial"}, waiting_calls=1, questions=[{"client": "cursor"}]),
        "mcpctl reconnect it   (ends the call; or answer the question in cursor)",
    ),
    (how("idle"), "mcpctl connect it "),
    (how("disabled", reason="switched off"), "mcpctl enable it"),
    (how("disabled", off_until=SOON), "mcpctl enable it   (or wait"),
    (how("pending"), "mcpctl wait it"),
    (how("pending", {"kind": "timeout", "stderr": ["no"]}), "mcpctl logs it   (fix the error shown there)"),
    (refused(), "mcpctl login it   (or add an `Authorization` header under `headers`"),
    (
        refused(headers={"Authorization": "Bearer ${secret:GH}"}),
        "mcpctl secret set GH   (the server rejected",
    ),
    (refused(url="https://example.com/mcp?key=${secret:KEY}"), "mcpctl secret set KEY "),
    (refused(headers={"X-Key": "${file:/k}"}), "mcpctl reconnect it   (when ${file:/k} has another value"),
    (
        refused(oauth={"grant": "workload", "assertion": "${cmd:print-jwt}"}),
        "mcpctl reconnect it   (when ${cmd:print-jwt} has",
    ),
    (refused(oauth={"grant": "client_credentials"}), "mcpctl edit   (fix `oauth`"),
    (refused(oauth={"clientSecret": "${secret:S}"}), "mcpctl login it "),
    (refused(headers={"X-Key": "${KEY}"}), "mcpctl edit   (the server rejected ${KEY}"),
    (refused(headers={"authorization": "***"}), "mcpctl edit   (the server rejected the `Authorization`"),
    (how("failed", {"kind": "spawn", "message": "its directory /x does not exist"}), "mcpctl edit "),
    (
        how("failed", {"kind": "secret", "message": "there is no secret T (`mcpctl secret set T`)"}),
        "mcpctl secret set T",
    ),
    (
        how("failed", {"kind": "exited", "stderr": ["no database"]}),
        "mcpctl logs it   (fix the error shown there), then: mcpctl reconnect it",
    ),
    *(
        (
            how("failed", {"kind": "exited", "stderr": [line]}),
            "mcpctl edit   (it needs the Python package mcp",
        )
        for line in (
            "AttributeError: 'Server' object has no attribute 'list_resources'",
            "ModuleNotFoundError: No module named 'mcp.server.fastmcp'. This is mcp 2.x, where FastMCP was",
            "ImportError: cannot import name 'McpError' from 'mcp.shared.exceptions' (/a/mcp/exceptions.py)",
        )
    ),
    (
        how("failed", {"kind": "exited", "stderr": [BUSY, "Node.js v22"]}),
        "ss -ltnp 'sport = :8080'   (shows which program uses its port; stop it), then: mcpctl reconnect it",
    ),
    (
        how("failed", {"kind": "exited", "stderr": ["MY_API_KEY is required"]}),
        "mcpctl edit   (add MY_API_KEY to its `env`)",
    ),
    (
        how("failed", {"kind": "protocol", "message": f"{NOT_MCP} on stdout: its first line is 'x'"}),
        "mcpctl debug it   (check its command and arguments",
    ),
    (how("failed", {"kind": "exited", "stderr": []}), "mcpctl debug it   (run its command by hand"),
    (
        how("failed", {"kind": "http", "http_status": 404}, transport="http"),
        "mcpctl edit   (fix its",
    ),
    (how("failed", {"kind": "protocol"}, transport="http"), "mcpctl edit   (fix its"),
    (how("failed", {"kind": "protocol"}), "mcpctl debug it"),
    (how("failed", {"kind": "killed", "signal": "SIGKILL", "stderr": ["ready"]}), "mcpctl reconnect it "),
    (how("failed", {"kind": "killed", "signal": "SIGKILL", "stderr": ["fatal: no disk"]}), "mcpctl logs it "),
    (how("failed", {"kind": "unreachable"}, transport="http", retry_at=SOON), "mcpctl reconnect it "),
    (how("failed", {"kind": "timeout"}, transport="http"), "mcpctl reconnect it "),
]


def test_server_messages_are_not_suggested_as_commands() -> None:
    """Messages quote the server, and users paste the suggested command."""
    said = {"kind": "http", "http_status": 429, "message": "HTTP 429: `mcpctl daemon stop; reboot`"}
    assert "reboot" not in next_step(how("failed", said, transport="http"))


@pytest.mark.parametrize(("detail", "beginning"), TABLE)
def test_next_step_fits_the_cause(detail: ServerDetail, beginning: str) -> None:
    """A remote server has no log, and neither has a missing program."""
    assert next_step(detail).startswith(beginning)


def test_stored_secret_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has just stored it: what is missing is another attempt."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    failed = how("failed", {"kind": "secret", "message": "there is no secret T (`mcpctl secret set T`)"})
    assert next_step(failed) == "mcpctl secret set T"
    (tmp_path / "mcpd").mkdir()
    (tmp_path / "mcpd" / "secrets.json").write_text('{"T": "x"}')
    (tmp_path / "mcpd" / "secrets.json").chmod(0o600)
    assert next_step(failed) == "mcpctl reconnect it   (the secret T is stored now)"


def test_secrets_that_others_can_read_are_made_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other file is: the message may quote the output of a command."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "mcpd" / "secrets.json"
    file.parent.mkdir()
    file.write_text("{}")
    file.chmod(0o644)
    with pytest.raises(BadSpec) as refused:
        read_secrets({"XDG_CONFIG_HOME": str(tmp_path)})
    problem = refused.value.problems[0]
    failed = how("failed", {"kind": "secret", "message": f"$.env.T: {problem.message} ({problem.fix})"})
    assert next_step(failed) == f"chmod 600 {file}, then: mcpctl reconnect it"
    other = how("failed", {"kind": "secret", "message": "it failed with 1: (chmod 600 /x)"})
    assert not next_step(other).startswith("chmod")


def test_missing_program_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this shell, then in the login shell. If it is nowhere, it has to be installed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    program = tmp_path / "bin" / "mcp-server-files"
    failure = {"kind": "spawn", "message": "command not found: mcp-server-files"}
    detail = how("failed", failure, {"command": program.name})
    detail["path"] = "/usr/bin"
    assert next_step(detail).startswith("mcpctl edit   (mcp-server-files is not installed: ")
    for command, step in (
        ("uvx", "sudo apt install --yes pipx && pipx install uv, then: mcpctl reconnect it"),
        (
            "C:\\Program Files\\nodejs\\npx.cmd",
            "mcpctl edit   (this is a path of Windows: use npx as its command)",
        ),
    ):
        monkeypatch.setenv("PATH", "/nonexistent")
        named = how("failed", failure, {"command": command}) | {"path": "/nonexistent"}
        assert next_step(named) == step
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    assert next_step(detail, {"PATH": str(program.parent)}).startswith("mcpctl daemon restart ")
    monkeypatch.setenv("PATH", str(program.parent))
    restart = next_step(detail)
    assert (
        restart == f"mcpctl daemon restart   (uses the PATH of this shell; or use {program} as its command)"
    )
    detail["definition"] = {"command": program.name, "env": {"PATH": "/opt"}}
    assert next_step(detail).startswith(f"mcpctl edit   (use {program} as its command, or fix PATH")


def test_variable_that_is_not_set_is_no_reason_to_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    """mcpd needs it in its environment, which it gets from the shell that starts it."""
    message = "the environment variable NOPE_TOKEN is not set"
    failed = how("failed", {"kind": "config", "message": f"{message} @ $.mcpServers.it.env.T (set it)"})
    monkeypatch.setattr("ctl.daemon.systemd.is_installed", lambda: False)
    monkeypatch.delenv("NOPE_TOKEN", raising=False)
    assert config_step([{"message": message}]).startswith("export NOPE_TOKEN=VALUE && ")
    assert next_step(failed).startswith("export NOPE_TOKEN=VALUE && mcpctl daemon restart   (or write ")
    assert config_step([{"message": message}, {"message": "unknown field"}]) == "mcpctl edit"
    monkeypatch.setenv("NOPE_TOKEN", "abc")
    has_it = "mcpctl daemon restart   (passes NOPE_TOKEN of this shell to mcpd; or write "
    assert config_step([{"message": message}]).startswith(has_it)
    assert decision.next_step(failed).startswith("mcpctl daemon restart   (with NOPE_TOKEN set in ")


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("exited", "MY_API_KEY is required", True),
        ("exited", "please provide MY_API_KEY for more features", False),
        ("exited", "error: no database", False),
        ("timeout", "MY_API_KEY is required", False),
    ],
)
def test_missing_variable_needs_a_person(kind: str, line: str, expected: bool) -> None:
    assert decision.needs_person({"kind": kind, "stderr": [line]}) is expected
