"""Everyday use of a daemon through its socket: statuses, calls, toggles, sets of servers."""

from __future__ import annotations

import json
import socket

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import fake, in_flight, wait_until
from tests.stopwatch import within


@pytest.mark.parametrize("attach", [False, True])
def test_client_that_half_closes_gets_its_responses(start: Start, attach: bool) -> None:
    """`echo … | nc -U` is a complete client: it gets the response, then the connection is closed."""
    daemon = start({"fake": fake("--delay", "tools/call=0.3")})
    daemon.wait_connected("fake")
    client = daemon.client()
    params = {"name": "echo", "arguments": {"n": 1}}
    if attach:
        client.request("mcpd/attach", server="fake")
        key = client.send("tools/call", **params)
    else:
        key = client.send("mcpd/call", server="fake", tool="echo", arguments={"n": 1})
    client.socket.shutdown(socket.SHUT_WR)

    assert "1" in json.dumps(client.answer(key))
    with pytest.raises(EOFError):
        client.read_line()


def test_disconnect_after_half_close_cancels_the_call(start: Start) -> None:
    """The half-close before the disconnect makes no difference."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = daemon.client()
    client.send("mcpd/call", server="fake", tool="drop", arguments={})
    client.socket.shutdown(socket.SHUT_WR)
    in_flight(daemon, "fake", 1)
    client.close()
    took = wait_until(lambda: daemon.status("fake")["in_flight"] == 0, lambda: "it was not cancelled")
    assert within(took, 1)
