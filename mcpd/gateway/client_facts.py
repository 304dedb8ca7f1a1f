"""What policies may know of a client: the names it is known by, and what the kernel says of its process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mcpd.client_registry import program_name
from mcpd.model.policy import ClientFacts

_MAX_NAME = 100


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
