"""`connect`: to the daemon of this user, which is started if necessary."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio

from mcpd.client.connection import Connection, is_own_socket, open_connection
from mcpd.client.errors import NotRunning
from mcpd.client.mcpd_client import Mcp
from mcpd.files.paths import UnusablePath


@asynccontextmanager
async def connect(
    socket: str | None = None,
    *,
    start: bool | None = None,
    client: str | None = None,
    profile: str | None = None,
) -> AsyncIterator[Mcp]:
    """Connect to the daemon, for the length of an `async with` block.

    By default, this is the daemon of this user (at `MCPD_SOCKET`, or at the usual path), and it is started if
    it is not running, as every `mcpctl` command does. With `start=False`, raises NotRunning instead.

    The daemon at another path, `socket`, must be running, otherwise raises NotRunning: a wrong path must not
    start a second daemon. With `start=True`, it is started, too.

    `client` is the name of this program in `mcpctl clients`, in the call log, and for policies. By default,
    it is that of the program's file. With `profile`, only the servers and tools of this profile are listed
    and can be called. Raises Unknown if there is no such profile.
    """
    given = {"client": client, "profile": profile}
    identity = {name: value for name, value in given.items() if value is not None}
    with suppress(UnusablePath):  # the error is that of connecting
        start = socket is None or is_own_socket(socket) if start is None else start
    start_daemon = partial(_start_daemon, socket) if start else None

    def opened() -> AbstractAsyncContextManager[Connection]:
        return open_connection(socket, identity=identity, reopens=True, start_daemon=start_daemon)

    async with AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(opened())
        except NotRunning:
            if start_daemon is None:
                raise
            await start_daemon()
            connection = await stack.enter_async_context(opened())
        yield Mcp(connection)


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
