"""The connection to the daemon, without a command line around it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from ctl.client import LocalClient
from ctl.errors import TimedOut


@pytest.mark.parametrize("how", ["call", "stream"])
def test_a_daemon_that_takes_nothing_is_given_up_in_time(tmp_path: Path, how: str) -> None:
    """A stopped process accepts connections, and as much of a request as the kernel keeps."""
    path = str(tmp_path / "d.sock")
    params = {"text": "x" * (16 << 20)}
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(path)
        deaf.listen()
        with LocalClient(path) as client, pytest.raises(TimedOut, match="did not take mcpd/call in time"):
            if how == "call":
                client.call("mcpd/call", params, timeout=0.5)
            else:
                next(client.stream("mcpd/call", params, until=time.monotonic() + 0.5))
    assert time.monotonic() - began < 30
