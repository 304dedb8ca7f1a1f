"""DaemonClient, without a command line."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ctl.cli.errors import TimedOut, UsageError
from ctl.daemon import process
from ctl.daemon.client import DaemonClient, Json
from mcpd.model.message_limit import MAX_MESSAGE
from tests.ctl.fake_daemon import FakeDaemon


def call(client: DaemonClient, params: Json) -> None:
    client.request("mcpd/call", params, timeout=0.5)


def stream(client: DaemonClient, params: Json) -> None:
    next(client.notifications("mcpd/call", params, until=time.monotonic() + 0.5))


@pytest.mark.parametrize("ask", [call, stream])
def test_send_timeout_when_the_daemon_reads_nothing(
    tmp_path: Path, ask: Callable[[DaemonClient, Json], None]
) -> None:
    """A stopped process accepts connections and as many bytes as the kernel buffers."""
    path = str(tmp_path / "d.sock")
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(path)
        deaf.listen()
        with DaemonClient(path) as client, pytest.raises(TimedOut, match="did not accept mcpd/call in time"):
            ask(client, {"text": "x" * (16 << 20)})
    assert time.monotonic() - began < 30


def test_oversized_request_is_refused_and_the_next_one_is_sent(daemon: FakeDaemon) -> None:
    daemon.answers["mcpd/call"] = {"success": True}
    with DaemonClient(str(daemon.path)) as client:
        with pytest.raises(UsageError, match="accepts at most 33554432") as refused:
            client.request("mcpd/call", {"text": "x" * MAX_MESSAGE})
        assert refused.value.to_json()["may_have_run"] is False
        assert client.request("mcpd/call").value == {"success": True}


def test_stop_succeeds_if_the_process_has_just_exited(daemon: FakeDaemon) -> None:
    """It exits between its answer and the lookup of its pid."""
    with subprocess.Popen(["true"]) as gone:
        pass
    daemon.answers["mcpd/version"] = {"pid": gone.pid}
    assert process.stop(str(daemon.path)) is False
