"""Unusable paths: rejected in one line with exit code 78, or not needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import BOUND, fake, private_environment, running, wait_until


def too_long(home: Path) -> dict[str, str]:
    return {"MCPD_SOCKET": f"{home}/{'x' * 108}/mcpd.sock"}


def a_link(home: Path) -> dict[str, str]:
    (home / "elsewhere").mkdir()
    (home / "run" / "mcpd").symlink_to(home / "elsewhere")
    return {}


def open_to_others(home: Path) -> dict[str, str]:
    (home / "run" / "mcpd").mkdir()
    (home / "run" / "mcpd").chmod(0o777)
    return {}


REFUSED: dict[str, tuple[Callable[[Path], dict[str, str]], str]] = {
    "longer than a socket's path may be": (too_long, "set MCPD_SOCKET to a shorter path"),
    "a symbolic link": (
        a_link,
        "is a symbolic link; use the directory it points to instead: set MCPD_SOCKET to a path in ",
    ),
    "open to others": (open_to_others, "other users can write to"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsafe_socket_directory_is_refused(tmp_path: Path, what: str) -> None:
    """Exit 78 (EX_CONFIG) with one line that names the fix; nothing is started or changed."""
    environ = private_environment(tmp_path)
    make, words = REFUSED[what]
    environ |= make(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "mcpd", "--config", str(config)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 78, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("mcpd: ")
    assert words in line
    assert not list((tmp_path / "run").rglob("*.sock"))


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"])
def test_unwritable_state_directory_is_reported_and_tolerated(tmp_path: Path, variable: str) -> None:
    """A read-only home: calls work; toggles, logs and history last as long as the daemon."""
    nowhere = {variable: "/proc/self/none"}
    if variable == "HOME":  # with no other variable that sets a path
        nowhere |= dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "")
    with running(tmp_path, {"calm": fake()}, environ=nowhere) as daemon:
        daemon.wait_connected("calm")
        client = daemon.client()
        client.call("calm", "stderr", {"text": "a line"})
        client.request("mcpd/disable", server="calm")
        client.request("mcpd/enable", server="calm")
        assert client.call("calm", "echo")["success"]
        if variable in ("XDG_STATE_HOME", "HOME"):
            wait_until(lambda: "is lost when mcpd restarts" in daemon.log, lambda: daemon.log)
            wait_until(lambda: daemon.status("calm")["warnings"], lambda: "no warning that its log is lost")
        assert "Traceback" not in daemon.log
        assert daemon.stop() == 0
