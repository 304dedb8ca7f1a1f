"""What is known of one client: facts for policies, the entries that it may see, and what it has called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from mcpd.calls.client_context import ClientIdentity
from mcpd.calls.permissions import Policies
from mcpd.gateway.views import View
from mcpd.model.errors import Overloaded
from mcpd.model.policy import ClientFacts, Decision, ItemKind, Profile
from mcpd.state.clients import program_name
from mcpd.supervision.managed_server import ManagedServer

_MAX_NAME = 100
_MAX_NAMES = 20
"""Names that one client may use in one session."""


class SessionFacts:
    """The facts of the client of one session. Nothing is read before they are needed."""

    def __init__(self, client: ClientIdentity, profile: Profile | None) -> None:
        self._client = client
        self._profile = "" if profile is None else profile.name
        self._names: dict[str, None] = {client.name: None}
        self._facts: dict[tuple[str, ...], ClientFacts] = {}
        """By the names of a request."""

    @property
    def names(self) -> list[str]:
        """All names of the client."""
        return list(self._names)

    @names.setter
    def names(self, names: list[str]) -> None:
        self._names = dict.fromkeys(names)

    @property
    def are_read(self) -> bool:
        return bool(self._facts)

    def known_by(self, *names: str) -> ClientFacts:
        """Return the facts of the client for a request in which it reports these names; always the same
        object for the same facts.

        A client of the modern revision may use another name in each request. It is known by all of them
        from then on, and shown under the one in the request, unless it was given a name when it was started.
        Raises Overloaded if there are too many.
        """
        found = self._facts.get(names)
        if found is not None:
            return found
        if not self._names.keys() >= set(names):
            if len(self._names.keys() | names) > _MAX_NAMES:
                raise Overloaded(f"a client can have at most {_MAX_NAMES} names; reconnect to use others")
            self._names.update(dict.fromkeys(names))
            self._facts.clear()
        client = self._client
        found = self._facts[names] = client_facts(
            (*names, *reversed(self._names)),
            client.via,
            self._profile,
            given_name=client.name,
            peer_pid=client.peer_pid,
            reported_pid=client.pid,
            person=client.person,
            groups=client.groups,
        )
        return found


def client_facts(
    names: Iterable[str],
    transport: str,
    profile: str = "",
    *,
    given_name: str = "",
    peer_pid: int = 0,
    reported_pid: int = 0,
    person: str = "",
    groups: tuple[str, ...] = (),
) -> ClientFacts:
    """Return the facts of a client that is connected now. It is shown under its `given_name`, which is not
    what it reports in MCP and has no version, otherwise under the first of its names, or its program's.

    `peer_pid` is the process at the other end of its connection, according to the kernel; 0 over TCP. A
    bridge reports the process that started it, which counts if the kernel confirms that. Reads /proc.
    """
    pid = peer_pid
    if reported_pid and reported_pid != peer_pid and _parent(peer_pid) == reported_pid:
        pid = reported_pid
    program = program_name(pid) if pid else ""
    forms = [found for name in (given_name, *names, program) if (found := _name_forms(name))]
    shown = forms[0] if forms else ()
    return ClientFacts(
        names=tuple(dict.fromkeys(each for found in forms for each in found)),
        shown=shown[:1] if _name_forms(given_name) else shown,
        executable=_read_link(pid, "exe"),
        transport=transport,
        profile=profile,
        directory=_read_link(peer_pid, "cwd"),
        person=person,
        groups=groups,
    )


def _name_forms(name: str) -> tuple[str, ...]:
    """Return a name as it is compared, and the same without a version; nothing if it is empty."""
    shown = "".join(each for each in name[:_MAX_NAME] if each.isprintable()).strip()
    head, _, version = shown.rpartition(" ")
    return (shown, head) if head and version[:1].isdigit() else (shown,) if shown else ()


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


_KINDS: dict[str, ItemKind] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "resourceTemplates": "resource",
}


class _Known(msgspec.Struct, frozen=True, eq=False):
    """The visible part of a list, and what it was computed from."""

    entries: Sequence[bytes]
    """The whole list."""
    rules: object
    client: ClientFacts
    visible: Sequence[bytes]


class VisibleEntries:
    """The lists of one session. They are kept, because comparing a long list with many rules takes
    milliseconds.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._known: dict[str, _Known] = {}

    def entries(self, view: View, member: str, read_facts: Callable[[], ClientFacts]) -> Sequence[bytes]:
        """Return the list `member` of the session's view without the entries that the client may not use.

        `read_facts` returns the facts of the client; it is called only if policies apply. A resource template
        is compared as it is written; each resource is compared again when it is read.
        """
        entries, servers = view.entries(member), view.servers()
        policies = self._policies
        restricted = [server for server in servers if policies.apply_to(server)]
        if not restricted:
            return entries
        client = read_facts()
        rules = [policies.of(server).rules for server in restricted]
        known = self._known.get(member)
        if known is not None and known.entries == entries and known.rules == rules and known.client is client:
            return known.visible
        by_name = {server.spec.name: view.source(server) or server for server in servers}
        visible = tuple(
            entry
            for entry, (name, own) in zip(entries, view.owners(member), strict=True)
            if (server := by_name.get(name)) is None
            or policies.verdict(client, server, _KINDS[member], own).decision is not Decision.DENY
        )
        self._known[member] = _Known(entries, rules, client, visible)
        return visible


class ServerCallCounts:
    """Counts by server. Calls to dedicated instances count for the server of the definition."""

    def __init__(self) -> None:
        self.live: dict[ManagedServer, int] = {}
        """Counts of servers that existed when a new one was last called."""
        self.ended: dict[str, int] = {}
        """Counts of servers that no longer exist, by definition name."""

    def add(self, server: ManagedServer) -> None:
        """Count the first call to a server. Ended servers are dropped, so that long sessions do not keep
        them."""
        for ended in [each for each in self.live if each.is_closed]:
            name = ended.configured_name
            self.ended[name] = self.ended.get(name, 0) + self.live.pop(ended)
        self.live[server] = 1

    @property
    def total(self) -> int:
        return sum(self.live.values()) + sum(self.ended.values())

    def by_name(self) -> Mapping[str, int]:
        """Return the counts by definition name."""
        counts = dict(self.ended)
        for server, count in self.live.items():
            name = server.configured_name
            counts[name] = counts.get(name, 0) + count
        return counts
