"""The service manager protocol, with a real datagram socket and real socket activation."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from mcpd.process import systemd
from tests.processes import wait_until


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket of a service manager, by path and abstract."""
    address = f"{tmp_path}/notify" if request.param == "path" else f"\0mcpd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        yield listener


def test_ready_and_status_arrive_in_one_message(manager: socket.socket) -> None:
    """sd_notify(3): one variable per line."""
    assert systemd.notify(READY=1, STATUS="3 servers connected")
    assert manager.recv(4096) == b"READY=1\nSTATUS=3 servers connected"


def test_reloading_message_contains_a_timestamp(manager: socket.socket) -> None:
    """Type=notify-reload requires it with RELOADING=1; other types ignore it."""
    before = time.monotonic_ns() // 1000
    systemd.notify(RELOADING=1)
    lines = dict(line.split(b"=") for line in manager.recv(4096).split(b"\n"))
    assert lines[b"RELOADING"] == b"1"
    assert before <= int(lines[b"MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000


@pytest.mark.parametrize(
    "text", ["a\nMAINPID=1", "a\r\nREADY=1", "a\u2028STOPPING=1", "a\x0bWATCHDOG=trigger"]
)
def test_line_break_in_a_status_becomes_a_space(manager: socket.socket, text: str) -> None:
    """The status line may contain a name chosen by a server."""
    systemd.notify(STATUS=text)
    assert b"\n" not in manager.recv(4096)


def test_notifying_needs_no_new_descriptor(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog ended a daemon that had no descriptor left."""
    assert systemd.notify(WATCHDOG=1)
    monkeypatch.setattr(socket, "socket", Mock(side_effect=OSError(24, "Too many open files")))
    assert systemd.notify(WATCHDOG=1)


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NOTIFY_SOCKET may be unset, of an unknown kind, missing or not a socket: the result is False, without
    an exception."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not systemd.notify(READY=1)
    (tmp_path / "file").touch()
    for address in ("", "vsock:2:1234", f"{tmp_path}/gone", f"{tmp_path}/file", "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert not systemd.notify(READY=1)


def test_watchdog_interval_is_half_the_period_of_the_watched_process() -> None:
    assert systemd.watchdog_interval({"WATCHDOG_USEC": "30000000"}) == 15.0
    assert systemd.watchdog_interval({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}) == 15.0
    for environ in (
        {},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
    ):
        assert systemd.watchdog_interval(environ) is None


@pytest.mark.parametrize("pid", ["", "1", "x"])
def test_sockets_for_another_process_are_ignored(pid: str) -> None:
    """The parent process may have inherited the variables; they are removed in any case."""
    environ = {"LISTEN_PID": pid, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "OTHER": "kept"}
    assert systemd.listen_fds(environ) == {}
    assert environ == {"OTHER": "kept"}


ACTIVATED = """
import os, socket, sys
from mcpd.process.systemd import listen_fds
found = listen_fds()
names = sorted(found)
listener = socket.socket(fileno=found[names[0]])
left = [name for name in os.environ if name.startswith("LISTEN_")]
inheritable = [os.get_inheritable(fd) for fd in found.values()]
connection, _ = listener.accept()
connection.sendall(repr((names, left, inheritable)).encode())
"""


def listens(path: str) -> bool:
    """Return whether a process listens on the socket. The path exists before that. The state comes from the
    kernel, because connecting would start the program."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return any(line[-1] == path and int(line[3], 16) & ACCEPTS for line in lines)


ACCEPTS = 0x10000
"""The kernel's __SO_ACCEPTCON."""


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["-l", "{}/a", "--fdname=mcpd"], ["mcpd"]),
        (["-l", "{}/a", "-l", "{}/b", "-l", "{}/c", "--fdname=x:y:x"], ["x", "x.1", "y"]),
    ],
)
def test_activation_sockets_are_found_by_name(tmp_path: Path, options: list[str], names: list[str]) -> None:
    """systemd's own tool opens them. They are close-on-exec, and the variables are removed from the
    environment."""
    if not (activate := shutil.which("systemd-socket-activate")):
        pytest.skip("systemd-socket-activate is not installed")
    argv = [activate, *(word.format(tmp_path) for word in options), sys.executable, "-c", ACTIVATED]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as activated:
        try:
            wait_until(lambda: all(listens(word.format(tmp_path)) for word in options if "/" in word))
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(30)
                client.connect(f"{tmp_path}/a")
                answer = client.recv(4096).decode()
            assert answer == repr((names, [], [False] * len(names)))
        finally:
            activated.kill()
