"""Exactly one daemon owns the socket, also after a crash or SIGKILL."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.support.instance_lock import AlreadyRunning, hold_instance_lock, remove_stale_socket
from tests.stopwatch import stopwatch

HOLDER = """
import socket, sys
from mcpd.support.instance_lock import hold_instance_lock, remove_stale_socket
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


def be_the_daemon(path: Path) -> None:
    """Take the lock, bind, and prove that a client gets through."""
    with hold_instance_lock(str(path)):
        remove_stale_socket(str(path))
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind(str(path))
            listener.listen()
            client.connect(str(path))
        path.unlink()


def test_second_daemon_fails_immediately_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """E5: within half a second, with words that help."""
    path = tmp_path / "s"
    with daemon(path) as first:
        with stopwatch() as watch:
            with (
                pytest.raises(AlreadyRunning, match="mcpctl daemon stop") as caught,
                hold_instance_lock(str(path)),
            ):
                pass
            assert watch.seconds < 0.5
        assert caught.value.pid == first.pid


def test_after_sigkill_the_next_daemon_starts_over_what_is_left(tmp_path: Path) -> None:
    """Socket and lock file both stay behind a SIGKILL."""
    path = tmp_path / "s"
    with daemon(path) as first:
        first.send_signal(signal.SIGKILL)
        first.wait(30)
    assert path.exists()
    assert (tmp_path / "s.lock").exists()
    be_the_daemon(path)
    assert list(tmp_path.iterdir()) == []


LEFT_OVER_SOCKETS = ["none", "stale", "stale-and-unreadable", "dangling-link"]
LEFT_OVER_LOCKS = ["none", "empty", "dead-pid", "living-pid", "garbage"]


@pytest.mark.parametrize("round_", range(5))
@pytest.mark.parametrize(
    ("left_socket", "left_lock"), list(itertools.product(LEFT_OVER_SOCKETS, LEFT_OVER_LOCKS))
)
def test_daemon_starts_despite_any_stale_files(
    tmp_path: Path, left_socket: str, left_lock: str, round_: int
) -> None:
    """E3: a hundred of a hundred, each within a second. A living pid in the file means nothing."""
    path = tmp_path / "s"
    if left_socket.startswith("stale"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        if left_socket.endswith("unreadable"):
            path.chmod(0)
    lock = {"empty": b"", "dead-pid": b"999999999\n", "living-pid": b"1\n", "garbage": b"\xff\0 half"}
    if left_lock in lock:
        (tmp_path / "s.lock").write_bytes(lock[left_lock])
    with stopwatch() as watch:
        if left_socket == "dangling-link":
            path.symlink_to(tmp_path / "nowhere")
            with pytest.raises(FileExistsError, match="not a socket"):
                be_the_daemon(path)
            path.unlink()
        be_the_daemon(path)
        assert watch.seconds < 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_somebody_listens_on_is_never_removed(tmp_path: Path) -> None:
    """Even when the lock file was deleted by hand."""
    path = tmp_path / "s"
    with daemon(path) as first:
        (tmp_path / "s.lock").unlink()
        with hold_instance_lock(str(path)):
            with pytest.raises(AlreadyRunning) as caught:
                remove_stale_socket(str(path))
            assert caught.value.pid == first.pid
        assert path.is_socket()


def test_a_daemon_too_busy_to_accept_counts_as_alive(tmp_path: Path) -> None:
    """A full queue of connections answers EAGAIN, which is not a refusal."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(path))
        with pytest.raises(AlreadyRunning):
            remove_stale_socket(str(path))
        for one in waiting:
            one.close()


def test_a_file_in_the_sockets_place_is_not_deleted(tmp_path: Path) -> None:
    """Somebody's file under a mistyped MCPD_SOCKET."""
    (tmp_path / "s").write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        remove_stale_socket(str(tmp_path / "s"))
    assert (tmp_path / "s").read_text() == "precious"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Else a planted link would have another file truncated."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "s.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), hold_instance_lock(str(tmp_path / "s")):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


CONTENDER = """
import os, sys, time
from mcpd.support.instance_lock import AlreadyRunning, hold_instance_lock
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
    """The lock file is removed on leaving, which must not let a second one in beside the first."""
    contenders = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, str(tmp_path / "s")], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = [contender.communicate(timeout=60)[0] for contender in contenders]
    assert [contender.returncode for contender in contenders] == [0] * 4
    assert all(int(answer) >= 10 for answer in answers)


def test_leaving_frees_the_lock_and_leaves_no_descriptor(tmp_path: Path) -> None:
    """A daemon embedded in a test is started many times in one process."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        be_the_daemon(tmp_path / "s")
    assert len(os.listdir("/proc/self/fd")) == before
