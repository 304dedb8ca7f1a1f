"""Who is connected to the daemon now, and which servers each of them uses."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Protocol

import attrs

EVERYTHING = "*"
_LONGEST = 64
_MOST_SERVERS = 256


class Conversation(Protocol):
    """What is of interest here of a client's MCP session."""

    peer: str
    """What it calls itself in the protocol."""

    def calls_by_server(self) -> Mapping[str, int]: ...


@attrs.define(eq=False)
class Client:
    """One connection to the socket, as far as others want to know of it."""

    pid: int | None
    """None: the kernel does not say (TCP)."""
    door: str = "socket"
    """The way in, of who does not speak MCP."""
    since: float = attrs.field(factory=time.time)
    attached: str = ""
    """The server that it speaks MCP to, or EVERYTHING; empty when it does not."""
    _calls: dict[str, int] = attrs.field(factory=dict)
    """Server → calls by `mcpd/call`."""
    told_name: str = ""
    """What it says it is called."""
    _speaks: Conversation | None = None
    _program: str | None = None

    @property
    def name(self) -> str:
        """What it calls itself, else its program's name."""
        if told := self.told_name or (self._speaks and self._speaks.peer):
            return "".join(c for c in told if c.isprintable())[:_LONGEST]
        if self._program is None:
            self._program = "" if self.pid is None else program_of(self.pid)
        return self._program

    def who(self) -> str:
        """For people: `mcpctl (pid 4711)`."""
        if self.pid is None:
            return self.name
        return f"{self.name} (pid {self.pid})" if self.name else f"pid {self.pid}"

    def used(self, server: str) -> None:
        """It made a call there."""
        calls = self._calls
        if server in calls or len(calls) < _MOST_SERVERS:  # a client may make up any number of names
            calls[server] = calls.get(server, 0) + 1

    @property
    def calls(self) -> Mapping[str, int]:
        """Server → tool calls, in all that it speaks."""
        calls = dict(self._calls)
        for server, count in self._speaks.calls_by_server().items() if self._speaks else ():
            calls[server] = calls.get(server, 0) + count
        return calls

    def tells(self, name: str, pid: int | None) -> None:
        """Who it says it is; of a bridge in between, for whom it works."""
        self.told_name = name or self.told_name
        self.pid = pid or self.pid

    def speaks_mcp(self, attached: str, conversation: Conversation) -> None:
        """To that server, or EVERYTHING."""
        self.attached, self._speaks = attached, conversation


class Clients:
    """All of them."""

    def __init__(self) -> None:
        self._here: dict[Client, None] = {}

    def arrived(self, pid: int | None, name: str = "") -> Client:
        client = Client(pid, told_name=name)
        self._here[client] = None
        return client

    def left(self, client: Client) -> None:
        self._here.pop(client, None)

    def __len__(self) -> int:
        return len(self._here)

    def here(self) -> list[Client]:
        """In the order they came."""
        return list(self._here)


def program_of(pid: int) -> str:
    """The program a process runs, an interpreter's script rather than the interpreter; empty if unknown."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode("utf-8", "replace") for word in file.read(4096).split(b"\0") if word]
    except OSError:
        return ""
    names = [os.path.basename(word) for word in words]
    if len(words) > 1 and names[0].startswith(("python", "node", "bun", "deno", "ruby", "perl")):
        if words[1] == "-m" and len(words) > 2:
            return words[2][:_LONGEST]
        if not words[1].startswith("-"):
            return names[1][:_LONGEST]
    return names[0][:_LONGEST] if names else ""
