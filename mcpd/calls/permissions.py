"""The policies in effect: what they say about the use of a tool, prompt or resource by a client.

`model.policy` decides. A server's lists are compared with the rules when those change.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

import attrs
import trio

from mcpd.config.settings import Settings
from mcpd.model.errors import Denied
from mcpd.model.json_path import join_path
from mcpd.model.policy import (
    HINTS,
    ClientFacts,
    Decision,
    ItemKind,
    PolicyRule,
    UsedItem,
    Verdict,
    first_decision,
    read_only_rule,
    tags_of_similar_tools,
    tags_of_tool,
)
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import shorten
from mcpd.operations import Operations
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.legacy_companion import catalog_for_legacy
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire

_MAX_UNLISTED = 1000
"""Kept comparisons per server of names that are in none of its lists: clients may use any name."""
_MAX_NAME = 1000
"""Characters of such a name whose comparison is kept."""
_ITEMS_PER_TURN = 20
"""Items that are compared before other tasks have their turn: with many rules, each takes a millisecond."""

MAX_SHOWN = 64 * 1024
"""Bytes of the params of a call that a person may be asked about."""


class ServerRules:
    """The rules for one server, and which of them are about which items. Valid as long as `is_current`."""

    def __init__(self, server: ManagedServer, rules: tuple[PolicyRule, ...]) -> None:
        self._server = server
        self._settings_rules = rules
        self._spec = _spec(server)
        self._catalogs = _catalogs(server)
        own = own_rule(server)
        self.rules = rules if own is None else (own, *rules)
        self.listed: frozenset[tuple[ItemKind, str]] = frozenset(_items(self._catalogs))
        """Everything in the server's lists."""
        self._about: dict[tuple[ItemKind, str], tuple[PolicyRule, ...]] = {}

    def is_current(self, rules: tuple[PolicyRule, ...]) -> bool:
        server, (own, for_legacy) = self._server, self._catalogs
        return (
            rules is self._settings_rules
            and _spec(server) is self._spec
            and server.catalog is own
            and (own if server.companion is None else catalog_for_legacy(server)) is for_legacy
        )

    def about(self, kind: ItemKind, name: str) -> tuple[PolicyRule, ...]:
        """Return the rules whose conditions about this item are met: microseconds for each rule, once."""
        found = self._about.get((kind, name))
        if found is None:
            item = used_item(self._server, kind, name)
            found = tuple(rule for rule in self.rules if not rule.item_mismatch(item))
            if (kind, name) in self.listed or self._has_room(name):
                self._about[kind, name] = found
        return found

    def _has_room(self, name: str) -> bool:
        """Return whether the comparison of a name in no list is kept."""
        return len(name) <= _MAX_NAME and len(self._about) < len(self.listed) + _MAX_UNLISTED

    def verdict(self, client: ClientFacts, kind: ItemKind, name: str) -> Verdict:
        """Return what the rules say about this use."""
        verdict = first_decision(rule for rule in self.about(kind, name) if not rule.client_mismatch(client))
        if self.is_trusted(verdict.rule):
            return Verdict(decision=Decision.ALLOW, rule=verdict.rule, limits=verdict.limits)
        return verdict

    def is_trusted(self, rule: PolicyRule | None) -> bool:
        """Return whether `trust` in the server's definition answers for the person whom the rule asks."""
        is_question = rule is not None and rule.decision is Decision.ASK and rule.answer != "outside"
        return is_question and self._spec.trust


class Policies:
    """The rules in effect."""

    def __init__(self, core: Operations) -> None:
        self._core = core

    @property
    def _settings(self) -> Settings:
        return self._core.config.loaded.settings

    def exist(self) -> bool:
        """Return whether there are any rules."""
        return any(map(self.apply_to, self._core.supervisor.servers()))

    def apply_to(self, server: ManagedServer) -> bool:
        """Return whether any rule may concern the server."""
        return bool(_spec(server).read_only or self._settings.policies)

    def of(self, server: ManagedServer) -> ServerRules:
        """Return the rules for a server, in the order in which they apply."""
        found, rules = server.attachments.get(SERVER_RULES), self._settings.policies
        if found is None or not found.is_current(rules):
            found = server.attachments[SERVER_RULES] = ServerRules(server, rules)
        return found

    def verdict(self, client: ClientFacts, server: ManagedServer, kind: ItemKind, name: str) -> Verdict:
        """Return what the rules say about this use."""
        return self.of(server).verdict(client, kind, name)

    def require_more(self, server: ManagedServer) -> bool:
        """Return whether a rule for the server limits its use, or asks a person."""
        return any(
            rule.decision is Decision.ASK or rule.rate is not None or rule.concurrent is not None
            for rule in self.of(server).rules
        )

    async def prepare(self, server: ManagedServer) -> None:
        """Compare a server's lists with the rules, so that no call and no list has to wait for that."""
        if not self.apply_to(server):
            return
        rules = self.of(server)
        for number, (kind, name) in enumerate(rules.listed):
            rules.about(kind, name)
            if number % _ITEMS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()


SERVER_RULES = Attachment[ServerRules]("the rules for a server")


def _catalogs(server: ManagedServer) -> tuple[Catalog | None, Catalog | None]:
    return server.catalog, catalog_for_legacy(server)


def _items(catalogs: Iterable[Catalog | None]) -> Iterator[tuple[ItemKind, str]]:
    for catalog in catalogs:
        if catalog is not None:
            yield from (("tool", each.name) for each in catalog.tools)
            yield from (("prompt", each.name) for each in catalog.prompts)
            yield from (("resource", each.name) for each in catalog.resources)


def _spec(server: ManagedServer) -> ServerSpec:
    return (server.original or server).spec


def own_rule(server: ManagedServer) -> PolicyRule | None:
    """Return the rule that `readOnly` in the server's definition stands for."""
    if not _spec(server).read_only:
        return None
    name = definition_name(server)
    return read_only_rule(join_path(join_path("$.mcpServers", name), "readOnly"), servers=(name,))


def definition_name(server: ManagedServer) -> str:
    """Return the name of the server's definition, which its dedicated instances share."""
    return _spec(server).name


def used_item(server: ManagedServer, kind: ItemKind, name: str) -> UsedItem:
    """Return what is known of a tool, prompt or resource. A tool may be listed on one of the server's two
    connections only (`supervision.legacy_companion`)."""
    hints = None
    for catalog in _catalogs(server) if kind == "tool" else ():
        if catalog is not None and (item := catalog.tool(name)) is not None:
            hints = tool_hints(item.raw)
            break
    spec = _spec(server)
    if kind != "tool":
        return UsedItem(server=spec.name, kind=kind, name=name, tags=spec.tags)
    similar = tags_of_similar_tools(spec, name) if spec.tool_tags else ()
    tags = tags_of_tool(spec, name)
    return UsedItem(server=spec.name, kind=kind, name=name, hints=hints, tags=tags, similar_tags=similar)


def tool_hints(tool: bytes) -> Mapping[str, bool]:
    """Return the annotations of a tool that rules can ask for. A read-only tool destroys nothing."""
    declared = wire.members_or_empty(wire.members_or_empty(tool).get("annotations", b"{}"))
    hints = {
        name: assumed
        if (said := bytes(declared.get(name, b""))) not in (b"true", b"false")
        else said == b"true"
        for name, assumed in HINTS.items()
    }
    if hints["readOnlyHint"]:
        hints["destructiveHint"] = False
    return hints


def refuse_denied(
    verdict: Verdict, client: ClientFacts, server: ManagedServer, kind: ItemKind, name: str
) -> None:
    """Raise Denied unless the client may use this."""
    rule = verdict.rule
    if verdict.decision is not Decision.DENY or rule is None:
        return
    server.call_stats.denied += 1
    own, shown = definition_name(server), shorten(name, 80)
    why = f" ({rule.reason})" if rule.reason else ""
    who, use = _name_for(rule, client), f"{shown}@{own}"
    options = [] if kind == "tool" else ["--kind", kind]
    if rule.profiles is not None and client.profile:
        options += ["--profile", client.profile]
    words = ["policy", "test", who, use, *options] if options else ["why", use, "--client", who]
    raise Denied(
        f"{own}: {kind} {shown!r} was not used: the rule at {rule.place} denies it{why}; "
        f"`mcpctl {shlex.join(words)}` explains the decision",
        server=own,
        rule=rule.place,
    )


def _name_for(rule: PolicyRule, client: ClientFacts) -> str:
    """Return the name by which the rule matches the client, also when the client is no longer connected, and
    nothing else is known of it. Preferably one under which people see it."""
    for name in (*reversed(client.shown), *client.names):
        if not rule.client_mismatch(ClientFacts(names=(name,), profile=client.profile)):
            return shorten(name, 80)
    return shorten(client.shown[-1], 80) if client.shown else "CLIENT"


@attrs.frozen
class Permission:
    """What the rules require before a call is sent."""

    client: ClientFacts
    use: tuple[str, ItemKind, str]
    """(definition name, kind, name)."""
    verdict: Verdict
    is_listed: bool
    """Whether the server lists what is used."""


PERMISSION = Attachment[Permission]("what the rules require")
"""In `Call.slots` of a call that needs more than an `allow`."""
