"""Runs a bridge's loop in a thread; the test plays the editor and the daemon on sockets."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ctl.bridge.daemon_link import AttachTarget, DaemonLink
from ctl.bridge.daemon_starter import DaemonStarter
from ctl.bridge.loop import BridgeLoop
from tests.bridge.world import World
from tests.stopwatch import stopwatch

Json = dict[str, Any]
BOUND = 60.0
PATIENCE = (
    "ctl.bridge.daemon_link.ATTACH_TIMEOUT",
    "ctl.bridge.pending_requests.HANDSHAKE_TIMEOUT",
    "ctl.bridge.pending_requests.DAEMON_RESPONSE_TIMEOUT",
    "ctl.bridge.pending_requests.DAEMON_WAIT_TIMEOUT",
)
"""Timeouts of the bridge. They are long because a test that plays the daemon may be slow."""


class End:
    """One end of a stream of JSON lines."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        stream.settimeout(BOUND)
        self._buffer = b""

    def send(self, **message: Any) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self.stream.sendall(data)

    def next(self) -> Json:
        """Return the next message. Raises EOFError at the end."""
        while b"\n" not in self._buffer:
            portion = self.stream.recv(1 << 16)
            if not portion:
                raise EOFError
            self._buffer += portion
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Json = json.loads(line)
        return message

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Return whether nothing arrives for a moment. A slow peer may pass, a fast one never fails."""
        return not self._buffer and not select.select([self.stream], [], [], seconds)[0]

    def close(self) -> None:
        self.stream.close()


class Bridge:
    """The loop, the editor's end of its pipes, and a listener in place of the daemon."""

    def __init__(self, directory: Path, starter: DaemonStarter | None = None) -> None:
        self.path = str(directory / "d.sock")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._theirs = theirs
        self.editor = End(ours)
        self.gone, self._parent = socket.socketpair()
        self.logged: list[str] = []
        self.loop = BridgeLoop(
            theirs.fileno(),
            theirs.fileno(),
            lambda make_session: DaemonLink(
                make_session,
                lambda: self.path,
                AttachTarget(server="s", profile=None, client="ed", pid=42, cwd="/w"),
                starter,
                self.logged.append,
            ),
            self.logged.append,
            exit_fds=(self._parent.fileno(),),
        )
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._listener: socket.socket | None = None
        self._lives: list[End] = []
        self._thread.start()

    def _run(self) -> None:
        self.code = self.loop.run()
        self.loop.close()

    def listen(self) -> None:
        """Start to listen, so that the bridge can connect."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(BOUND)
        self._listener.bind(f"{self.path}.new")
        self._listener.listen()
        os.replace(f"{self.path}.new", self.path)  # a socket without a listener is that of a killed daemon

    def accept(self) -> End:
        """Return the bridge's next connection."""
        assert self._listener is not None
        end = End(self._listener.accept()[0])
        self._lives.append(end)
        return end

    def attach(self) -> End:
        """Return the bridge's next connection after a successful attach."""
        end = self.accept()
        asked = end.next()
        assert asked["method"] == "mcpd/attach"
        end.send(id=asked["id"], result={"server": "s", "profile": None})
        return end

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def wait(self, bound: float = BOUND) -> float:
        """Wait for the end of the loop. Return the seconds that it took."""
        with stopwatch() as watch:
            self._thread.join(bound)
            assert not self._thread.is_alive(), "the bridge does not end"
            return watch.seconds

    def close(self) -> None:
        self.editor.close()
        self.wait()
        self.stop_listening()
        for life in self._lives:
            life.close()
        for end in (self.gone, self._parent, self._theirs):
            end.close()


@pytest.fixture
def bridge(tmp_path: Path, soon: Callable[..., None]) -> Iterator[Bridge]:
    """A bridge with long timeouts, unless a test shortens them."""
    be_patient(soon)
    made = Bridge(tmp_path)
    yield made
    made.close()


def be_patient(soon: Callable[..., None]) -> None:
    for name in PATIENCE:
        soon(name, BOUND)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set a timeout: `soon("ctl.bridge.daemon_link.ATTACH_TIMEOUT", 0.1)`."""
    return lambda name, value: monkeypatch.setattr(name, value)


@pytest.fixture
def world() -> World:
    return World()
