"""A daemon that belongs to one connection: it runs given servers, and ends with the connection."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
from anyio.abc import Process

from mcpd.client.connection import Connection, open_connection
from mcpd.client.errors import LoginRequired, NotReady, NotRunning
from mcpd.model.status import ServerState

_POLL = 0.02
"""Seconds between attempts to connect to a daemon that starts."""
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 15.0
"""Seconds that the daemon has to stop its servers."""
_SETTLE_WAIT = 60.0
"""Seconds that one request waits for a server; a package may take minutes to download."""


@asynccontextmanager
async def open_private_daemon(servers: Mapping[str, Mapping[str, object]]) -> AsyncIterator[Connection]:
    """Run `servers` (name → definition) in a new daemon, and connect to it when all have settled.

    The daemon has its own state and socket in a temporary directory, so it affects no other daemon and no
    editor. It ends with the block, or with this process, however that ends. Secrets of the user's store can
    be referred to. Raises NotRunning if the daemon does not start, and NotReady or LoginRequired with the
    reason if no server can be started.
    """
    with tempfile.TemporaryDirectory(prefix="mcpd-") as directory:
        home = Path(directory)
        socket, log = str(home / "mcpd.sock"), home / "mcpd.log"
        # In a variable and not in a file, so that no secret stays on the disk if this process is killed.
        definitions = [{**each, "name": name} for name, each in _for_this_process(servers).items()]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("MCPD_")}
        ours = {"MCPD_SERVERS": json.dumps(definitions), "MCPD_SOCKET": socket}
        environ = {**inherited, **ours, "XDG_STATE_HOME": str(home / "state")}
        command = [sys.executable, "-m", "mcpd", "--stop-at-eof"]
        with log.open("wb") as output:
            process = await anyio.open_process(
                command, stdin=PIPE, stdout=output, stderr=output, env=environ, start_new_session=True
            )
        async with process:
            try:
                await _wait_listening(process, socket, log)
                async with open_connection(socket) as connection:
                    await _wait_settled(connection, list(servers))
                    yield connection
            finally:
                await _stop(process)


def _for_this_process(servers: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
    """Return the definitions with this process's directory, and with its XDG_STATE_HOME for the servers."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    made: dict[str, dict[str, Any]] = {}
    for name, definition in servers.items():
        if not isinstance(definition, Mapping):
            kind = type(definition).__name__
            raise TypeError(f"the definition of the server {name!r} must be a mapping, not {kind}")
        made[name] = dict(definition)
        if "command" in definition:
            made[name].setdefault("cwd", os.getcwd())
            given = definition.get("env")
            made[name]["env"] = {"XDG_STATE_HOME": state, **(given if isinstance(given, Mapping) else {})}
    return made


async def _wait_listening(process: Process, socket: str, log: Path) -> None:
    with anyio.move_on_after(_START_TIMEOUT):
        while process.returncode is None:
            try:
                async with await anyio.connect_unix(socket):
                    return
            except OSError:
                await anyio.sleep(_POLL)
    raise NotRunning(f"mcpd could not be started: {_output(log)}")


def _output(log: Path) -> str:
    return log.read_text("utf-8", "replace").strip() or f"no answer within {_START_TIMEOUT:g} s"


async def _wait_settled(connection: Connection, names: list[str]) -> None:
    """Wait until every server is connected or has failed. Raises NotReady if none can be used."""
    statuses: list[Mapping[str, Any]] = []
    for name in names:  # one after the other: they start at the same time anyway
        while True:
            request = {"server": name, "wait": _SETTLE_WAIT}
            status = (await connection.request("mcpd/connect", request))["server"]
            if status["status"] != "pending":
                break
        statuses.append(status)
    unusable = [status for status in statuses if status["status"] not in ("connected", "idle")]
    if unusable and len(unusable) == len(statuses):
        text = "; ".join(_why_unusable(status, names) for status in unusable)
        needs_login = all(status["status"] == "needs-auth" for status in unusable)
        data = {"state": str(unusable[0]["status"]), "may_have_run": False}
        if needs_login:
            raise LoginRequired(text, "not_ready", data)  # as for a server of the configuration
        raise NotReady(text, "not_ready", data)


def _why_unusable(status: Mapping[str, Any], names: list[str]) -> str:
    """`names` is the order in which the daemon was given the servers."""
    failure = status.get("last_error") or {}
    last_line = next(reversed(failure.get("stderr") or ()), "")
    state = ServerState(status["status"])
    cause = str(failure.get("message") or status.get("reason", ""))
    own_place = f"$[{names.index(status['name'])}]"  # the caller has passed a mapping and not a list
    cause = cause.replace(f"@ {own_place}", f"@ servers[{status['name']!r}]")
    text = f"{status['name']} {state.phrase}: {cause}"
    return f"{text}; it wrote: {last_line}" if last_line else text


async def _stop(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.stdin is not None:
            await process.stdin.aclose()  # see --stop-at-eof
        with anyio.move_on_after(_STOP_TIMEOUT):
            await process.wait()
            return
        process.kill()
        await process.wait()
