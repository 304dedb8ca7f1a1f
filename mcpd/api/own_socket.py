"""The Unix socket that the daemon bound itself, and bound again if somebody removes it."""

from __future__ import annotations

import logging
import math
import os
import socket as sockets
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress
from typing import Protocol

import trio

from mcpd.api.listeners import bind_unix
from mcpd.support import paths
from mcpd.support.file_watcher import watch_files
from mcpd.support.instance_lock import AlreadyRunning, InstanceLock, remove_stale_socket

log = logging.getLogger("mcpd.listeners")

_RETRY_INTERVAL = 5.0
"""Seconds until another look, if a socket could not be bound again or changes are not reported."""


class Serve(Protocol):
    """Accepts clients of a listener until cancelled, and closes it (`listeners.serve`)."""

    def __call__(
        self, listener: sockets.socket, *, task_status: trio.TaskStatus[None]
    ) -> Awaitable[None]: ...


class OwnSocket:
    """A listening socket at a path. Bound on construction; the caller closes it.

    Programs that clean up runtime directories remove sockets that are in use. A client that connects later
    finds nothing at the path, although the daemon is running, so `serve` replaces the socket.
    """

    def __init__(self, path: str, lock: InstanceLock) -> None:
        """Raises AlreadyRunning, UnusablePath, or OSError."""
        self.path = path
        self._lock = lock
        self.listener = self._bind()

    def _bind(self) -> sockets.socket:
        remove_stale_socket(self.path)
        listener = bind_unix(self.path)
        found = os.lstat(self.path)
        self._identity = found.st_dev, found.st_ino
        return listener

    def is_in_place(self) -> bool:
        """Return whether the path still names the socket."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        """Close the socket, and remove its path unless that names something else by now. Never raises."""
        self.listener.close()
        if self.is_in_place():
            with suppress(OSError):
                os.unlink(self.path)

    async def serve(
        self, serve: Serve, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the clients of the socket until cancelled. If the path is removed or replaced, a new socket
        is bound there; connections that exist stay open.
        """

        async def serve_until_replaced(
            *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
        ) -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(serve, self.listener)
                    task_status.started(scope)

        async with trio.open_nursery() as nursery:
            current = await nursery.start(serve_until_replaced)
            task_status.started()
            async with aclosing(self._replacements()) as replacements:
                async for _ in replacements:
                    before, current = current, await nursery.start(serve_until_replaced)
                    before.cancel(reason="the socket was replaced")

    async def _replacements(self) -> AsyncGenerator[None]:
        """Replace the socket whenever it is gone, and yield after each time."""
        try:
            with watch_files([self.path]) as changes:
                while True:
                    in_place = self.is_in_place()  # also before the first change
                    if not in_place and (in_place := self._replace()):
                        yield
                    with trio.move_on_after(math.inf if in_place else _RETRY_INTERVAL):
                        await changes.next_change()
        except OSError as error:
            log.info("cannot watch %s (%s); looking for it at intervals", self.path, error)
        while True:
            await trio.sleep(_RETRY_INTERVAL)
            if not self.is_in_place() and self._replace():
                yield

    def _replace(self) -> bool:
        """Bind a new socket. Returns False, and logs why, if that is not possible."""
        try:
            paths.socket_directory(self.path)
            self._lock.renew()
            self.listener = self._bind()
        except (AlreadyRunning, paths.UnusablePath, OSError) as error:
            log.error("the socket %s is gone, and cannot be replaced: %s", self.path, error)
            return False
        log.warning("the socket %s was removed or replaced; listening on a new one", self.path)
        return True
