"""Errors for commands that cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.model.server_spec import StdioSpec
from mcpd.transports.child_process import CannotStart, prepare_launch


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory with a program, a file that is not executable, and a directory."""
    (tmp_path / "npx").write_text("#!/bin/sh\n")
    (tmp_path / "npx").chmod(0o755)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "there").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "npx -y @scope/server",
            "no program named 'npx -y @scope/server'; to run 'npx', move the rest to",
        ),
        ("npx server", "no program named 'npx server'; to run 'npx', move the rest to `args`"),
        ("{tools}/npx -y it", "no program named '{tools}/npx -y it'; to run '{tools}/npx', move the rest"),
        ("uvx it", "command not found: uvx it (set `command` to its full path"),
        ("{tools}/my server", "there is no file {tools}/my server; correct `command`"),
        ("{tools}/there", "{tools}/there is a directory; set `command` to a program"),
        ("{tools}/text", "{tools}/text is not executable; `chmod +x` it"),
    ],
)
def test_unusable_command_is_explained(tools: Path, command: str, words: str) -> None:
    """Users often write a whole command line in `command`."""
    with pytest.raises(CannotStart) as refused:
        prepare_launch(StdioSpec(name="it", command=command.format(tools=tools)), {"PATH": str(tools)}, "")
    assert words.format(tools=tools) in str(refused.value)


def test_program_name_may_contain_a_space(tools: Path) -> None:
    (tools / "npx").rename(tools / "npx server")
    launch = prepare_launch(StdioSpec(name="it", command="npx server"), {"PATH": str(tools)}, "")
    assert launch.executable == str(tools / "npx server")


@pytest.mark.parametrize(("cwd", "words"), [("text", "is a file"), ("nowhere", "does not exist")])
def test_unusable_directory_is_explained(tools: Path, cwd: str, words: str) -> None:
    with pytest.raises(CannotStart, match=f"its directory {tools}/{cwd} {words}"):
        prepare_launch(StdioSpec(name="it", command="npx", cwd=str(tools / cwd)), {"PATH": str(tools)}, "")
