"""The other commands: requests, output and exit codes."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from ctl.commands import COMMANDS
from mcpd.model.status import parse_timestamp, rfc3339
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault, server


def test_refused_server_was_neither_added_nor_saved(
    daemon: FakeDaemon, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of this shell does not count: mcpd got its environment when it started."""
    message = "the environment variable NOPE_TOKEN is not set"
    problem = {"path": "$.mcpServers.it.env.TOKEN", "message": message, "fix": "set it"}

    def refuse(_: Caller, params: dict[str, Any]) -> object:
        raise Fault(message, code="bad_spec", exit=2, problems=[problem])

    monkeypatch.setattr("ctl.daemon.systemd.is_installed", lambda: False)
    monkeypatch.setenv("NOPE_TOKEN", "abc")
    daemon.answers |= {"mcpd/add": refuse, "mcpd/reload": refuse}
    ran = mcpctl("add", "it", "-e", "TOKEN=${NOPE_TOKEN}", "--", "true")
    assert ran.code == 2
    first, second, step = ran.err.splitlines()
    assert first == (
        "error: it was not added, nothing was saved; mcpd uses the environment in which it was started"
    )
    assert second == f"  $.mcpServers.it.env.TOKEN: {message} (set it)"
    assert step.startswith("next: mcpctl daemon restart   (passes NOPE_TOKEN of this shell to mcpd; ")
    assert mcpctl("reload").err.splitlines()[-1] == step


def test_disable_for_sends_the_end_time(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The output shows when the server is enabled again."""
    reason = "switched off until 2026-11-22 18:00:00 UTC"
    before = time.time()
    end = rfc3339(before + 7230)
    daemon.answers["mcpd/disable"] = {"server": server("git", "disabled", reason=reason, off_until=end)}
    ran = mcpctl("disable", "git", "--for", "2h")
    assert ran.code == 0
    assert re.fullmatch(r"git: disabled \(switched off until 2026-11-22 14:30:00 -03:30\)\n", ran.out)
    until = parse_timestamp(daemon.params_of("mcpd/disable")["until"])
    assert before - 0.001 <= until - 7200 <= time.time()
    mcpctl("disable", "git")
    assert "until" not in daemon.params_of("mcpd/disable")


def test_resource_is_read_as_text_or_bytes(daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path) -> None:
    """Binary content is written unchanged to a pipe or a file."""
    daemon.answers["mcpd/read"] = {"contents": [{"uri": "a://1", "blob": "AP8="}]}
    target = tmp_path / "out"
    assert mcpctl("read", "a://x@y@s", "-o", str(target)).code == 0
    assert target.read_bytes() == b"\x00\xff"
    assert daemon.params_of("mcpd/read") == {"server": "s", "uri": "a://x@y"}


def test_config_path_works_for_invalid_files(
    mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who wants to fix the file needs its path. It is ambiguous only if two files exist."""
    for variable in ("MCPD_CONFIG", "MCPD_SERVERS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "mcpd" / "config.json"
    assert mcpctl("config", "path").out == f"{file}\n"
    file.parent.mkdir()
    file.write_text("{")
    assert mcpctl("config", "path").out == f"{file}\n"
    file.with_suffix(".toml").touch()
    ran = mcpctl("config", "path")
    assert (ran.code, ran.out) == (2, "")
    assert "there are 2 configuration files" in ran.err


def test_overview_summaries_match_the_commands_help(mcpctl: Mcpctl) -> None:
    """The overview imports no command module. All help texts fit 80 columns."""
    import click

    from ctl.cli.app import app

    context = click.Context(app)
    overview = mcpctl("--help").out
    for name, entry in COMMANDS.items():
        command = app.get_command(context, name)
        assert command is not None
        own = (command.help or "").strip().partition("\n")[0]
        assert own == entry.help or entry.hidden, name
        assert entry.hidden or f"  {name} " in overview
        assert all(len(line) <= 80 for line in mcpctl(name, "--help").out.splitlines()), name


def test_every_command_is_documented() -> None:
    """Each has a heading or an example."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "mcpctl.md").read_text()
    for name, entry in COMMANDS.items():
        assert entry.hidden or f"mcpctl {name}" in page, name


def test_completion_without_a_daemon_is_silent(mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never starts a daemon."""
    monkeypatch.setenv("COMP_LINE", "mcpctl status g")
    ran = mcpctl(_MCPCTL_COMPLETE="bash_complete", MCPD_NO_START="")
    assert (ran.out.strip(), ran.err) == ("", "")
