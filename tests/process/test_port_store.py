"""The listening socket of HTTP goes from one daemon to the next, through systemd and through mcpctl."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.process.port_store import PortStore, receiving_ports

TAKE = """
import os, stat, sys
from mcpd.process.port_store import PortStore
store = PortStore(sys.argv[1], {})
taken = store.take("127.0.0.1", int(sys.argv[2]))
store.keep(taken)
print(taken.getsockname() if taken else None, stat.S_ISCHR(os.fstat(0).st_mode))
"""


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"{tmp_path}/notify")
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        yield listener


def received(manager: socket.socket) -> tuple[bytes, list[int]]:
    text, descriptors, _, _ = socket.recv_fds(manager, 4096, 4)
    return text, descriptors


def take(socket_path: str, stdin: int, number: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", TAKE, socket_path, str(number)], stdin=stdin, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


@pytest.mark.parametrize(("wanted", "is_found"), [("the same", True), ("any", True), ("another", False)])
def test_next_daemon_gets_the_port_as_its_standard_input(
    tmp_path: Path, port: socket.socket, wanted: str, is_found: bool
) -> None:
    """It takes the socket only for the address that it wants, and has another standard input afterwards."""
    path, address = str(tmp_path / "mcpd.sock"), port.getsockname()
    number = {"the same": address[1], "any": 0, "another": address[1] + 1}[wanted]
    with receiving_ports(path) as stdin:
        store = PortStore(path, {})
        store.keep(port)
        assert store.leave()
        assert take(path, stdin, number) == f"{address if is_found else None} True"
    assert os.listdir(tmp_path) == []


def test_without_a_successor_nothing_is_left(tmp_path: Path, port: socket.socket) -> None:
    """`mcpctl daemon stop`, and a restart whose place for the port cannot be made."""
    store = PortStore(str(tmp_path / "mcpd.sock"), {})
    store.keep(port)
    assert not store.leave()
    long = str(tmp_path / ("x" * 200))
    with receiving_ports(long) as stdin:
        assert take(long, stdin, 0) == "None True"


def test_systemd_stores_the_port_and_gives_it_back(
    tmp_path: Path, port: socket.socket, manager: socket.socket
) -> None:
    store = PortStore(str(tmp_path / "mcpd.sock"), {})
    store.keep(port)
    text, [stored] = received(manager)
    assert text == b"FDSTORE=1\nFDNAME=stored-http"
    assert store.leave()
    inherited = {"mcpd": 99, "stored-http": stored}
    restarted = PortStore(str(tmp_path / "mcpd.sock"), inherited)
    assert inherited == {"mcpd": 99}, "the sockets of the socket unit are not its own"
    taken = restarted.take(*port.getsockname())
    assert taken is not None
    with taken:
        restarted.keep(taken)
        assert taken.getsockname() == port.getsockname()


def test_a_stored_port_that_is_not_wanted_is_closed(
    tmp_path: Path, port: socket.socket, manager: socket.socket
) -> None:
    """The setting `http` has changed, or was removed."""
    copy = os.dup(port.fileno())
    store = PortStore(str(tmp_path / "mcpd.sock"), {"stored-http": copy})
    assert store.take("127.0.0.1", port.getsockname()[1] + 1) is None
    store.keep(None)
    assert received(manager) == (b"FDSTOREREMOVE=1\nFDNAME=stored-http", [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copy)
