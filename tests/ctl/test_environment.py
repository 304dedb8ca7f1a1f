"""The environment of a terminal, which a server does not have: what `why` finds, and what a daemon gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl.daemon import process
from ctl.explain import environment
from mcpd.files.programs import find_elsewhere
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import ENTRY, FakeDaemon, detail, failure, server


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A login shell whose PATH has an extra directory with one program."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "mcp-server-files"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "shell").write_text(
        f'#!/bin/sh\necho a greeting\nexport PATH={tools}:$PATH HTTPS_PROXY=http://ann:secret@p\neval "$4"\n'
    )
    (tmp_path / "shell").chmod(0o755)
    monkeypatch.setenv("SHELL", str(tmp_path / "shell"))
    return tools


def test_why_finds_a_program_only_in_the_shells_path(daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path) -> None:
    """It works in the terminal but not in the service. Values of variables are never shown."""
    gone = failure(
        "command not found: mcp-server-files; looked in PATH=/usr/bin", kind="spawn", exit_code=None
    )
    daemon.answers["mcpd/server"] = detail(
        server("files", "failed", last_error=gone),
        command=["mcp-server-files"],
        executable=None,
        path="/usr/bin:/bin",
        history=[ENTRY],
    )
    ran = mcpctl("why", "files")
    assert ran.code == 6
    assert "files: failed since" in ran.out
    assert "cause: command not found: mcp-server-files\n" in ran.out
    assert f"your shell: runs {shell}/mcp-server-files" in ran.out
    assert f"PATH lacks: {shell}" in ran.out
    assert "HTTPS_PROXY" not in ran.out  # no variable makes a program appear
    assert "secret" not in ran.out
    assert "zed (pid 7)" in ran.out
    assert f"{shell}/mcp-server-files as its command" in ran.out.splitlines()[-1]
    received = mcpctl("why", "files", "--json").json()
    assert received["binary"]["in_login_shell"] == f"{shell}/mcp-server-files"
    assert received["withheld"] == ["HTTPS_PROXY"]
    assert received["evidence"]["kind"] == "spawn"


@pytest.mark.parametrize("script", ["exit 1", "sleep 60", "echo only this"])
def test_slow_login_shell_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Startup files that hang must not block mcpctl."""
    monkeypatch.setattr(environment, "TIMEOUT", 0.3)
    shell = tmp_path / "shell"
    shell.write_text(f"#!/bin/sh\n{script}\n")
    shell.chmod(0o755)
    assert environment.login_environment({"SHELL": str(shell)}) is None
    assert environment.login_environment({"SHELL": str(tmp_path / "none")}) is None


def test_daemon_gets_the_directories_of_the_login_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They follow those of the editor that starts the bridge, which keep their order."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nPATH=/home/me/bin:/bin:/opt/bin\neval "$4"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(environment, "TIMEOUT", 60.0)
    process._extend_path()
    assert os.environ["PATH"] == "/usr/bin:/bin:/home/me/bin:/opt/bin"
    monkeypatch.setenv("SHELL", str(tmp_path / "none"))
    process._extend_path()
    assert os.environ["PATH"] == "/usr/bin:/bin:/home/me/bin:/opt/bin"


def test_programs_of_version_managers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvm and similar tools change PATH only in interactive shells."""
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".nvm/versions/node/v20.1.0/bin/npx-of-mine"
    place.parent.mkdir(parents=True)
    place.write_text("")
    place.chmod(0o755)
    assert find_elsewhere("npx-of-mine") == [str(place)]
    assert find_elsewhere("/usr/bin/npx-of-mine") == []


def test_ui_opens_the_users_browser(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = tmp_path / "told"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {received}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)
    daemon.answers["mcpd/page"] = {"url": "http://127.0.0.1:8931/#code", "seconds": 60.0}
    ran = mcpctl("ui")
    assert ran.out == ""
    assert received.read_text() == "http://127.0.0.1:8931/#code\n"
