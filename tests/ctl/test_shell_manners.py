"""Names of commands that people try, commands for several servers, and what `add` and `logs` say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctl.commands import EVERYDAY
from ctl.commands.call import try_
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault, server


def test_help_begins_with_the_everyday_commands(mcpctl: Mcpctl) -> None:
    out = mcpctl("--help").out
    everyday = out.partition("Everyday commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in everyday.splitlines() if line[2] != " "] == [*EVERYDAY]
    assert len(EVERYDAY) == 10
    assert out.count("\n  status ") == 1


@pytest.mark.parametrize(
    ("words", "command", "tool"),
    [
        ("https://a.example/mcp", ("https://a.example/mcp",), ()),
        ("https://a.example/mcp -- echo text=a", ("https://a.example/mcp",), ("echo", "text=a")),
        ("-- npx server -- echo --timeout 3 --raw a=b", ("npx", "server"), ("echo", "a=b")),
        ("-- npx -y server", ("npx", "-y", "server"), ()),
        ("-- npx https://a.example -- echo", ("npx", "https://a.example"), ("echo",)),
        ("-- mcp-proxy -- echo text=--", ("mcp-proxy",), ("echo", "text=--")),
    ],
)
def test_try_takes_an_address_or_a_command(
    words: str, command: tuple[str, ...], tool: tuple[str, ...]
) -> None:
    params = try_.make_context("try", words.split()).params
    assert (params["command"], params["tool"].get("words", ())) == (command, tool)


def test_try_takes_the_options_of_call(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """After the tool, as they are documented. Errors do not name the server, which is gone afterwards."""

    def refuse(_: Caller, params: dict[str, Any]) -> object:
        text = f"{params['server']}: the tool needs something else"
        raise Fault(text, code="invalid_arguments", exit=2, server=params["server"])

    tool = {"server": "s", "name": "hang", "inputSchema": {"properties": {"n": {"type": "integer"}}}}
    daemon.answers |= {
        "mcpd/add": {},
        "mcpd/connect": {"server": server("s")},
        "mcpd/tools": {"tools": [tool], "dropped": 0},
        "mcpd/remove": {},
        "mcpd/call": refuse,
    }
    options = ["--timeout", "1", "--args", '{"m": 2}', "--raw", "n=1"]
    ran = mcpctl("try", "--", "server", "--", "hang", *options)
    sent = daemon.params_of("mcpd/call")
    assert (sent["timeout"], sent["raw"], sent["arguments"]) == (1.0, True, {"m": 2, "n": 1})
    assert (ran.code, ran.err) == (2, "error: the tool needs something else\n")
    assert mcpctl("try", "--", "server", "--", "hang", "--json").error()["code"] == "invalid_arguments"
    assert mcpctl("try", "--", "server", "--", "hang", "--timeout", "soon").code == 2


@pytest.mark.parametrize("place", ["before", "after"])
def test_next_steps_name_the_daemon_of_the_command(mcpctl: Mcpctl, tmp_path: Path, place: str) -> None:
    """Without `--socket`, they would start or examine another daemon."""
    option = ["--socket", f"{tmp_path}/my socket"]
    words = [*option, "status"] if place == "before" else ["call", "t@s", *option]
    step = f"mcpctl --socket '{tmp_path}/my socket' daemon start"
    assert f"next: start it with: {step}\n" in mcpctl(*words).err
    assert mcpctl(*words, "--json").error()["next"] == f"start it with: {step}"
