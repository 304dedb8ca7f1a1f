"""An upgrade while the bridge of an editor runs, and a library that is missing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ctl.daemon.process import daemon_pid
from mcpd.calls import schema_checker
from mcpd.calls.stages.validation import read_schemas
from tests.e2e.harness import fake, private_environment, wait_until
from tests.e2e.test_bridge import editor
from tests.faults.installed import ISOLATED, Installation, install
from tests.processes import gone

PROGRAM = schema_checker._PROGRAM


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return install(tmp_path / "venv")


async def test_calls_without_the_schema_library_are_not_validated_and_warn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library is loaded with the first call, because many daemons never get one; the server validates
    anyway.
    """
    monkeypatch.setattr(
        schema_checker, "_PROGRAM", f"import sys; sys.modules['jsonschema_rs'] = None; {PROGRAM}"
    )
    schema, _ = read_schemas(b'{"name":"it","inputSchema":{"type":"object","required":["a"]}}')
    assert schema is not None
    findings = await schema.check("s", b"{}")
    assert findings.problems == ()
    assert findings.note.startswith("the arguments were not checked against the tool's inputSchema: ")


def test_bridge_older_than_the_installation_starts_the_new_daemon(
    tmp_path: Path, installation: Installation
) -> None:
    """An editor stays open for weeks, and its bridge is as old as the editor's start.

    While nothing usable is installed, the editor gets an error with the reason; afterwards it gets a daemon.
    """
    environ = {**private_environment(tmp_path), **ISOLATED}
    config = tmp_path / "config" / "mcpd" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"mcpServers": {"fake": fake()}}))
    socket_path = str(tmp_path / "run" / "mcpd" / "mcpd.sock")
    with editor(environ, tmp_path, "--server", "fake", program=[installation.program("mcpctl")]) as ed:
        try:
            ed.begin()
            first = daemon_pid(socket_path)
            assert first is not None
            installation.upgrade()
            assert "result" in ed.ask(1, "tools/call", name="echo", arguments={"n": 1})
            assert "result" in ed.ask(2, "tools/list")
            os.kill(first, 15)
            wait_until(lambda: gone(first), lambda: "the daemon does not stop")
            refusal = ed.ask(3, "tools/list")["error"]["message"]
            assert "the attempt to start mcpd failed" in refusal
            installation.install_again()
            again = (ed.ask(key, "tools/list") for key in range(4, 100))  # it does not retry immediately
            assert any("result" in answer for answer in again)
            assert daemon_pid(socket_path) not in (None, first)
            assert ed.close()[0] == 0
        finally:
            if (pid := daemon_pid(socket_path)) is not None:
                os.kill(pid, 15)
                wait_until(lambda: gone(pid), lambda: "the daemon does not stop")
