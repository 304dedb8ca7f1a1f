"""The bridge's loop on real sockets: an editor on one side, on the other a daemon as the test wants it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ctl.bridge import loop
from ctl.bridge.daemon_starter import DaemonStarter
from tests.bridge.conftest import BOUND, Bridge, be_patient

Soon = Callable[[str, float], None]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ed", "version": "1"}}
WELCOME = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}


def fill(stream: socket.socket, line: bytes) -> int:
    """Send it again and again until nothing has been taken for a moment: bytes sent, within reason."""
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


def test_the_daemon_is_told_who_is_there(bridge: Bridge) -> None:
    """The editor's process and directory, which the daemon cannot see."""
    bridge.listen()
    asked = bridge.accept().next()
    assert asked["params"] == {"server": "s", "client": {"name": "ed", "pid": 42, "cwd": "/w"}}


def test_a_conversation_goes_on_with_the_next_daemon(bridge: Bridge) -> None:
    """Twice, with everything the editor relies on."""
    bridge.listen()
    bridge.editor.send(id=1, method="initialize", params=HELLO)
    daemon = bridge.attach()
    assert daemon.next()["method"] == "initialize"
    daemon.send(id=1, result=WELCOME)
    assert bridge.editor.next()["result"] == WELCOME
    bridge.editor.send(method="notifications/initialized")
    assert daemon.next()["method"] == "notifications/initialized"
    for _ in range(2):
        bridge.editor.send(id=2, method="tools/call", params={"name": "pay"})
        assert daemon.next()["id"] == 2
        daemon.close()
        lost = bridge.editor.next()
        assert (lost["id"], lost["error"]["data"]["may_have_run"]) == (2, True)
        daemon = bridge.attach()
        hello = daemon.next()
        assert hello["params"] == HELLO
        daemon.send(id=hello["id"], result=WELCOME)
        assert daemon.next()["method"] == "notifications/initialized"
        assert bridge.editor.next()["method"] == "notifications/tools/list_changed"
    bridge.editor.send(id=3, method="tools/list")
    assert daemon.next()["id"] == 3
    daemon.send(id=3, result={"tools": []})
    assert bridge.editor.next()["result"] == {"tools": []}


def test_what_is_asked_while_no_daemon_is_there_is_sent_to_the_next(bridge: Bridge) -> None:
    """In its order."""
    for key in range(3):
        bridge.editor.send(id=key, method="tools/call", params={"name": "x"})
    bridge.listen()
    daemon = bridge.attach()
    assert [daemon.next()["id"] for _ in range(3)] == [0, 1, 2]


def test_a_daemon_that_does_not_answer_is_left_for_another_connection(bridge: Bridge, soon: Soon) -> None:
    """It accepted, and then nothing."""
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
def test_a_daemon_that_will_not_have_us_is_quoted(bridge: Bridge, line: bytes, words: str) -> None:
    """At once, and the bridge stays."""
    bridge.listen()
    bridge.editor.send(id=1, method="initialize", params=HELLO)
    daemon = bridge.accept()
    daemon.next()
    daemon.raw(line)
    assert words in bridge.editor.next()["error"]["message"]
    bridge.editor.send(id=2, method="initialize", params=HELLO)
    daemon = bridge.attach()
    assert daemon.next()["id"] == 2


def test_without_a_daemon_a_handshake_is_answered_and_the_bridge_stays(bridge: Bridge, soon: Soon) -> None:
    """Whoever starts one later is served."""
    soon("ctl.bridge.pending_requests.HANDSHAKE_TIMEOUT", 0.2)
    bridge.editor.send(id=1, method="initialize", params=HELLO)
    error = bridge.editor.next()["error"]
    assert "no mcpd is running at" in error["message"]
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


def test_a_daemon_that_cannot_be_started_is_said_to_be_so_and_tried_again_later(
    tmp_path: Path, soon: Soon
) -> None:
    """The reason outlasts the attempts to connect that follow, and starting is not tried at each of them."""
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


def test_a_message_in_pieces_and_many_in_one_are_the_same(bridge: Bridge) -> None:
    """Pipes know no messages."""
    bridge.listen()
    daemon = bridge.attach()
    for byte in b'{"jsonrpc":"2.0","id":1,"method":"x"}\n':
        bridge.editor.raw(bytes([byte]))
    assert daemon.next()["id"] == 1
    bridge.editor.raw(b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"x"}\n' % key for key in range(2, 500)))
    assert [daemon.next()["id"] for _ in range(2, 500)] == [*range(2, 500)]


def test_a_line_that_is_too_long_is_left_out_and_the_next_is_read(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the stream is sound."""
    monkeypatch.setattr(bridge.loop._lines, "_limit", 1000)
    bridge.editor.raw(b'{"a":"' + b"x" * 300_000 + b'"}\n{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    assert "longer than the limit" in bridge.editor.next()["error"]["message"]
    assert bridge.editor.next()["id"] == 1


def test_a_slow_editor_stops_the_daemon_and_not_our_memory(bridge: Bridge) -> None:
    """What it does not read stays with the daemon, which has a limit of its own."""
    bridge.listen()
    daemon = bridge.attach()
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}\n' % (b"x" * 10_000)
    sent = fill(daemon.stream, note)
    assert sent < 4 * loop.HIGH_WATER_MARK
    while sent > 0:  # it was only paused: all of it arrives
        sent -= len(bridge.editor.stream.recv(1 << 20))
    bridge.editor.send(id=1, method="x")
    assert daemon.next()["id"] == 1


def test_a_slow_daemon_stops_the_editor_and_not_our_memory(bridge: Bridge) -> None:
    """The same the other way round."""
    bridge.listen()
    bridge.attach()
    line = b'{"jsonrpc":"2.0","method":"x","params":{"data":"%b"}}\n' % (b"x" * 10_000)
    assert fill(bridge.editor.stream, line) < 4 * loop.HIGH_WATER_MARK


def test_a_daemon_that_dies_while_the_editor_does_not_read_is_noticed_when_it_does(bridge: Bridge) -> None:
    """And until then nothing turns round and round."""
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


def test_it_ends_when_the_editor_closes_its_side(bridge: Bridge) -> None:
    """Nothing is under way, so at once; the daemon notices."""
    bridge.listen()
    daemon = bridge.attach()
    bridge.editor.stream.shutdown(socket.SHUT_WR)
    assert bridge.wait() < 5
    assert bridge.code == 0
    with pytest.raises(EOFError):
        daemon.next()


def test_an_answer_under_way_gets_a_moment_after_the_end_of_stdin(bridge: Bridge, soon: Soon) -> None:
    """`printf … | mcpctl bridge` is a use too. What does not come is answered with an error."""
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


def test_it_ends_with_its_parent(bridge: Bridge) -> None:
    """Another child of the editor's may hold the other end of our stdin."""
    bridge.listen()
    bridge.attach()
    bridge.gone.close()
    bridge.wait()
    assert bridge.code == 0


def test_it_ends_when_nobody_reads_its_answers(bridge: Bridge) -> None:
    """EPIPE is no error of ours."""
    bridge.editor.raw(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 1000)
    bridge.editor.close()
    bridge.wait()
    assert bridge.code == 0
