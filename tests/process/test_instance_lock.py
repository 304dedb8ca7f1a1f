"""Exactly one daemon owns the socket, even after a crash or SIGKILL."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.process.instance_lock import (
    AlreadyRunning,
    find_lock_holder,
    hold_instance_lock,
    remove_stale_socket,
)
from tests.stopwatch import stopwatch, within

HOLDER = """
import socket, sys
from mcpd.process.instance_lock import hold_instance_lock, remove_stale_socket
path = sys.argv[1]
with hold_instance_lock(path):
    remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path); listener.listen()
    print("up", flush=True)
    sys.stdin.read()
"""


@contextmanager
def daemon(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


def run_daemon(path: Path) -> None:
    """Take the lock, bind the socket, and check that a client can connect."""
    with hold_instance_lock(str(path)):
        remove_stale_socket(str(path))
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind(str(path))
            listener.listen()
            client.connect(str(path))
        path.unlink()


def test_second_daemon_fails_immediately_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """It fails within 0.5 s with a helpful message."""
    path = tmp_path / "s"
    with daemon(path) as first:
        with stopwatch() as watch:
            with (
                pytest.raises(AlreadyRunning, match="mcpctl daemon stop") as caught,
                hold_instance_lock(str(path)),
            ):
                pass
            assert within(watch.seconds, 0.5)
        assert caught.value.pid == first.pid


def test_holder_is_found_without_its_socket(tmp_path: Path) -> None:
    """A killed daemon leaves its number behind, which may be another process by now."""
    path = tmp_path / "s"
    assert find_lock_holder(str(path)) is None
    with daemon(path) as first:
        path.unlink()
        assert find_lock_holder(str(path)) == first.pid
        first.kill()
        first.wait(30)
        assert find_lock_holder(str(path)) is None
    (tmp_path / "s.lock").write_text(f"{os.getpid()}\n")
    assert find_lock_holder(str(path)) is None


@pytest.mark.parametrize("left_lock", [b"", b"999999999\n", b"1\n", b"\xff\0 half"])
def test_daemon_starts_despite_stale_files(tmp_path: Path, left_lock: bytes) -> None:
    """SIGKILL leaves both the socket and the lock file. A living pid in the lock file has no effect."""
    path = tmp_path / "s"
    with daemon(path) as first:
        first.send_signal(signal.SIGKILL)
        first.wait(30)
    assert path.exists()
    (tmp_path / "s.lock").write_bytes(left_lock)
    run_daemon(path)
    assert list(tmp_path.iterdir()) == []


def test_socket_with_a_listener_is_never_removed(tmp_path: Path) -> None:
    """This holds even if a user deleted the lock file."""
    path = tmp_path / "s"
    with daemon(path) as first:
        (tmp_path / "s.lock").unlink()
        with hold_instance_lock(str(path)):
            with pytest.raises(AlreadyRunning) as caught:
                remove_stale_socket(str(path))
            assert caught.value.pid == first.pid
        assert path.is_socket()


def test_regular_file_at_the_socket_path_is_not_deleted(tmp_path: Path) -> None:
    """MCPD_SOCKET may contain a typo."""
    (tmp_path / "s").write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        remove_stale_socket(str(tmp_path / "s"))
    assert (tmp_path / "s").read_text() == "precious"


def test_lock_file_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """Otherwise, a planted link could truncate another file."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "s.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), hold_instance_lock(str(tmp_path / "s")):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


CONTENDER = """
import os, sys, time
from mcpd.process.instance_lock import AlreadyRunning, hold_instance_lock
inside = sys.argv[1] + ".inside"
wins = 0
end = time.monotonic() + 1
while time.monotonic() < end or wins < 10:
    try:
        with hold_instance_lock(sys.argv[1]):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))   # fails when two are inside
            wins += 1
            os.unlink(inside)
    except AlreadyRunning:
        pass
print(wins)
"""


def test_racing_daemons_never_run_together(tmp_path: Path) -> None:
    """Removing the lock file at exit must not let two daemons run."""
    contenders = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, str(tmp_path / "s")], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = [contender.communicate(timeout=60)[0] for contender in contenders]
    assert [contender.returncode for contender in contenders] == [0] * 4
    assert all(int(answer) >= 10 for answer in answers)
