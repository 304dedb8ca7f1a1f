"""What policies may know of a client: the names it is known by, and what the kernel says of its process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mcpd.calls.client_context import ClientIdentity
from mcpd.client_registry import program_name
from mcpd.model.errors import Overloaded
from mcpd.model.policy import ClientFacts
from mcpd.model.profile import Profile

_MAX_NAME = 100
_MAX_NAMES = 20
"""Names that one client may use in one session."""


class SessionFacts:
    """The facts of the client of one session. Nothing is read before they are needed."""

    def __init__(self, client: ClientIdentity, profile: Profile | None) -> None:
        self._client = client
        self._profile = "" if profile is None else profile.name
        self._names: set[str] = {client.name}
        self._facts: ClientFacts | None = None

    @property
    def are_read(self) -> bool:
        return self._facts is not None

    def known_by(self, *names: str) -> ClientFacts:
        """Return the facts of the client; always the same object for the same facts.

        A client of the modern revision may use another name in each request, and is known by all of them
        from then on. Raises Overloaded if there are too many.
        """
        if self._facts is None or not self._names.issuperset(names):
            self._names.update(names)
            if len(self._names) > _MAX_NAMES:
                raise Overloaded(f"a client can have at most {_MAX_NAMES} names; reconnect to use others")
            client = self._client
            self._facts = client_facts(
                sorted(self._names),
                client.via,
                self._profile,
                peer_pid=client.peer_pid,
                reported_pid=client.pid,
            )
        return self._facts


def client_facts(
    names: Iterable[str],
    transport: str,
    profile: str = "",
    *,
    peer_pid: int = 0,
    reported_pid: int = 0,
) -> ClientFacts:
    """Return the facts of a client that is connected now.

    `peer_pid` is the process at the other end of its connection, according to the kernel; 0 over TCP. A
    bridge reports the process that started it, which counts if the kernel confirms that. Reads /proc.
    """
    pid = peer_pid
    if reported_pid and reported_pid != peer_pid and _parent(peer_pid) == reported_pid:
        pid = reported_pid
    program = program_name(pid) if pid else ""
    known: dict[str, None] = {}
    for name in (*names, program):
        shown = "".join(each for each in name[:_MAX_NAME] if each.isprintable()).strip()
        if shown:
            known[shown] = None
            head, _, version = shown.rpartition(" ")
            if head and version[:1].isdigit():
                known[head] = None
    return ClientFacts(
        names=tuple(known),
        executable=_read_link(pid, "exe"),
        transport=transport,
        profile=profile,
        directory=_read_link(peer_pid, "cwd"),
    )


def _read_link(pid: int, name: str) -> str:
    """Return what a link in /proc names; empty if that is unknown."""
    if not pid:
        return ""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
