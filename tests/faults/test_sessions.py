"""MCP clients that disconnect, do not read, or cannot answer requests: for one server and for all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, Daemon, Json, fake, wait_until
from tests.faults.bystander import nothing_left, undisturbed
from tests.faults.measure import peak_memory
from tests.faults.test_clients import cancelled, is_closed
from tests.gateway.mcp_client import MODERN, McpClient, meta
from tests.stopwatch import stopwatch, within

__all__ = ["start"]

Start = Any
MIB = 1024 * 1024
VIEWS = {"one server": ({"server": "busy"}, ""), "aggregate": ({}, "busy__")}
"""How a client attaches, and what its tools' names begin with."""

KILLED = """
import json, socket, sys, time
path, count, attach, call = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:5])
held = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    one.sendall(json.dumps(attach).encode() + b"\\n" + json.dumps(call).encode() + b"\\n")
    held.append(one)
print("sent", flush=True)
time.sleep(600)
"""


def rpc(key: int, method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


@pytest.mark.parametrize("view", VIEWS)
def test_calls_of_killed_sessions_are_cancelled_upstream(start: Start, view: str) -> None:
    """A hundred cancellations reach the server within half a second; other clients are not affected."""
    daemon: Daemon = start({"busy": fake(), "calm": fake()})
    daemon.wait_connected("busy", "calm")
    watcher = daemon.client()
    watcher.call("busy", "progress", {"total": 0})
    attach, prefix = VIEWS[view]
    call = {"name": f"{prefix}progress", "arguments": {"total": 600}, "_meta": meta()}
    said = [json.dumps(each) for each in (rpc(1, "mcpd/attach", attach), rpc(2, "tools/call", call))]
    with nothing_left(daemon), undisturbed(daemon, "calm"), stopwatch() as watch:
        for round_ in (1, 2):
            argv = [sys.executable, "-I", "-c", KILLED, str(daemon.socket), "50", *said]
            with subprocess.Popen(argv, stdout=subprocess.PIPE) as victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == b"sent\n"
                wait_until(lambda: daemon.status("busy")["in_flight"] == 50, lambda: "not all were sent")
                os.kill(victim.pid, signal.SIGKILL)
                watch.restart()
            expected = 50 * round_
            wait_until(lambda: cancelled(watcher) == expected, lambda: f"{cancelled(watcher)} cancelled")  # noqa: B023
            assert within(watch.seconds, 0.5)
        assert daemon.status("busy")["in_flight"] == 0


@pytest.mark.parametrize("view", VIEWS)
def test_session_that_never_reads_is_closed_and_uses_little_memory(start: Start, view: str) -> None:
    """100 MB of unread results and log lines end only the client's own connection."""
    daemon: Daemon = start({"busy": fake(), "calm": fake()})
    daemon.wait_connected("busy", "calm")
    attach, prefix = VIEWS[view]
    reading = daemon.client()
    with peak_memory(daemon.pid) as usual:  # the memory that such results need for a client that reads them
        for _ in range(5):
            reading.call("busy", "big", {"mb": 1}, raw=True)
    slow = daemon.client()
    slow.request("mcpd/attach", **attach)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with peak_memory(daemon.pid) as peak, undisturbed(daemon, "calm"):
        params = {"name": f"{prefix}big", "arguments": {"mb": 1}, "_meta": meta()}
        calls = [rpc(n, "tools/call", params) for n in range(10, 110)]
        slow.socket.sendall(b"".join(json.dumps(call).encode() + b"\n" for call in calls))
        wait_until(lambda: "does not read its responses" in daemon.log, lambda: daemon.log)
        time.sleep(0.2)  # include the peak: calls in flight may still get results
    assert peak.bytes - usual.bytes < 8 * MIB, f"{(peak.bytes - usual.bytes) / MIB:.1f} MiB"
    assert is_closed(slow, BOUND)


def test_server_request_without_capable_client_fails_immediately(start: Start) -> None:
    """Server-initiated requests never hang: without clients, with incapable ones, and with many."""
    daemon: Daemon = start({"busy": fake("--era", "legacy"), "calm": fake()})
    daemon.wait_connected("busy", "calm")
    shell = daemon.client()
    form: Json = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    asked: list[tuple[Json, Json | None]] = [
        ({"method": "elicitation/create", "params": form}, {"action": "decline"}),
        ({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}, None),
        ({"method": "roots/list"}, {"roots": []}),
        ({"method": "no/such"}, None),
    ]
    with undisturbed(daemon, "calm"):
        for many in (0, 1, 8):
            clients = [McpClient(daemon, MODERN, server="busy", capabilities={}) for _ in range(many)]
            for question, expected in asked:
                callers = [client.send("tools/call", name="ask", arguments=question) for client in clients]
                with stopwatch() as watch:
                    received = json.loads(shell.call("busy", "ask", question)["output"])
                    assert within(watch.seconds, 0.1 + 0.1 * many)
                answers = [received]
                for client, key in zip(clients, callers, strict=True):
                    answers.append(json.loads(client.wait(key)["content"][0]["text"]))
                for answer in answers:
                    assert ("error" in answer) if expected is None else answer["result"] == expected
            for client in clients:
                client.line.close()
