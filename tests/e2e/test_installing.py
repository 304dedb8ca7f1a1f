"""Package runners: downloads have a timeout of their own and are shown in the status."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import FAKE, Json

SLOW_NPX = """#!{python} -IS
import os, subprocess, sys, time
# As npm: what runs while it installs has a stdin of its own.
script = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
open({started!r}, "a").write("x")
while not os.path.exists({go!r}):
    time.sleep(0.02)
script.kill()
script.wait()
sys.exit(subprocess.call([sys.executable, "-I", "-S", {fake!r}, *sys.argv[2:]]))
"""


def slow_npx(home: Path, **timeouts: float) -> Json:
    """Return a definition with an `npx` that installs until the file `go` exists."""
    (home / "bin").mkdir()
    npx = home / "bin/npx"
    received = {"started": str(home / "started"), "go": str(home / "go"), "fake": str(FAKE)}
    npx.write_text(SLOW_NPX.format(python=sys.executable, **received))
    npx.chmod(npx.stat().st_mode | stat.S_IXUSR)
    return {"command": str(npx), "args": ["@scope/server"], "timeouts": timeouts}


@pytest.mark.slow
def test_install_is_shown_and_exempt_from_the_connect_timeout(start: Start, tmp_path: Path) -> None:
    """The download takes longer than the connect timeout allows, and one process does everything."""
    daemon = start({"it": slow_npx(tmp_path, connect=5.0)})
    status = daemon.wait_status("it", lambda status: "installing" in status["reason"])
    assert (status["status"], status["reason"]) == ("pending", "npx is installing or starting @scope/server")
    installing = status["pid"]
    with pytest.raises(AssertionError):  # the status stays the same for longer than the connect timeout
        daemon.wait_status(
            "it", lambda status: status["reason"] != "npx is installing or starting @scope/server", 6
        )
    (tmp_path / "go").touch()
    status = daemon.wait_status("it", lambda status: status["status"] == "connected")
    assert status["pid"] == installing
    assert status["last_error"] is None
    assert (tmp_path / "started").read_text() == "x"
    steps = daemon.client().request("mcpd/server", server="it")["negotiation"]
    assert steps[0]["step"] == "install"
    assert steps[0]["ms"] > 5000


def test_package_download_has_its_own_timeout(start: Start, tmp_path: Path) -> None:
    """The error names the setting that raises the timeout."""
    daemon = start({"it": slow_npx(tmp_path, install=0.5)})
    status = daemon.wait_status("it", lambda status: status["last_error"] is not None)
    assert status["last_error"]["kind"] == "timeout"
    assert (
        "npx is installing or starting @scope/server, and was not done after 0.5 s"
        in status["last_error"]["message"]
    )
    assert "timeouts.install" in status["last_error"]["message"]


def test_image_pull_is_exempt_from_the_connect_timeout(start: Start, tmp_path: Path) -> None:
    """A container is not a descendant of mcpd, so the output of the client shows the progress."""
    docker = tmp_path / "docker"
    go = tmp_path / "go"
    docker.write_text(
        "#!/bin/sh\necho \"Unable to find image 'mcp/time:latest' locally\" >&2\n"
        f"while ! [ -e {go} ]; do sleep 0.05; done\n"
        "echo 'Status: Downloaded newer image for mcp/time:latest' >&2\n"
        f"exec {sys.executable} -I -S {FAKE}\n"
    )
    docker.chmod(0o755)
    definition = {"command": str(docker), "args": ["run", "-i", "mcp/time"]}
    daemon = start({"it": definition})
    daemon.wait_status("it", lambda status: status["reason"] == "docker run is pulling or starting mcp/time")
    go.touch()
    daemon.wait_connected("it")
