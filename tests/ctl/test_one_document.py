"""`--json`: one document on stdout, errors as one on stderr, whatever is asked and wherever it is said."""

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
    """Every command, and every one below it."""
    found: list[list[str]] = [[]]
    context = click.Context(app)
    for name in COMMANDS:
        command = app.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.commands]
    return found


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words) or "mcpctl")
def test_help_is_a_document_too(mcpctl: Mcpctl, words: list[str]) -> None:
    """A program that reads JSON reads help as well; said before, after, or by the environment."""
    for ran in (
        mcpctl("--json", *words, "--help"),
        mcpctl(*words, "--help", "--json"),
        mcpctl(*words, "--help", MCPCTL_OUTPUT="json"),
    ):
        assert ran.code == 0
        told = ran.json()
        assert told["command"].startswith(" ".join(["mcpctl", *words[:1]]))
        assert told["help"].startswith("Usage: mcpctl")


@pytest.mark.parametrize("words", [["config"], ["secret"], ["daemon"]])
def test_a_group_alone_shows_its_help_in_the_form_asked_for(mcpctl: Mcpctl, words: list[str]) -> None:
    """As text it was, under the environment's `json`, and exit code 0."""
    assert mcpctl(*words, MCPCTL_OUTPUT="json").json()["command"] == f"mcpctl {words[0]}"
    assert mcpctl("--json", *words).json()["command"] == f"mcpctl {words[0]}"
    assert mcpctl(*words).out.startswith("Usage: ")


def test_help_on_a_command_and_the_version_are_documents(mcpctl: Mcpctl) -> None:
    assert mcpctl("help", "config", "show", "--json").json()["command"] == "mcpctl config show"
    assert mcpctl(MCPCTL_OUTPUT="json").json()["command"] == "mcpctl"
    assert set(mcpctl("--version", "--json").json()) == {"mcpctl"}


def test_a_completion_script_is_json_only_when_this_command_is_asked_for_it(mcpctl: Mcpctl) -> None:
    """`eval "$(mcpctl completion bash)"` must work for who has set MCPCTL_OUTPUT."""
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
def test_what_was_meant_is_there_for_programs_too(mcpctl: Mcpctl, words: list[str], meant: str) -> None:
    """Commands, those below them, and options."""
    ran = mcpctl(*words, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert meant in ran.error()["suggestions"]
    assert meant in mcpctl(*words).err


@pytest.mark.parametrize("words", [["apply", "no-such-file"], ["call", "a@b", "--args", "@no-such-file"]])
def test_a_file_that_cannot_be_read_is_a_matter_of_usage(mcpctl: Mcpctl, words: list[str]) -> None:
    """Exit code 2, as of a configuration that cannot be read; 1 means that the operation failed."""
    ran = mcpctl(*words, "--json")
    assert (ran.code, ran.error()["exit"]) == (2, 2)
    assert "no-such-file" in ran.error()["message"]


def test_definitions_are_shown_in_whichever_spelling_they_were_written(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path
) -> None:
    """What is run, where it is, whether it is on: not only for who writes as we do."""
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


def test_mcpd_says_what_option_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """Its few options are misspelt like others."""
    with pytest.raises(SystemExit) as ended:
        argument_parser().parse_args(["--debgu"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --debgu (did you mean --debug?)" in capsys.readouterr().err
