"""The daemon's own socket comes back if somebody removes it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from mcpd.api.own_socket import OwnSocket
from mcpd.support.instance_lock import AlreadyRunning, hold_instance_lock


async def greet(
    listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Send one byte to each client."""
    with listener:
        listener.setblocking(False)
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            with listener.accept()[0] as connection:
                connection.send(b"x")


async def greeting(path: Path) -> bytes:
    """Connect until that works, and return what the daemon sends."""
    while True:
        try:
            stream = await trio.open_unix_socket(path)
        except OSError:
            await trio.sleep(0.01)
        else:
            async with stream:
                return bytes(await stream.receive_some())


def remove(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))


@pytest.mark.parametrize("change", [remove, remove_directory, replace])
async def test_removed_socket_is_bound_again(change: Callable[[Path], None], tmp_path: Path) -> None:
    """With the lock, so that no second daemon starts. A connection that exists stays open."""
    path = tmp_path / "run" / "s"
    path.parent.mkdir(mode=0o700)
    with trio.fail_after(60), hold_instance_lock(str(path)) as lock:
        own = OwnSocket(str(path), lock)
        async with trio.open_nursery() as nursery:
            await nursery.start(own.serve, greet)
            assert await greeting(path) == b"x"
            for _ in range(2):
                change(path)
                assert await greeting(path) == b"x"
                assert own.is_in_place()
                with pytest.raises(AlreadyRunning), hold_instance_lock(str(path)):
                    pass
            nursery.cancel_scope.cancel()
        own.close()
    assert list(path.parent.iterdir()) == []


async def test_socket_is_bound_again_without_inotify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its limits may be reached. The path is looked at every few seconds then."""

    def watch_files(_: object) -> None:
        raise OSError(24, "too many inotify instances")

    monkeypatch.setattr("mcpd.api.own_socket.watch_files", watch_files)
    path = tmp_path / "s"
    with hold_instance_lock(str(path)) as lock:
        own = OwnSocket(str(path), lock)
        async with trio.open_nursery() as nursery:
            await nursery.start(own.serve, greet)
            path.unlink()
            await trio.sleep(6)
            assert own.is_in_place()
            nursery.cancel_scope.cancel()
        own.close()


async def test_socket_of_another_program_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the daemon stops."""
    path = tmp_path / "s"
    with trio.fail_after(60), hold_instance_lock(str(path)) as lock, socket.socket(socket.AF_UNIX) as other:
        own = OwnSocket(str(path), lock)
        async with trio.open_nursery() as nursery:
            await nursery.start(own.serve, greet)
            path.unlink()
            other.bind(str(path))
            other.listen()
            while "cannot be replaced" not in caplog.text:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        own.close()
        assert path.exists()
