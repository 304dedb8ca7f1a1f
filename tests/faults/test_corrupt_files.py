"""Corrupt state files: mcpd starts anyway and deletes nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import BOUND, Daemon, Json, fake, private_environment, running, wait_until
from tests.faults.test_daemon_life import assert_once_within
from tests.stopwatch import stopwatch

BROKEN: dict[str, bytes] = {
    "cut off": b'{"OLD": "old-sec',
    "random bytes": random.Random(20261122).randbytes(4096),
    "empty": b"",
    "another shape": b'[{"OLD": 3}]\n',
    "deeply nested": b"[" * 100_000,
}
SERVERS: Json = {"calm": fake(), "needy": fake(env={"IT": "${secret:OLD}"})}


def breaking(path: Path, how: str) -> None:
    """Replace the file, if any, with one that is broken in this way."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if how == "a directory":
        path.mkdir()
        return
    path.write_bytes(BROKEN.get(how, b'{"OLD": "old-secret-value"}'))
    path.chmod(0o644 if how == "open to others" else 0o600)


def kept(home: Path) -> list[Path]:
    """Write all files of an earlier daemon except the state file, which has tests of its own."""
    found = [
        path
        for place in ("state", "cache")
        for path in (home / place).rglob("*")
        if path.is_file() and path.name != "state.json"
    ]
    names = {path.name for path in found}
    assert names >= {"history.jsonl", "loud.log"} or names >= {"history.jsonl"}, names
    assert any(path.parent.name == "lists" for path in found), names
    return found


@pytest.mark.parametrize("how", ["random bytes", "a directory"])
def test_daemon_starts_with_corrupt_stored_files(tmp_path: Path, how: str) -> None:
    """History, logs, lists and secrets are all corrupt. The start takes 1 s; servers with secrets report the
    error.
    """

    def start_over_it(home: Path) -> float:
        secrets = home / "config" / "mcpd" / "secrets.json"
        breaking(secrets, "whole")
        with running(home, SERVERS) as daemon:
            daemon.wait_connected("calm", "needy")
            daemon.client().call("calm", "stderr", {"text": "a line for the log"})
            lists = home / "cache" / "mcpd" / "lists"
            wait_until(lambda: lists.is_dir() and len(list(lists.iterdir())) == 2, lambda: "no lists")
        for path in kept(home):
            breaking(path, how)
        breaking(secrets, how)
        before = secrets.read_bytes() if secrets.is_file() else b""
        with stopwatch() as watch, running(home, SERVERS) as daemon:
            took = watch.seconds
            _works(daemon, secrets, home, how)
        assert (secrets.read_bytes() if secrets.is_file() else b"") == before
        return took

    assert_once_within(1.0, start_over_it, tmp_path)


def _works(daemon: Daemon, secrets: Path, home: Path, how: str) -> None:
    daemon.wait_connected("calm")
    client = daemon.client()
    assert client.call("calm", "echo")["success"]
    assert "echo" in {tool["name"] for tool in client.request("mcpd/tools", server="calm")["tools"]}
    failed = daemon.wait_status("needy", lambda status: status["status"] == "failed")["last_error"]
    assert failed["kind"] == "secret"
    assert str(secrets) in failed["message"] or how == "empty"  # an empty file contains no secrets
    assert "old-sec" not in daemon.log
    client.call("calm", "stderr", {"text": "another line"})
    wait_until(  # on another pipe than the response
        lambda: any("another line" in line for line in client.request("mcpd/logs", server="calm")["lines"]),
        lambda: "its line is not in the log",
    )
    assert client.request("mcpd/history")["entries"]
    if how != "a directory":
        history = home / "state" / "mcpd" / "history.jsonl"
        wait_until(lambda: b'"daemon"' in history.read_bytes(), lambda: "history is not written")
        lists = home / "cache" / "mcpd" / "lists"
        # the names of files that are being written begin with a dot
        wait_until(
            lambda: any(b"echo" in path.read_bytes() for path in lists.glob("[!.]*")), lambda: "no lists"
        )
    assert "Traceback" not in daemon.log


@pytest.mark.slow
def test_daemon_starts_with_pipes_in_place_of_its_files(tmp_path: Path) -> None:
    """Nobody writes to the pipes, so reading one would never end."""
    secrets = tmp_path / "config" / "mcpd" / "secrets.json"
    breaking(secrets, "whole")
    with running(tmp_path, SERVERS) as daemon:
        daemon.wait_connected("calm", "needy")
        daemon.client().call("calm", "stderr", {"text": "a line for the log"})
        lists = tmp_path / "cache" / "mcpd" / "lists"
        wait_until(lambda: lists.is_dir() and len(list(lists.iterdir())) == 2, lambda: "no lists")
        daemon.client().request("mcpd/disable", server="needy")
        daemon.client().request("mcpd/enable", server="needy")
    for path in (secrets, tmp_path / "state" / "mcpd" / "state.json", *kept(tmp_path)):
        path.unlink()
        os.mkfifo(path, 0o600)
    with running(tmp_path, SERVERS) as daemon:
        daemon.wait_connected("calm")
        assert daemon.client().call("calm", "stderr", {"text": "another line"})["success"]
        failed = daemon.wait_status("needy", lambda status: status["status"] == "failed")["last_error"]
        assert f"{secrets}: it is not a regular file" in failed["message"]
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("how", ["random bytes", "empty", "open to others"])
def test_untrusted_token_file_keeps_the_port_closed(tmp_path: Path, how: str) -> None:
    """The daemon exits with 78 and one line that names the file and the fix; the file is not changed."""
    token = tmp_path / "state" / "mcpd" / "http-token"
    breaking(token, how)
    config = tmp_path / "config.json"
    config.write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "mcpd", "--config", str(config), "--http", "127.0.0.1:0"],
        env=private_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert str(token) in line
    assert "remove it" in line
    assert token.exists()
