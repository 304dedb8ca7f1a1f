"""Run the real daemon in private directories, with a plain client for its socket."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from tests.stopwatch import stopwatch

FAKE = Path(__file__).parent.parent / "servers" / "fake.py"
BOUND = 60.0
"""Seconds that any single wait of a test may take: for the hopeless, not for the slow."""

Json = dict[str, Any]


class Refused(Exception):
    """The daemon answered with an error; `body` is the JSON-RPC error object."""

    def __init__(self, body: Json) -> None:
        super().__init__(body["message"])
        self.body = body

    @property
    def code(self) -> str:
        return str(self.body["data"]["code"])


class Client:
    """One connection. `request` waits for its response; `send` and `answer` allow other steps in between.

    An answer that is missing after `bound` seconds raises TimeoutError, also if notifications keep coming.
    """

    def __init__(self, path: str, bound: float = BOUND) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(bound)
        self._bound = bound
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self._ids = itertools.count(1)
        self._buffer = b""
        self._answers: dict[object, Json] = {}
        self.notifications: list[Json] = []

    def request(self, method: str, **params: Any) -> Any:
        return self.answer(self.send(method, **params))

    def call(self, server: str, tool: str, arguments: Json | None = None, **more: Any) -> Any:
        """Make an `mcpd/call`. Raises Refused."""
        return self.request("mcpd/call", server=server, tool=tool, arguments=arguments or {}, **more)

    def initialize(self, version: str = "2025-11-25", **capabilities: Json) -> None:
        """Shake hands as a client of the legacy era."""
        me = {"name": "test", "version": "1"}
        self.request("initialize", protocolVersion=version, capabilities=capabilities, clientInfo=me)
        self.notify("notifications/initialized")

    def send(self, method: str, **params: Any) -> int:
        key = next(self._ids)
        self.send_raw(json.dumps({"jsonrpc": "2.0", "id": key, "method": method, "params": params}).encode())
        return key

    def send_raw(self, line: bytes) -> None:
        self.socket.sendall(line + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        self.send_raw(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def answer(self, key: object) -> Any:
        end = time.monotonic() + self._bound
        while key not in self._answers:
            if time.monotonic() > end:
                raise TimeoutError(f"no answer to request {key} after {self._bound} s")
            self._take(self.read_line())
        message = self._answers.pop(key)
        if "error" in message:
            raise Refused(message["error"])
        return message["result"]

    def next_notification(self) -> Json:
        while not self.notifications:
            self._take(self.read_line())
        return self.notifications.pop(0)

    def read_line(self) -> bytes:
        """Return the next line unparsed. Raises EOFError when the daemon has closed the connection."""
        while b"\n" not in self._buffer:
            portion = self.socket.recv(1 << 20)
            if not portion:
                raise EOFError("the daemon closed the connection")
            self._buffer += portion
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _take(self, line: bytes) -> None:
        message = json.loads(line)
        if "method" in message:
            self.notifications.append(message)
        else:
            self._answers[message["id"]] = message

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@attrs.define(eq=False)
class Daemon:
    """A running `mcpd`, its directories, and shortcuts for frequent requests of tests."""

    process: subprocess.Popen[bytes]
    home: Path
    socket: str
    config: Path
    environ: Mapping[str, str]
    _clients: list[Client] = attrs.field(factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.home / "daemon.log").read_text("utf-8", "replace")

    def client(self, bound: float = BOUND) -> Client:
        """Open a connection, which is closed with the daemon at the latest."""
        client = Client(self.socket, bound)
        self._clients.append(client)
        return client

    def status(self, server: str) -> Json:
        with Client(self.socket) as client:
            for status in client.request("mcpd/status")["servers"]:
                if status["name"] == server:
                    return dict(status)
        raise LookupError(server)

    def wait_status(self, server: str, is_so: Callable[[Json], bool], bound: float = BOUND) -> Json:
        """Return the first status that satisfies `is_so`, from the daemon's own events."""
        deadline = time.monotonic() + bound
        with Client(self.socket, bound) as client:
            client.send("mcpd/events", servers=[server])
            last: Json = {}
            while (left := deadline - time.monotonic()) > 0:
                client.socket.settimeout(left)
                try:
                    event = client.next_notification()["params"]["event"]
                except TimeoutError:
                    break
                last = event.get("status") or {}
                if last and is_so(last):
                    return last
        raise AssertionError(f"{server} did not get there within {bound} s; last: {last}\n{self.log[-3000:]}")

    def wait_connected(self, *servers: str, bound: float = BOUND) -> None:
        for server in servers:
            self.wait_status(server, lambda status: status["status"] == "connected", bound)

    def wait_process(self, server: str) -> int:
        """Return the pid of a server that is starting. No event announces it, so this polls the status."""
        pid: int | None = None

        def is_running() -> bool:
            nonlocal pid
            pid = self.status(server)["pid"]
            return pid is not None

        wait_until(is_running, lambda: f"{server} has no process: {self.status(server)}")
        assert pid is not None
        return pid

    def guardian(self) -> int:
        """Return the pid of the daemon's guardian process."""
        for child in children(self.pid):
            with suppress(OSError):  # a process that has just ended
                if b"mcpd-guardian" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        raise LookupError("no guardian")

    def mcpctl(
        self, *argv: str, stdin: str = "", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run mcpctl, which starts no other daemon."""
        own = {"MCPD_SOCKET": self.socket, "MCPD_CONFIG": str(self.config), "MCPD_NO_START": "1"}
        return subprocess.run(
            [sys.executable, "-m", "ctl", *argv],
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **self.environ, **own},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * BOUND,
        )

    def stop(self, bound: float = BOUND) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(bound)


def in_flight(daemon: Daemon, server: str, count: int) -> None:
    """Wait until exactly `count` calls have been sent to the server."""
    wait_until(lambda: daemon.status(server)["in_flight"] == count, lambda: str(daemon.status(server)))


def fake(*flags: str, **definition: Any) -> Json:
    """Return a definition of the scripted server of tests/servers/fake.py."""
    return {"command": sys.executable, "args": ["-I", "-S", str(FAKE), *flags], **definition}


def recorded_notifications(home: Path) -> tuple[Path, dict[str, str]]:
    """Return a file that gets all notifications on the desktop, and the environment for that."""
    programs, shown = home / "programs", home / "shown"
    programs.mkdir()
    shown.touch()
    (programs / "notify-send").write_text(f'#!/bin/sh\necho "$*" >> {shown}\n')
    (programs / "notify-send").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return shown, {"PATH": path, "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}


def impatient(**changes: Any) -> Json:
    """Return a short restart backoff, for tests that wait for several restarts."""
    return {"base": 0.01, "cap": 0.05, "intensity": 100000, **changes}


@contextmanager
def running(
    home: Path,
    servers: Mapping[str, Json],
    *flags: str,
    settings: Json | None = None,
    top_level: Json | None = None,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "mcpd"),
) -> Iterator[Daemon]:
    """Run a private daemon. Leaving the block stops it and asserts that no process is left."""
    config = home / "config.json"
    config.write_text(json.dumps({"mcpServers": servers, "settings": settings or {}, **(top_level or {})}))
    env = private_environment(home) | dict(environ or {})
    socket_path = str(home / "run" / "mcpd" / "mcpd.sock")
    with (home / "daemon.log").open("ab") as log:
        process = subprocess.Popen(
            [*program, "--config", str(config), *flags],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
        )
    daemon = Daemon(process, home, socket_path, config, env)
    try:
        wait_for_socket(daemon)
        marks = instance_marks(daemon)
        yield daemon
    finally:
        for client in daemon._clients:
            client.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(BOUND)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(BOUND)
                raise AssertionError(f"the daemon did not stop\n{daemon.log[-3000:]}") from None
    assert_gone(marks)


def private_environment(home: Path) -> dict[str, str]:
    """Return an environment with private XDG directories and without inherited MCPD_ variables."""
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("MCPD_", "MCPCTL_", "XDG_"))
    }
    return kept | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
    }


def wait_for_socket(daemon: Daemon, bound: float = BOUND) -> None:
    deadline = time.monotonic() + bound
    while time.monotonic() < deadline:
        if daemon.process.poll() is not None:
            raise AssertionError(f"mcpd exited with {daemon.process.returncode}\n{daemon.log[-3000:]}")
        try:
            Client(daemon.socket).close()
        except OSError:
            time.sleep(0.02)  # there is no event to wait for, so poll the socket
        else:
            return
    raise AssertionError(f"mcpd did not listen within {bound} s\n{daemon.log[-3000:]}")


def instance_marks(daemon: Daemon) -> str:
    with Client(daemon.socket) as client:
        return str(client.request("mcpd/status")["daemon"]["instance"])


def marked(instance: str) -> list[int]:
    """Return every process with the daemon's mark, except zombies."""
    needle = f"MCPD_INSTANCE={instance}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    needle in (entry / "environ").read_bytes()
                    and b") Z " not in (entry / "stat").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def assert_gone(instance: str, bound: float = BOUND) -> None:
    """Assert that no process of the daemon is left, immediately or within `bound` seconds."""
    wait_until(lambda: not marked(instance), lambda: f"left behind: {describe(marked(instance))}", bound)


def command_lines(daemon: Daemon) -> str:
    """Return the command lines of the daemon and of its processes."""
    ours = {daemon.pid, *children(daemon.pid), *marked(instance_marks(daemon))}
    return "\n".join(describe(sorted(ours)))


def describe(pids: Sequence[int]) -> list[str]:
    received = []
    for pid in pids:
        try:
            received.append(
                f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
            )
        except OSError:
            continue
    return received


def children(pid: int) -> list[int]:
    """Return the children of all threads: the kernel lists a child with the thread that forked it."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found += map(int, file.read_text().split())
    return found


def wait_until(is_so: Callable[[], bool], otherwise: Callable[[], str], bound: float = BOUND) -> float:
    """Poll for a condition without an event, such as the process table. Return the seconds."""
    with stopwatch() as watch:
        deadline = time.monotonic() + bound
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(otherwise())
            time.sleep(0.01)
        return watch.seconds
