"""An upgrade while mcpd and the bridge run: both continue, and users are told to restart."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ctl.daemon.process import daemon_pid
from mcpd.calls import schema_checker
from mcpd.calls.validation import read_schemas
from tests.e2e.harness import BOUND, Daemon, Json, fake, private_environment, running, wait_until
from tests.e2e.test_bridge import editor
from tests.faults.installed import ISOLATED, Installation, install, wait_code_is_read
from tests.processes import gone
from tests.soak.features import use_features

PROGRAM = schema_checker._PROGRAM


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return install(tmp_path / "venv")


@pytest.mark.slow
def test_daemon_keeps_working_after_its_files_were_replaced(tmp_path: Path) -> None:
    """The daemon imports or keeps at its start all modules that it needs later, so no ImportError occurs.

    Python's own modules are not replaced here. `make soak VARIANT=features` does this for an hour.
    """
    report = use_features(tmp_path, seconds=0)
    assert report.wrong == []
    assert (report.rounds, report.exit_code) == (2, 0)
    assert report.is_back, f"{report.before}, then {report.after}: {report.held}"


CONFIGURATIONS = {
    "config.yaml": "mcpServers:\n  # mine\n  calm:\n    command: {command}\n    args: {args}\n",
    "config.toml": "# mine\n[mcpServers.calm]\ncommand = {command}\nargs = {args}\n",
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_replaced_daemon_still_edits_its_configuration_in_every_format(
    tmp_path: Path, installation: Installation, name: str
) -> None:
    """The libraries that keep comments are large, so a daemon loads only those for the format of its own
    file.
    """
    words = {key: json.dumps(fake()[key]) for key in ("command", "args")}
    config = tmp_path / name
    config.write_text(CONFIGURATIONS[name].format(**words))
    with running(
        tmp_path, {}, "--config", str(config), environ=ISOLATED, program=[installation.program("mcpd")]
    ) as daemon:
        daemon.wait_connected("calm")
        before = config.read_text()
        wait_code_is_read(daemon.pid)
        installation.upgrade()
        client = daemon.client()
        client.request("mcpd/add", server="added", definition={**fake(), "env": {"A": "b"}}, save=True)
        assert client.call("added", "echo")["success"]
        assert "added" in config.read_text()
        client.request("mcpd/remove", server="added", save=True)
        assert config.read_text().strip() == before.strip()
        client.request("mcpd/reload")
        assert "Import" not in daemon.log


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
    findings = await schema.check(b"{}")
    assert findings.problems == ()
    assert findings.note.startswith("the arguments were not checked against the tool's inputSchema: ")


def doctor(daemon: Daemon, python: str) -> Json:
    done = subprocess.run(
        [python, "-m", "ctl", "doctor", "--json", "--no-shell"],
        env={**daemon.environ, "MCPD_SOCKET": daemon.socket, "MCPD_CONFIG": str(daemon.config)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=2 * BOUND,
    )
    found: Json = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    return found


def test_doctor_says_to_restart_the_daemon(tmp_path: Path, installation: Installation) -> None:
    """Also after the same version was installed again with the packed timestamps."""
    with running(tmp_path, {}, environ=ISOLATED, program=[installation.program("mcpd")]) as daemon:
        assert doctor(daemon, installation.python)["installation"]["result"] == "ok"
        installation.install_again()
        found = doctor(daemon, installation.python)["installation"]
        assert (found["result"], found["next"]) == ("warning", "mcpctl daemon restart")


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
            wait_code_is_read(first)
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
