"""`mcpctl add`: what its exit code and its document say if the server does not connect."""

from __future__ import annotations

import json

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, detail, failure, server
from tests.ctl.test_commands import APPLIED


@pytest.mark.parametrize(("state", "code"), [("failed", 6), ("pending", 6), ("needs-auth", 4)])
def test_server_that_does_not_connect_is_kept_and_fails_the_command(
    daemon: FakeDaemon, mcpctl: Mcpctl, state: str, code: int
) -> None:
    """A script must notice. The codes are those of `mcpctl status SERVER`."""
    status = server("git", state, last_error=failure("no token"))
    daemon.answers |= {"mcpd/connect": {"server": status}, "mcpd/server": detail(status)}
    daemon.answers["mcpd/add"] = {**APPLIED, "saved": "/c.json"}
    ran = mcpctl("add", "git", "--", "uvx", "mcp-git")
    assert ran.code == code
    assert ran.out.startswith("git: added, saved in /c.json\ngit: ")
    first, second = ran.err.splitlines()
    assert first == "warning: git is not connected; its definition is kept in /c.json"
    assert second.startswith("next: mcpctl ")
    ran = mcpctl("add", "git", "--json", "--", "uvx", "mcp-git")
    assert ran.code == code
    missing = {"server": "git", "state": state, "error": "no token"}
    assert json.loads(ran.out) == {**APPLIED, "saved": "/c.json", "not_connected": [missing]}


def test_definition_that_is_not_saved_is_said_to_be_temporary(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    status = server("git", "failed", last_error=failure("no token"))
    daemon.answers |= {"mcpd/connect": {"server": status}, "mcpd/server": detail(status)}
    daemon.answers["mcpd/add"] = APPLIED
    ran = mcpctl("add", "git", "--no-save", "--", "uvx", "mcp-git")
    assert (ran.code, "kept until the configuration file is loaded again" in ran.err) == (6, True)


@pytest.mark.parametrize("option", ["--wait=0", "--lazy"])
def test_exit_code_does_not_depend_on_a_server_that_is_not_started(
    daemon: FakeDaemon, mcpctl: Mcpctl, option: str
) -> None:
    daemon.answers["mcpd/add"] = APPLIED
    assert mcpctl("add", "git", option, "--", "uvx", "mcp-git").code == 0
    assert mcpctl("add", "git", option, "--json", "--", "uvx", "mcp-git").code == 0
    assert [request[0] for request in daemon.requests] == ["mcpd/add", "mcpd/add"]
