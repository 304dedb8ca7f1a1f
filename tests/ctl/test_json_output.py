"""`--json`: one document on stdout, and errors as one document on stderr."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import click
import pytest

from ctl.cli.app import app
from ctl.commands import ALIASES, COMMANDS
from tests.ctl.conftest import Mcpctl, Ran
from tests.ctl.fake_daemon import FakeDaemon, Fault


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


def test_completion_script_is_json_only_with_the_option(mcpctl: Mcpctl) -> None:
    """`eval "$(mcpctl completion bash)"` must work with MCPCTL_OUTPUT=json."""
    script = mcpctl("completion", "bash").out
    assert mcpctl("completion", "bash", MCPCTL_OUTPUT="json").out == script
    for ran in (
        mcpctl("completion", "bash", "--json"),
        mcpctl("--json", "completion", "bash", MCPCTL_OUTPUT="json"),
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


_FAILING = {
    "disconnect": "nosuch other",
    "disable": "nosuch other",
    "auth list": "",
    "auth status": "",
    "call": "tool@nosuch",
    "try": "tool",
    "read": "a:b@nosuch",
    "prompt": "prompt@nosuch",
    "add": "nosuch -- program",
    "remove": "nosuch other --yes",
    "apply": "nosuch.json",
    "reload": "",
    "secret set": "1",
    "secret remove": "NOSUCH",
    "policy test": "tool@nosuch",
    "approvals": "",
    "config validate": "nosuch.json",
    "config show": "",
    "ui": "",
    "doctor": "--no-shell",
    "calls": "",
    "clients": "",
    "stats": "",
    "top": "",
    "metrics": "",
    "daemon logs": "",
    "search": "",
    "shutdown": "",
}
"""Arguments with which commands fail, if the daemon answers each request with an error; else `nosuch`."""


_HAVE_NO_DOCUMENT = ("bridge",)


def documents(ran: Ran) -> list[object]:
    """Return the JSON documents on both streams. Other lines on stderr are for people."""
    errors = [line for line in ran.err.splitlines() if line.startswith("{")]
    return [json.loads(text) for text in ([ran.out] if ran.out else []) + errors]


@pytest.mark.parametrize(
    "words", [each for each in commands() if each and "".join(each) not in _HAVE_NO_DOCUMENT], ids=" ".join
)
def test_command_that_fails_prints_one_json_document(
    daemon: FakeDaemon, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    """Also if it fails for several servers."""
    fault = Fault("there is no server named nosuch", code="unknown_server", exit=5, server="nosuch")
    daemon.answers = defaultdict(lambda: fault)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = ALIASES.get(words[0], words[0])
    arguments = _FAILING.get(" ".join([name, *words[1:]]), "nosuch").split()
    ran = mcpctl("--json", *words, *arguments)
    assert ran.code not in (0, 130), ran
    assert len(documents(ran)) == 1, ran
