"""The clients connected to the daemon, and the servers that each of them uses."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from mcpd.model.policy import ClientFacts

_MAX_NAME_LENGTH = 64
MAX_REPORTED = 4 * _MAX_NAME_LENGTH
"""Characters kept of a name that a client reports; those that are not printable are not shown."""
_MAX_SERVERS = 256


class SessionActivity(Protocol):
    """The part of a client's MCP session that the registry shows."""

    peer: str
    """The client's name in the protocol (`clientInfo.name`)."""

    @property
    def attached(self) -> str:
        """The server that it is attached to, or ALL_SERVERS."""

    def calls_by_server(self) -> Mapping[str, int]: ...


class ControlActivity(Protocol):
    """What is known of a client because it uses the control API."""

    @property
    def profile_label(self) -> str:
        """`*PROFILE`; empty if its calls are not limited to a profile."""

    def client_facts(self) -> ClientFacts: ...


class ClientConnection(msgspec.Struct, eq=False):
    """One connection to the daemon, over the Unix socket or HTTP."""

    pid: int | None
    """None over TCP, where the kernel does not report it."""
    via: str = "socket"
    """How a client that does not speak MCP is connected."""
    since: float = msgspec.field(default_factory=time.time)
    _calls: dict[str, int] = msgspec.field(default_factory=dict)
    """Server → calls by `mcpd/call`."""
    reported_name: str = ""
    """The name that the client reports."""
    session: SessionActivity | None = None
    """The client's MCP session; None if the client does not speak MCP."""
    control: ControlActivity | None = None
    """None if the client does not use the control API over a socket, or has disconnected."""
    _program_name: str | None = None

    @property
    def name(self) -> str:
        """The name that the client reports, else the name of its program."""
        if reported := self.reported_name or (self.session and self.session.peer):
            return "".join(c for c in reported if c.isprintable())[:_MAX_NAME_LENGTH]
        return self.read_program_name()

    def read_program_name(self) -> str:
        """Return the name of the client's program. It is read once, which must be while the client runs."""
        if self._program_name is None:
            self._program_name = "" if self.pid is None else program_name(self.pid)
        return self._program_name

    def describe(self) -> str:
        """Return a description for people: `mcpctl (pid 4711)`."""
        if self.pid is None:
            return self.name
        return f"{self.name} (pid {self.pid})" if self.name else f"pid {self.pid}"

    def count_call(self, server: str) -> None:
        """Count a call to `server` by `mcpd/call`."""
        calls = self._calls
        # A client may invent any number of names, of any length.
        if server in calls or (len(calls) < _MAX_SERVERS and len(server) <= _MAX_NAME_LENGTH):
            calls[server] = calls.get(server, 0) + 1

    @property
    def calls(self) -> Mapping[str, int]:
        """Server → tool calls, by `mcpd/call` and in its MCP session."""
        calls = dict(self._calls)
        for server, count in self.session.calls_by_server().items() if self.session else ():
            calls[server] = calls.get(server, 0) + count
        return calls

    def set_identity(self, name: str, pid: int | None) -> None:
        """Set the name and pid that the client reports; a bridge reports those of its editor."""
        self.reported_name = name[:MAX_REPORTED] or self.reported_name
        self.pid = pid or self.pid

    @property
    def attached(self) -> str:
        """The server that it speaks MCP to, or ALL_SERVERS; empty if it does not speak MCP."""
        return "" if self.session is None else self.session.attached


class ClientRegistry:
    """All connected clients."""

    def __init__(self) -> None:
        self._clients: dict[ClientConnection, None] = {}

    def add(self, pid: int | None, name: str = "") -> ClientConnection:
        client = ClientConnection(pid, reported_name=name)
        self._clients[client] = None
        return client

    def remove(self, client: ClientConnection) -> None:
        self._clients.pop(client, None)
        client.control = None  # it refers back; without the cycle the connection is freed immediately

    def __len__(self) -> int:
        return len(self._clients)

    def connected(self) -> list[ClientConnection]:
        """Return the clients in the order in which they connected."""
        return list(self._clients)


def program_name(pid: int) -> str:
    """Return the name of a process's program, for interpreters that of the script; empty if unknown."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = [word.decode("utf-8", "replace") for word in file.read(4096).split(b"\0") if word]
    except OSError:
        return ""
    names = [os.path.basename(word) for word in arguments]
    if len(arguments) > 1 and names[0].startswith(("python", "node", "bun", "deno", "ruby", "perl")):
        if arguments[1] == "-m" and len(arguments) > 2:
            return arguments[2][:_MAX_NAME_LENGTH]
        if not arguments[1].startswith("-"):
            return names[1][:_MAX_NAME_LENGTH]
    return names[0][:_MAX_NAME_LENGTH] if names else ""
