"""The bridge's loop on real sockets, between an editor and a daemon that the test plays."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from ctl.bridge import loop
from ctl.bridge.daemon_starter import DaemonStarter
from ctl.daemon.start_lock import start_lock
from tests.bridge.conftest import BOUND, Bridge, be_patient
from tests.processes import wait_until
from tests.stopwatch import within

Soon = Callable[[str, float], None]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ed", "version": "1"}}


def fill(stream: socket.socket, line: bytes) -> int:
    """Send the same bytes until the socket is full. Return the number of bytes sent."""
    stream.settimeout(0.7)
    sent = 0
    try:
        while sent < 50 * loop.HIGH_WATER_MARK:
            sent += stream.send(line[sent % len(line) :])
    except TimeoutError:
        pass
    finally:
        stream.settimeout(BOUND)
    return sent


def test_attach_identifies_the_editor(bridge: Bridge) -> None:
    """The editor's process and directory, which the daemon cannot see itself."""
    bridge.listen()
    asked = bridge.accept().next()
    assert asked["params"] == {"server": "s", "client": {"name": "ed", "pid": 42, "cwd": "/w"}}


def test_unresponsive_daemon_is_reconnected(bridge: Bridge, soon: Soon) -> None:
    """It accepts the connection and never answers."""
    bridge.listen()
    deaf = bridge.accept()
    deaf.next()
    for name in ("RETRY_DELAY", "MAX_RETRY_DELAY"):
        soon(f"ctl.bridge.daemon_link.{name}", BOUND)  # it dials again when the editor asks for something
    soon("ctl.bridge.daemon_link.ATTACH_TIMEOUT", 0.1)
    bridge.editor.send(id=0, method="ping")  # so that it looks at the clock
    with pytest.raises(EOFError):
        deaf.next()
    assert bridge.editor.next()["id"] == 0
    soon("ctl.bridge.daemon_link.ATTACH_TIMEOUT", BOUND)
    bridge.editor.send(id=1, method="tools/list")
    daemon = bridge.attach()
    assert daemon.next()["id"] == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the program at mcpd's socket is not mcpd"),
        (
            b'{"jsonrpc":"2.0","id":"mcpctl-bridge-attach","error":{"code":-32601,"message":"no method"}}\n',
            "may be older than this mcpctl",
        ),
        (
            b'{"jsonrpc":"2.0","id":"mcpctl-bridge-attach","error":{"code":-32602,"message":"no server s",'
            b'"data":{"code":"unknown_server"}}}\n',
            "no server s",
        ),
    ],
)
def test_refused_attach_is_reported_to_the_editor(bridge: Bridge, line: bytes, words: str) -> None:
    """Immediately, and the bridge keeps running."""
    bridge.listen()
    bridge.editor.send(id=1, method="initialize", params=HELLO)
    daemon = bridge.accept()
    daemon.next()
    daemon.raw(line)
    assert words in bridge.editor.next()["error"]["message"]
    bridge.editor.send(id=2, method="initialize", params=HELLO)
    daemon = bridge.attach()
    assert daemon.next()["id"] == 2


def test_handshake_without_a_daemon_fails_and_the_bridge_keeps_running(bridge: Bridge, soon: Soon) -> None:
    """A daemon that starts later is used."""
    soon("ctl.bridge.pending_requests.HANDSHAKE_TIMEOUT", 0.2)
    bridge.editor.send(id=1, method="initialize", params=HELLO)
    error = bridge.editor.next()["error"]
    assert "mcpd is not running at" in error["message"]
    assert error["data"]["code"] == "daemon_unreachable"
    bridge.editor.send(id=2, method="ping")
    assert bridge.editor.next()["result"] == {}
    bridge.listen()
    soon("ctl.bridge.pending_requests.HANDSHAKE_TIMEOUT", BOUND)
    bridge.editor.send(id=3, method="initialize", params=HELLO)
    assert bridge.attach().next()["id"] == 3


class FailingStarter(DaemonStarter):
    """Every attempt to start the daemon fails."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def begin(self, socket: str) -> None:
        self.attempts += 1
        self.fd = os.open(os.devnull, os.O_RDONLY)

    def outcome(self) -> str:
        self.stop()
        return "mcpd was started but exited with status 1"

    def stop(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def test_failed_start_is_reported_and_retried_later(tmp_path: Path, soon: Soon) -> None:
    """The reason outlasts later connection attempts, and not each of them starts a daemon."""
    be_patient(soon)
    soon("ctl.bridge.daemon_link.GRACE_AFTER_FAILED_START", 0.7)
    starter = FailingStarter()
    bridge = Bridge(tmp_path, starter)
    try:
        bridge.editor.send(id=1, method="initialize", params=HELLO)
        error = bridge.editor.next()["error"]
        assert error["message"].startswith("mcpd was started but exited with status 1")
        assert starter.attempts < 5
        bridge.listen()
        bridge.editor.send(id=2, method="initialize", params=HELLO)
        assert bridge.attach().next()["id"] == 2
    finally:
        bridge.close()


def test_bridge_waits_for_a_process_that_restarts_the_daemon(tmp_path: Path, soon: Soon) -> None:
    """It starts none itself, unless that process dies."""
    be_patient(soon)
    starter = FailingStarter()
    with ExitStack() as stack:
        with start_lock(str(tmp_path / "d.sock")):
            bridge = Bridge(tmp_path, starter)
            stack.callback(bridge.close)
            bridge.listen()
            bridge.editor.send(id=1, method="tools/list")
            first = bridge.attach()
            assert first.next()["id"] == 1
            bridge.stop_listening()
            first.close()
            bridge.editor.send(id=2, method="tools/list")
            wait_until(lambda: bridge.logged[-1:] == ["mcpd closed the connection"])
            assert bridge.editor.is_silent(0.5)
            assert starter.attempts == 0
            bridge.listen()
            second = bridge.attach()
            assert [second.next()["id"] for _ in range(2)] == [1, 2]
            bridge.stop_listening()
            second.close()
            bridge.editor.send(id=3, method="tools/list")
        wait_until(lambda: starter.attempts > 0)


def test_too_long_line_is_skipped_and_the_next_one_is_read(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the stream is valid."""
    monkeypatch.setattr(bridge.loop._lines, "_limit", 1000)
    long = b'{"method":"x","params":{"id":3,"a":"' + b"x" * 300_000 + b'"},"id":2}\n'
    bridge.editor.raw(long + b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    refused = bridge.editor.next()
    assert (refused["id"], refused["error"]["code"]) == (2, -32600)
    assert "more than 1000 bytes" in refused["error"]["message"]
    assert bridge.editor.next()["id"] == 1


def test_slow_editor_stops_reading_from_the_daemon(bridge: Bridge) -> None:
    """Unread messages stay with the daemon, which has its own limit."""
    bridge.listen()
    daemon = bridge.attach()
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}\n' % (b"x" * 10_000)
    sent = fill(daemon.stream, note)
    assert sent < 4 * loop.HIGH_WATER_MARK
    while sent > 0:  # it was only paused: all of it arrives
        sent -= len(bridge.editor.stream.recv(1 << 20))
    bridge.editor.send(id=1, method="x")
    assert daemon.next()["id"] == 1


def test_daemon_exit_is_noticed_when_the_editor_reads_again(bridge: Bridge) -> None:
    """Until then, the loop is not busy."""
    bridge.listen()
    daemon = bridge.attach()
    bridge.editor.send(id=1, method="tools/call", params={})
    daemon.next()
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}\n' % (b"x" * 10_000)
    fill(daemon.stream, note)
    daemon.close()
    while (message := bridge.editor.next()).get("id") != 1:
        assert message["method"] == "notifications/message"
    assert message["error"]["data"]["may_have_run"] is True
    bridge.attach()


def test_bridge_exits_when_the_editor_closes_stdin(bridge: Bridge) -> None:
    """Immediately, because no request is open; the daemon notices."""
    bridge.listen()
    daemon = bridge.attach()
    bridge.editor.stream.shutdown(socket.SHUT_WR)
    assert within(bridge.wait(), 5)
    assert bridge.code == 0
    with pytest.raises(EOFError):
        daemon.next()


def test_open_requests_get_a_grace_period_after_the_end_of_stdin(bridge: Bridge, soon: Soon) -> None:
    """As in `printf … | mcpctl bridge`. Missing responses become errors."""
    soon("ctl.bridge.loop.SHUTDOWN_GRACE", 5.0)
    bridge.listen()
    daemon = bridge.attach()
    bridge.editor.raw(b'{"jsonrpc":"2.0","id":1,"method":"x"}\n{"jsonrpc":"2.0","id":2,"method":"x"}')
    bridge.editor.stream.shutdown(socket.SHUT_WR)
    assert [daemon.next()["id"], daemon.next()["id"]] == [1, 2]
    daemon.send(id=1, result={})
    assert bridge.editor.next()["result"] == {}
    assert bridge.editor.next()["error"]["data"]["may_have_run"] is True
    bridge.wait()


def test_bridge_exits_with_its_parent(bridge: Bridge) -> None:
    """Another child of the editor may hold a copy of the pipe."""
    bridge.listen()
    bridge.attach()
    bridge.gone.close()
    bridge.wait()
    assert bridge.code == 0
