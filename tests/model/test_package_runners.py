"""Commands that download a package before they run it, and processes that are still doing so."""

from __future__ import annotations

import pytest

from mcpd.model.package_runners import find_runner, is_runner


@pytest.mark.parametrize(
    ("line", "name", "package"),
    [
        ("npx -y @scope/server --flag", "npx", "@scope/server"),
        ("/usr/local/bin/npx --package=@scope/server run-it", "npx", "@scope/server"),
        ("uvx mcp-server-time --local-timezone UTC", "uvx", "mcp-server-time"),
        ("uvx --python 3.12 --with httpx mcp-server-time", "uvx", "mcp-server-time"),
        ("uv tool run mcp-server-time", "uv tool run", "mcp-server-time"),
        ("bunx server", "bunx", "server"),
        ("pnpm dlx server@1", "pnpm dlx", "server@1"),
        ("pnpm --silent dlx server", "pnpm dlx", "server"),
        ("pipx run --spec x==1 run-it", "pipx run", "x==1"),
        ("docker run -i --rm -e TOKEN ghcr.io/x/y:1 serve", "docker run", "ghcr.io/x/y:1"),
        ("npx", "npx", ""),
    ],
)
def test_package_runner_and_its_package_are_recognized(line: str, name: str, package: str) -> None:
    """The status shows `npx is installing or starting @scope/server`."""
    command, *args = line.split()
    runner = find_runner(command, args)
    assert runner is not None
    assert (runner.name, runner.package) == (name, package)
    assert runner.container == (name.partition(" ")[0] in ("docker", "podman"))


@pytest.mark.parametrize(
    "line",
    [
        "node server.js",
        "bun server.js",
        "uv pip list",
        "docker exec -i box serve",
        "python -m npx",
        "npm start",
    ],
)
def test_ordinary_program_is_not_a_runner(line: str) -> None:
    """Only a runner gets more time than the handshake timeout."""
    command, *args = line.split()
    assert find_runner(command, args) is None


@pytest.mark.parametrize(
    ("argv", "still"),
    [
        # the successive process titles of npx 10
        ([], True),
        (["/usr/bin/env", "node", "/usr/bin/npx", "-y", "pkg"], True),
        (["node", "/usr/bin/npx", "-y", "pkg"], True),
        (["npm exec @scope/server"], True),
        (["sh", "-c", "'mcp-server-memory'"], False),
        (["node", "/home/me/.npm/_npx/15b0/node_modules/.bin/mcp-server-memory"], False),
        # uvx 0.9
        (["/usr/bin/uv", "tool", "uvx", "mcp-server-time"], True),
        (["/home/me/.cache/uv/archive-v0/x/bin/python", "/home/me/.cache/uv/x/bin/mcp-server-time"], False),
        (["bun", "x", "server"], True),
    ],
)
def test_running_package_runner_is_recognized_by_its_command_line(argv: list[str], still: bool) -> None:
    """The server inherits the runner's stdin, so only the name distinguishes them."""
    assert is_runner(argv) is still
