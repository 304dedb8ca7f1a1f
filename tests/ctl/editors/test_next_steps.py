"""What a person does in an editor after `mcpctl install`."""

from __future__ import annotations

from pathlib import Path

from tests.ctl.conftest import Mcpctl


def test_next_steps_of_several_editors_name_them(home: Path, alone: Mcpctl) -> None:
    ran = alone("install", "claude-code", "vscodium", "cursor")
    assert ran.code == 0
    steps = [line for line in ran.err.splitlines() if line.startswith("next: ")]
    assert steps == [
        "next: in Claude Code, start a new session, or run /mcp in a running one",
        "next: in VSCodium, start mcpd in `MCP: List Servers`; VS Code asks once whether you trust it",
        "next: enable mcpd in Cursor's settings under MCP",
    ]
