"""`connect`: to the daemon of this user, which is started if necessary, or to servers given ad hoc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import anyio

from mcpd.client.connection import Connection, is_own_socket, open_connection
from mcpd.client.errors import NotRunning
from mcpd.client.mcpd_client import Mcp
from mcpd.client.private_daemon import open_private_daemon
from mcpd.support.paths import UnusablePath

AD_HOC_NAME = "server"
"""The name of the server of `connect(command=…)` and `connect(url=…)`."""


def connect(
    socket: str | None = None,
    *,
    start: bool | None = None,
    client: str | None = None,
    profile: str | None = None,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    servers: Mapping[str, Mapping[str, object]] | None = None,
) -> Connecting:
    """Connect to the daemon, for the length of an `async with` block.

    By default, this is the daemon of this user (at `MCPD_SOCKET`, or at the usual path), and it is started if
    it is not running, as every `mcpctl` command does. With `start=False`, raises NotRunning instead.

    The daemon at another path, `socket`, must be running, otherwise raises NotRunning: a wrong path must not
    start a second daemon. With `start=True`, it is started, too.

    `client` is the name of this program in `mcpctl clients`, in the call log, and for policies. By default,
    it is that of the program's file. With `profile`, only the servers and tools of this profile are listed
    and can be called. Raises Unknown if there is no such profile.

    `command` (with `env` and `cwd`) or `url` (with `headers`) connects to one server that is not configured,
    under the name `server`. `servers` does so with several definitions, as in a configuration file. They run
    in a daemon of their own, which ends with the block. Raises NotReady or LoginRequired with the reason if
    none of them can be started. Raises TypeError if the arguments contradict each other.
    """
    definitions = _ad_hoc_definitions(command, env, cwd, url, headers, servers)
    if definitions is not None and socket is not None:
        raise TypeError("connect() takes either a socket or servers to start, not both")
    if definitions is not None and not (client is None and profile is None):
        raise TypeError("`client` and `profile` belong to the configuration, not to servers to start")
    if definitions is not None:
        return Connecting(_connected_ad_hoc(definitions))
    given = {"client": client, "profile": profile}
    identity = {name: value for name, value in given.items() if value is not None}
    return Connecting(_connected(socket, identity, start=start))


class Connecting:
    """The result of `connect`. `async with` connects, and closes the connection at its end."""

    def __init__(self, connection: AbstractAsyncContextManager[Mcp]) -> None:
        self._connection = connection

    async def __aenter__(self) -> Mcp:
        return await self._connection.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._connection.__aexit__(kind, error, trace)

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "use `async with connect()` in an async function, or `from mcpd.client.sync import connect` "
            "in a program without async functions"
        )

    def __exit__(self, *_: object) -> None: ...

    def __await__(self) -> NoReturn:
        raise TypeError("use `async with connect() as mcp`: the connection is closed at the end of the block")

    if not TYPE_CHECKING:  # so that a type checker reports the attribute

        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(name, "async with connect() as mcp")


def refuse_attribute(name: str, block: str) -> NoReturn:
    """Refuse an attribute of the result of `connect`. Raises TypeError with advice if it is one of `Mcp`."""
    if name == "connection" or (hasattr(Mcp, name) and not name.startswith("_")):
        raise TypeError(
            f"connect() has not connected yet, so there is no {name!r}: write `{block}:`, and use `mcp` in it"
        )
    raise AttributeError(f"'Connecting' object has no attribute {name!r}")


def _ad_hoc_definitions(
    command: Sequence[str] | None,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    url: str | None,
    headers: Mapping[str, str] | None,
    servers: Mapping[str, Mapping[str, object]] | None,
) -> Mapping[str, Mapping[str, object]] | None:
    """Return the definitions by name; None if there are none, so that the user's daemon is meant."""
    if sum(each is not None for each in (command, url, servers)) > 1:
        raise TypeError("connect() takes one of `command`, `url` and `servers`")
    if (env is not None or cwd is not None) and command is None:
        raise TypeError("`env` and `cwd` belong to `command`")
    if headers is not None and url is None:
        raise TypeError("`headers` belong to `url`")
    if command is not None:
        if isinstance(command, str) or not command:
            raise TypeError('`command` is a list such as ["npx", "-y", "some-server"]')
        program, *arguments = map(str, command)
        definition = {"command": program, "args": arguments, "env": dict(env or {})}
        return {AD_HOC_NAME: definition | ({} if cwd is None else {"cwd": os.fspath(cwd)})}
    if url is not None:
        return {AD_HOC_NAME: {"url": url, "headers": dict(headers or {})}}
    return servers


@asynccontextmanager
async def _connected(
    socket: str | None, identity: Mapping[str, object], *, start: bool | None
) -> AsyncIterator[Mcp]:
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


@asynccontextmanager
async def _connected_ad_hoc(definitions: Mapping[str, Mapping[str, object]]) -> AsyncIterator[Mcp]:
    async with open_private_daemon(definitions) as connection:
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
