"""`--json`: one document on stdout, and errors as one document on stderr."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ctl.app import app
from ctl.commands import COMMANDS
from mcpd.main import argument_parser
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon


def commands() -> list[list[str]]:
    """Yield every command and subcommand."""
    found: list[list[str]] = [[]]
    context = click.Context(app)
    for name in COMMANDS:
        command = app.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.commands]
    return found


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words) or "mcpctl")
def test_help_is_a_json_document(mcpctl: Mcpctl, words: list[str]) -> None:
    """With the option before or after the command, or from the environment."""
    for ran in (
        mcpctl("--json", *words, "--help"),
        mcpctl(*words, "--help", "--json"),
        mcpctl(*words, "--help", MCPCTL_OUTPUT="json"),
    ):
        assert ran.code == 0
        received = ran.json()
        assert received["command"].startswith(" ".join(["mcpctl", *words[:1]]))
        assert received["help"].startswith("Usage: mcpctl")


@pytest.mark.parametrize("words", [["config"], ["secret"], ["daemon"]])
def test_group_help_uses_the_output_format(mcpctl: Mcpctl, words: list[str]) -> None:
    """With `--json` before the group, or MCPCTL_OUTPUT=json, the help is a JSON document."""
    assert mcpctl(*words, MCPCTL_OUTPUT="json").json()["command"] == f"mcpctl {words[0]}"
    assert mcpctl("--json", *words).json()["command"] == f"mcpctl {words[0]}"
    assert mcpctl(*words).out.startswith("Usage: ")


def test_command_help_and_version_are_json_documents(mcpctl: Mcpctl) -> None:
    assert mcpctl("help", "config", "show", "--json").json()["command"] == "mcpctl config show"
    assert mcpctl(MCPCTL_OUTPUT="json").json()["command"] == "mcpctl"
    assert set(mcpctl("--version", "--json").json()) == {"mcpctl"}


def test_completion_script_is_json_only_with_the_option(mcpctl: Mcpctl) -> None:
    """`eval "$(mcpctl completion bash)"` must work with MCPCTL_OUTPUT=json."""
    script = mcpctl("completion", "bash").out
    assert mcpctl("completion", "bash", MCPCTL_OUTPUT="json").out == script
    for ran in (
        mcpctl("completion", "bash", "--json"),
        mcpctl("--json", "completion", "bash", MCPCTL_OUTPUT="json"),
        mcpctl("completion", "bash", "-o", "json"),
    ):
        assert ran.json()["script"].strip() == script.strip()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["statsu"], "status"),
        (["config", "vlidate"], "validate"),
        (["status", "--wtach"], "--watch"),
        (["call", "--timout", "3", "a@b"], "--timeout"),
    ],
)
def test_suggestions_are_in_the_json_error(mcpctl: Mcpctl, words: list[str], meant: str) -> None:
    """For commands, subcommands and options."""
    ran = mcpctl(*words, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert meant in ran.error()["suggestions"]
    assert meant in mcpctl(*words).err


@pytest.mark.parametrize("words", [["apply", "no-such-file"], ["call", "a@b", "--args", "@no-such-file"]])
def test_unreadable_file_is_a_usage_error(mcpctl: Mcpctl, words: list[str]) -> None:
    """Exit code 2, as for an unreadable configuration; 1 means that the operation failed."""
    ran = mcpctl(*words, "--json")
    assert (ran.code, ran.error()["exit"]) == (2, 2)
    assert "no-such-file" in ran.error()["message"]


def test_config_show_understands_every_spelling(daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path) -> None:
    """Command, URL and enabled state, for every spelling of the fields."""
    daemon.answers["mcpd/config"] = {
        "source": "f",
        "path": "f",
        "generation": 1,
        "servers": {
            "a": {"cmd": "program", "args": ["x y"]},
            "b": {"command": ["program", "first"], "args": ["second"], "isActive": False},
            "c": {"httpUrl": "http://c/mcp"},
            "d": {"serverUrl": "http://d/mcp", "disabled": True},
        },
    }
    rows = [line.split(None, 2) for line in mcpctl("config", "show").out.splitlines()[-4:]]
    assert rows == [
        ["a", "yes", "program 'x y'"],
        ["b", "no", "program first second"],
        ["c", "yes", "http://c/mcp"],
        ["d", "no", "http://d/mcp"],
    ]


def test_mcpd_suggests_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Misspelled options of mcpd get a suggestion too."""
    with pytest.raises(SystemExit) as ended:
        argument_parser().parse_args(["--debgu"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --debgu (did you mean --debug?)" in capsys.readouterr().err
