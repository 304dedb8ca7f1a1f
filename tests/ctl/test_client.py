"""The connection to the daemon, without a command line around it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ctl import daemon_process
from ctl.daemon_client import DaemonClient, Json
from ctl.errors import TimedOut
from tests.ctl.fake_daemon import FakeDaemon


def call(client: DaemonClient, params: Json) -> None:
    client.request("mcpd/call", params, timeout=0.5)


def stream(client: DaemonClient, params: Json) -> None:
    next(client.notifications("mcpd/call", params, until=time.monotonic() + 0.5))


@pytest.mark.parametrize("ask", [call, stream])
def test_a_daemon_that_takes_nothing_is_given_up_in_time(
    tmp_path: Path, ask: Callable[[DaemonClient, Json], None]
) -> None:
    """A stopped process accepts connections, and as much of a request as the kernel keeps."""
    path = str(tmp_path / "d.sock")
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(path)
        deaf.listen()
        with DaemonClient(path) as client, pytest.raises(TimedOut, match="did not accept mcpd/call in time"):
            ask(client, {"text": "x" * (16 << 20)})
    assert time.monotonic() - began < 30


def test_a_daemon_that_somebody_else_has_just_stopped_is_stopped(daemon: FakeDaemon) -> None:
    """Between its answer, which says who it is, and our look at that process."""
    with subprocess.Popen(["true"]) as gone:
        pass
    daemon.answers["mcpd/version"] = {"pid": gone.pid}
    assert daemon_process.stop(str(daemon.path)) is False
