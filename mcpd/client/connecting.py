"""`connect`: to the daemon of this user, which is started if necessary."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Never

import anyio

from mcpd.client.connection import is_own_socket, open_connection
from mcpd.client.errors import NotRunning
from mcpd.client.handlers import Handlers
from mcpd.client.mcpd_client import Mcp
from mcpd.files.paths import UnusablePath


class Unopened:
    """What `connect` returns. `use` says how to get a connection from it, for those who use it as if it were
    one."""

    _use = ""

    if not TYPE_CHECKING:  # checkers report all of this themselves

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(f"connect() alone is no connection, and has no {name!r}: {self._use}")

        def _refuse(self, *given: object) -> Never:
            raise TypeError(f"connect() was used in the wrong way: {self._use}")


class Connecting(Unopened, AbstractAsyncContextManager[Mcp]):
    """A connection that is opened by `async with`, or by `open`."""

    _use = "use `async with connect() as mcp:`, or `mcp = await connect().open()` and `await mcp.close()`"

    def __init__(self, open_mcp: Callable[[], Awaitable[Mcp]]) -> None:
        self._open_mcp = open_mcp
        self._mcp: Mcp | None = None
        """The connection of the block."""

    async def open(self) -> Mcp:
        """Connect without a block. `Mcp.close` ends the connection, in this task or in any other."""
        return await self._open_mcp()

    async def __aenter__(self) -> Mcp:
        if self._mcp is not None:
            raise RuntimeError("this connect() has been used already; call connect() again")
        self._mcp = await self._open_mcp()
        return self._mcp

    async def __aexit__(self, *raised: object) -> None:
        assert self._mcp is not None
        await self._mcp.close()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __await__ = Unopened._refuse


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    start: bool | None = None,
    client: str | None = None,
    profile: str | None = None,
    handlers: Handlers | None = None,
) -> Connecting:
    """Connect to the daemon, for the length of an `async with` block, or with `await connect().open()` until
    `await mcp.close()`. Different tasks may open and close the connection.

    By default, this is the daemon of this user (at `MCPD_SOCKET`, or at the usual path), and it is started if
    it is not running, as every `mcpctl` command does. With `start=False`, raises NotRunning instead.

    The daemon at another path, `socket`, must be running, otherwise raises NotRunning: a wrong path must not
    start a second daemon. With `start=True`, it is started, too, with the configuration and state of this
    user. A daemon that was started continues to run.

    `client` is the name of this program in `mcpctl clients`, in the call log, and for policies. By default,
    it is that of the program's file. With `profile`, only the servers and tools of this profile are listed
    and can be called. Raises Unknown if there is no such profile. `handlers` answer servers that ask for
    something during a call, and are told what servers log and change.
    """
    given = {"client": client, "profile": profile}
    identity = {name: value for name, value in given.items() if value is not None}
    path = None if socket is None else os.fspath(socket)
    return Connecting(partial(_open_mcp, path, start, identity, handlers))


async def _open_mcp(
    socket: str | None, start: bool | None, identity: Mapping[str, str], handlers: Handlers | None
) -> Mcp:
    with suppress(UnusablePath):  # the error is that of connecting
        start = socket is None or is_own_socket(socket) if start is None else start
    start_daemon = partial(_start_daemon, socket) if start else None
    opened = partial(
        open_connection,
        socket,
        identity=identity,
        reopens=True,
        start_daemon=start_daemon,
        handlers=handlers,
    )
    try:
        return Mcp(await opened())
    except NotRunning:
        if start_daemon is None:
            raise
    await start_daemon()
    return Mcp(await opened())


async def _start_daemon(socket: str | None) -> None:
    beside = Path(sys.executable).with_name("mcpctl")
    mcpctl = str(beside) if beside.exists() else shutil.which("mcpctl")
    if mcpctl is None:
        raise NotRunning("mcpd is not running, and mcpctl was not found to start it")
    where = [] if socket is None else ["--socket", socket]
    done = await anyio.run_process([mcpctl, *where, "daemon", "start"], check=False, stderr=subprocess.STDOUT)
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace").strip()
        raise NotRunning(f"mcpd could not be started: {output}")
