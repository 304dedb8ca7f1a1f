"""Each command prints the `--json` document that docs/reference/mcpctl.md describes in its row."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from ctl.commands import COMMANDS
from ctl.main import run
from tests.e2e.conftest import Start
from tests.e2e.harness import Json
from tests.example_server import TEST_SERVER

ROOT = Path(__file__).parents[2]
TEST = {"command": sys.executable, "args": [TEST_SERVER]}

WORDS = {
    "status": "",
    "reconnect": "test",
    "disable": "test",
    "enable": "test",
    "wait": "test",
    "list-tools": "",
    "call": "echo@test text=hi",
    "try": f"-- {sys.executable} {TEST_SERVER}",
    "read SERVER": "",
    "read": "test test://greeting",
    "prompt SERVER": "",
    "prompt": "greet@test name=Ann",
    "emit-types": "--python",
    "add": "more --no-save --wait 0 -- no-such-program",
    "remove": "more --no-save --yes",
    "config apply": "config.json --plan",
    "config reload": "",
    "import": "config.json --dry-run",
    "install": "zed --dry-run",
    "uninstall": "zed --dry-run",
    "secret set": "WORD",
    "secret list": "",
    "secret remove": "WORD --yes",
    "config path": "",
    "config validate": "config.json",
    "config show": "",
    "ui --print": "",
    "doctor": "--no-shell",
    "logs": "test",
    "history": "",
    "login --list": "",
    "login --list SERVER": "",
    "calls": "",
    "cache clear": "",
    "approvals": "",
    "why TOOL@SERVER --client NAME": "",
    "clients": "",
    "top": "",
    "top --calls": "",
    "top SERVER": "",
    "debug --metrics": "",
    "version": "",
    "help exit-codes": "",
    "help": "status",
    "--help": "",
    "completion": "bash",
    "daemon status": "",
    "daemon start": "",
    "daemon logs": "",
    "daemon uninstall": "",
    "daemon stop": "",
}
"""What makes each of them do something, in this order."""
STARTS_ANOTHER = {"daemon restart", "daemon upgrade"}
NEEDS_SYSTEMD = {"daemon install"}
NEEDS_LOGIN = {"login", "logout", "login --renew", "login --explain"}
"""For servers that require a login; see `test_login`."""
GOES_ON = {"history --follow", "logs --messages", "logs --follow"}
NEEDS_MORE = {"status SERVER", "debug SERVER", "why SERVER", "daemon install", "run"}
"""Whose row refers to another page, or that need a user manager of systemd or an extra."""


def table() -> dict[str, tuple[dict[str, str], bool]]:
    """Return for each command its members with their types, and whether a server may add members."""
    page = (ROOT / "docs" / "reference" / "mcpctl.md").read_text()
    section = page.partition("## JSON output\n")[2].partition("\n## ")[0].partition("| command |")[2]
    found = {}
    for row in re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.M):
        members = re.findall(r"`(\w+)`(?: (\[…\]|\{…\}))?", row[1].partition(";")[0])
        for command in re.findall(r"`([^`]+)`", row[0]):
            found[command] = (dict(members), "MCP's own" in row[1])
    return found


def test_every_command_is_in_the_table() -> None:
    named = {command.split()[0] for command in table()}
    visible = {name for name, entry in COMMANDS.items() if not entry.hidden}
    assert visible - named == {"edit", "bridge"}
    assert set(table()) - GOES_ON - NEEDS_MORE - NEEDS_LOGIN - STARTS_ANOTHER - NEEDS_SYSTEMD == set(WORDS)


def test_every_document_has_the_documented_members(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No member is missing or undocumented, and lists occur where the table says so."""
    daemon = start({"test": TEST}, "--http", "127.0.0.1:0")
    daemon.wait_connected("test")
    log = daemon.home / "state" / "mcpd" / "daemon.log"
    log.write_text("a line\n")
    documented = table()
    monkeypatch.chdir(daemon.home)

    def mcpctl(words: str) -> Json:
        environ = {**daemon.environ, "MCPD_NO_START": "1", "PYTHONPATH": str(ROOT)}
        with (
            patch.dict("os.environ", environ, clear=True),
            patch("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a secret word"))),
        ):
            run(["--json", *words.split()], environ)
        out, err = capsys.readouterr()
        assert out, f"{words}: {err}"
        document = json.loads(out)  # exactly one document, and no other output
        assert isinstance(document, dict), words
        return document

    for command, words in WORDS.items():
        spelled = command.replace("TOOL", "echo").replace("SERVER", "test").replace("NAME", "zed")
        received = mcpctl(f"{spelled} {words}")
        members, more = documented[command]
        assert members.keys() <= received.keys() if more else members.keys() == received.keys(), (
            command,
            received,
        )
        for name, kind in members.items():
            assert (isinstance(received[name], list), isinstance(received[name], dict)) in (
                [(True, False)] if kind == "[…]" else [(False, True)] if kind == "{…}" else [(False, False)]
            ) or (not kind and name in ("daemon", "unit", "data")), (command, name, received[name])
