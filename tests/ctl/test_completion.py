"""Completion in real shells: keys in, command line out."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon

ROOT = Path(__file__).parent.parent.parent
PROPERTIES = {"text": {"type": "string"}, "times": {"type": "integer"}}
HOSTILE = {
    "word space": r"word\ space@test",
    "$(touch pwned)": r"\$\(touch\ pwned\)@test",
    "`id`": r"\`id\`@test",
    "semi;colon": r"semi\;colon@test",
    "quo'te": r"quo\'te@test",
    "amper&sand>x": r"amper\&sand\>x@test",
    "comma,here": "comma,here@test",
}
"""Tool names with shell syntax, and how they must be quoted."""
TOOLS = {
    "tools": [
        {
            "server": "test",
            "name": name,
            "description": f"First, and\x1b[31m then {name}\nno more",
            "inputSchema": {"properties": PROPERTIES},
        }
        for name in ("echo", "with:colon", "line\nbreak", "line\x1b[31mred", *HOSTILE)
    ],
    "dropped": 0,
}
PROGRAM = f"""#!{sys.executable}
import ctl.cli.completion, ctl.main
assert ctl.cli.completion.TIMEOUT
ctl.cli.completion.TIMEOUT = 60.0
raise SystemExit(ctl.main.main())
"""
"""mcpctl with a longer completion timeout."""
START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'bind \'set bell-style none\'; bind -x \'"\\C-g": printf "\\074%s\\076\\n" "$READLINE_LINE"\'\n'
        'eval "$(mcpctl completion bash)"; printf "\\074ready\\076\\n"\n',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "setopt no_beep; autoload -U compinit; compinit -u -D\n"
        "show() { printf '\\074%s\\076\\n' \"$BUFFER\" }; zle -N show; bindkey '^G' show\n"
        'eval "$(mcpctl completion zsh)"; printf "\\074ready\\076\\n"\n',
    ),
}


@pytest.fixture
def environ(daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell with mcpctl in its PATH and a daemon with hostile tools."""
    daemon.answers["mcpd/tools"] = TOOLS
    program = tmp_path / "bin/mcpctl"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    own = {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PS1": "",
        "LC_ALL": "C.UTF-8",
    }
    return {**mcpctl.environ, **own}


class Shell:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, name: str, environ: dict[str, str], home: Path) -> None:
        argv, setup = START[name]
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            argv, env=environ, cwd=home, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._said = ""
        self._type(setup)
        assert self._shown() == "ready"

    def completed(self, typed: str) -> str:
        """Return the command line after these keys and TAB."""
        self._type(typed + "\t\x07")
        line = self._shown()
        self._type("\x15")  # ^U: an empty line again
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _shown(self) -> str:
        """The next text between angle brackets: no echo has any, they come as octals."""
        until = time.monotonic() + 60
        while (found := re.search("<(.*?)>\r?\n", self._said)) is None:
            assert select.select([self._master], [], [], until - time.monotonic())[0], self._said
            self._said += os.read(self._master, 65536).decode("utf-8", "replace")
        self._said = self._said[found.end() :]
        return found[1]


@pytest.fixture(params=START)
def shell(request: pytest.FixtureRequest, environ: dict[str, str], tmp_path: Path) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"the shell {request.param} is not installed")
    opened = Shell(request.param, environ, tmp_path)
    yield opened
    opened.close()


def test_commands_tools_and_arguments_are_completed(shell: Shell) -> None:
    """bash splits words at @, = and :, and a colon is special in zsh. No space follows `=`."""
    for typed, line in (
        ("mcpctl recon", "mcpctl reconnect "),
        ("mcpctl help reco", "mcpctl help reconnect "),
        ("mcpctl help exi", "mcpctl help exit-codes "),
        ("mcpctl call ec", "mcpctl call echo@test "),
        ("mcpctl call echo@te", "mcpctl call echo@test "),
        ("mcpctl call with:co", "mcpctl call with:colon@test "),
        ("mcpctl call echo@test te", "mcpctl call echo@test text="),
        ("mcpctl call echo@test text=x tim", "mcpctl call echo@test text=x times:="),
        ("mcpctl call echo@test times:", "mcpctl call echo@test times:="),
    ):
        assert shell.completed(typed) == line


def test_names_with_shell_syntax_are_quoted(shell: Shell, tmp_path: Path) -> None:
    """Completing a hostile tool name and pressing Enter runs no shell command."""
    for quoted in HOSTILE.values():
        beginning = quoted[:3] if quoted[0] == "\\" else quoted[:2]
        assert shell.completed(f"mcpctl call {beginning}").rstrip() == f"mcpctl call {quoted}"
    assert not (tmp_path / "pwned").exists()


def test_unprintable_names_are_not_offered(shell: Shell) -> None:
    """Escape sequences from servers do not reach the terminal."""
    assert shell.completed("mcpctl call line") == "mcpctl call line"


def test_fish_gets_names_with_descriptions(environ: dict[str, str], tmp_path: Path) -> None:
    """fish quotes insertions itself. Descriptions may contain commas."""
    if shutil.which("fish") is None:
        pytest.skip("the shell fish is not installed")

    def completions(line: str) -> list[str]:
        ran = subprocess.run(
            ["fish", "--no-config", "-c", 'mcpctl completion fish | source; complete -C "$argv[1]"', line],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    assert completions("mcpctl recon") == ["reconnect\tRestart the connection to servers."]
    assert completions("mcpctl call ec") == ["echo@test\tFirst, and then echo"]
    assert completions("mcpctl call comma") == ["comma,here@test\tFirst, and then comma,here"]
    assert completions("mcpctl call echo@test te") == ["text="]
    assert completions("mcpctl call line") == []
    assert len(completions("mcpctl call ")) == 2 + len(HOSTILE)
