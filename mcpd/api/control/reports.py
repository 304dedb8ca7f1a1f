"""What is reported about the connected clients, and about a decision of the policies for one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from mcpd.calls.permissions import used_item
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.session import ClientSession
from mcpd.model.api import ClientsResult, ConnectedClient, ServerUsage
from mcpd.model.config_api import PolicyClient, PolicyLimit, PolicyParams, PolicyResult, PolicyStep
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.policy import ALL_SERVERS, TRANSPORTS, ClientFacts, Decision, ItemKind, PolicyRule, UsedItem
from mcpd.model.status import rfc3339
from mcpd.state.clients import ClientConnection, program_name
from mcpd.supervision.legacy_companion import catalog_for_legacy
from mcpd.supervision.managed_server import ManagedServer


def connected_clients(
    sessions: Iterable[ClientSession],
    connections: Iterable[ClientConnection],
    mask: Callable[[str], str],
) -> ClientsResult:
    """Describe every MCP session, then the other clients on the socket."""
    mcp_clients = [_session_report(session, mask) for session in sessions]
    others = [
        ConnectedClient(
            via=client.via,
            name=mask(client.name),
            pid=client.pid,
            since=rfc3339(client.since),
            sees="" if client.control is None else client.control.profile_label,
            calls=sum(client.calls.values()),
            servers={name: ServerUsage(calls=calls) for name, calls in client.calls.items()},
        )
        for client in connections
        if not client.attached and (client.pid is not None or client.via != "socket")
    ]
    return ClientsResult(clients=(*mcp_clients, *others))


def _session_report(session: ClientSession, mask: Callable[[str], str]) -> ConnectedClient:
    client, view = session.client, session.view
    version = session.version or session.last_version
    companions = {
        each.original: each for each in session.gateway.calls.connections.companions.used_by(session)
    }
    counts = session.call_counts
    return ConnectedClient(
        via=client.via,
        name=mask(client.name or session.peer or session.last_client_name)
        or (program_name(client.pid) if client.pid else ""),
        pid=client.pid or None,
        since=rfc3339(time.time() - session.age),
        sees=view.label,
        protocol_version=version,
        calls=counts.total,
        in_flight=session.in_flight,
        cwd=mask(client.cwd),
        waiting=session.gateway.calls.turns.waits_of(session, mask),
        listed=session.listed,
        servers={name: ServerUsage(calls=calls) for name, calls in counts.ended.items()}
        | {
            server.configured_name: ServerUsage(
                calls=calls + counts.ended.get(server.configured_name, 0),
                revisions=_revisions(version, companions.get(server, server)),
                instance=server.spec.name if server.original else None,
            )
            for server, calls in counts.live.items()
        },
    )


def _revisions(client: str, server: ManagedServer) -> str:
    spoken = server.upstream.version if server.upstream is not None else ""
    return client if client == spoken else f"{client or '?'} → {spoken or '?'}"


def explain_policy(gateway: Gateway, params: PolicyParams) -> PolicyResult:
    """Return the decision about one use. Raises UnknownServer, UnknownProfile, InvalidArguments."""
    server = gateway.core.supervisor.get(params.server)
    kind, name = _chosen(params)
    if params.transport is not None and params.transport not in TRANSPORTS:
        problem = Problem("$.transport", f"unknown transport; write one of {', '.join(TRANSPORTS)}")
        raise InvalidArguments(f"mcpd/policy: {problem}", [problem])
    found = _find_client(_connected_facts(gateway), params.client)
    client = _assumed_client(gateway, params, found)
    item = used_item(server, kind, name)
    rules = gateway.policies.of(server)
    steps, limits, decisive = _apply_rules(rules.rules, client, item)
    decision = Decision.ALLOW if decisive is None else decisive.decision
    if rules.is_trusted(decisive):
        decision = Decision.ALLOW
    return PolicyResult(
        decision=decision.value,
        rule=None if decisive is None else decisive.place,
        reason="" if decisive is None else decisive.reason,
        source=gateway.core.config.loaded.source,
        client=PolicyClient(
            names=client.names,
            executable=client.executable,
            transport=client.transport,
            profile=client.profile,
            directory=client.directory,
            connected=found is not None,
        ),
        annotations=item.hints,
        steps=steps,
        limits=limits,
        known=_is_listed(server, kind, name),
        selected=gateway.profile_view(client.profile).selects(server, kind, name),
    )


def _assumed_client(gateway: Gateway, params: PolicyParams, found: ClientFacts | None) -> ClientFacts:
    """Return the facts of the client, some of which the parameters may replace."""
    known = found or ClientFacts(names=(params.client,), shown=(params.client,))
    directory = known.directory if params.directory is None else params.directory
    if params.profile is not None:
        profile = "" if params.profile == ALL_SERVERS else params.profile
    else:
        profile = known.profile if found is not None else gateway.profile_for(directory) or ""
    return ClientFacts(
        names=known.names,
        shown=known.shown,
        executable=known.executable if params.executable is None else params.executable,
        transport=known.transport if params.transport is None else params.transport,
        profile=profile,
        directory=directory,
    )


def _apply_rules(
    rules: Iterable[PolicyRule], client: ClientFacts, item: UsedItem
) -> tuple[tuple[PolicyStep, ...], tuple[PolicyLimit, ...], PolicyRule | None]:
    """Return how each rule was considered, the limits that apply, and the rule that decides, if any."""
    steps: list[PolicyStep] = []
    limits: list[PolicyLimit] = []
    for rule in rules:
        mismatch = rule.mismatch(client, item)
        steps.append(
            PolicyStep(rule=rule.place, decision=rule.decision.value, matches=not mismatch, mismatch=mismatch)
        )
        if mismatch:
            continue
        if rule.decision is not Decision.LIMIT:
            return tuple(steps), tuple(limits), rule
        rate = None if rule.rate is None else rule.rate.written
        limits.append(PolicyLimit(rule=rule.place, rate=rate, concurrent=rule.concurrent))
    return tuple(steps), tuple(limits), None


def _is_listed(server: ManagedServer, kind: ItemKind, name: str) -> bool | None:
    """Return whether the server lists a tool or prompt, on any of its connections; None if unknown."""
    catalogs = [each for each in (server.catalog, catalog_for_legacy(server)) if each is not None]
    if kind == "resource" or not any(each.fetched_at for each in catalogs):
        return None
    return any(name in each.names("tools" if kind == "tool" else "prompts") for each in catalogs)


def _chosen(params: PolicyParams) -> tuple[ItemKind, str]:
    kinds: tuple[tuple[ItemKind, str | None], ...] = (
        ("tool", params.tool),
        ("prompt", params.prompt),
        ("resource", params.resource),
    )
    given = [(kind, name) for kind, name in kinds if name is not None]
    if len(given) != 1:
        problem = Problem("$", "set one of `tool`, `prompt` and `resource`")
        raise InvalidArguments(f"mcpd/policy: {problem.message}", [problem])
    return given[0]


def _connected_facts(gateway: Gateway) -> list[ClientFacts]:
    """Return what is known of the clients that speak MCP, then of those of the control API on the socket."""
    known = [session.facts(session.context) for session in gateway.sessions]
    for client in gateway.core.clients.connected():
        if client.control is not None and not client.attached:
            known.append(client.control.client_facts())
    return known


def _find_client(known: Sequence[ClientFacts], name: str) -> ClientFacts | None:
    """Return the facts of the first client that is shown under this name, otherwise of the first that is
    known by it, whatever its case."""
    wanted = name.casefold()
    for names in ([facts.shown for facts in known], [facts.names for facts in known]):
        for facts, own in zip(known, names, strict=True):
            if any(each.casefold() == wanted for each in own):
                return facts
    return None
