"""Known servers with special needs are recognized however they are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.config.server_specs import find_traits, parse_servers
from mcpd.config.settings import Settings


@pytest.mark.parametrize(
    ("line", "share", "concurrency"),
    [
        ("npx -y @modelcontextprotocol/server-memory", None, "writes"),
        ("/home/ada/node_modules/.bin/mcp-server-memory", None, "writes"),
        ("node /opt/server-memory/dist/index.js", None, "writes"),
        ("my-server-memory", None, None),
        ("mcp-server-sequential-thinking", "client", None),
        ("npx @playwright/mcp@latest --isolated", "client", None),
        ("npx @playwright/mcp@latest", "all", None),
        ("npx chrome-devtools-mcp@latest", "all", None),
        ("npx -y @modelcontextprotocol/server-filesystem /home/ada", "declared-root", None),
        ("npx -y @modelcontextprotocol/server-everything", None, None),
    ],
)
def test_known_server_is_recognized_by_its_command_line(
    line: str, share: str | None, concurrency: str | None
) -> None:
    command, *args = line.split()
    facts = find_traits(command, args)
    assert (facts.share, facts.concurrency) == (share, concurrency)


@pytest.mark.parametrize(
    ("definition", "share", "concurrency"),
    [
        ({"command": "x"}, "all", "auto"),
        ({"command": "x", "share": "root", "concurrency": "serial"}, "root", "serial"),
        ({"command": "server-memory"}, "all", "writes"),
        ({"command": "server-puppeteer"}, "client", "auto"),
    ],
)
def test_definition_takes_precedence_over_known_facts(
    definition: dict[str, object], share: str, concurrency: str
) -> None:
    specs = parse_servers(
        {"a": definition}, environ={}, settings=Settings(), base_dir=Path("/"), path="$"
    ).specs
    assert (specs["a"].share, specs["a"].concurrency) == (share, concurrency)


@pytest.mark.parametrize(
    ("definition", "allowed"),
    [
        ({"command": "x"}, True),
        ({"command": "x", "share": "all"}, False),
        ({"command": "x", "concurrency": "free"}, False),
        ({"command": "server-memory"}, False),
        ({"command": "npx", "args": ["@playwright/mcp"]}, False),
    ],
)
def test_second_process_is_allowed_unless_something_rules_them_out(
    definition: dict[str, object], allowed: bool
) -> None:
    """The definition itself, or what is known of the server."""
    specs = parse_servers(
        {"a": definition}, environ={}, settings=Settings(), base_dir=Path("/"), path="$"
    ).specs
    assert specs["a"].is_single_process is not allowed
