"""What is reported about the connected clients."""

from __future__ import annotations

import time
from collections.abc import Iterable

from mcpd.client_registry import ClientConnection, program_name
from mcpd.gateway.client_session import ClientSession
from mcpd.model.status import rfc3339
from mcpd.model.usage_stats import ClientsResult, ConnectedClient, ServerUsage
from mcpd.supervision.managed_server import ManagedServer


def connected_clients(
    sessions: Iterable[ClientSession], connections: Iterable[ClientConnection]
) -> ClientsResult:
    """Describe every MCP session, then the other clients on the socket."""
    mcp_clients = [_session_report(session) for session in sessions]
    others = [
        ConnectedClient(
            via=client.via,
            name=client.name,
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


def _session_report(session: ClientSession) -> ConnectedClient:
    client, view = session.client, session.view
    version = session.version or session.last_version
    companions = {each.original: each for each in session.gateway.calls.companions.used_by(session)}
    counts = session.call_counts
    return ConnectedClient(
        via=client.via,
        name=client.name
        or session.peer
        or session.last_client_name
        or (program_name(client.pid) if client.pid else ""),
        pid=client.pid or None,
        since=rfc3339(time.time() - session.age),
        sees=view.label,
        protocol_version=version,
        calls=counts.total,
        in_flight=session.in_flight,
        cwd=client.cwd,
        servers={name: ServerUsage(calls=calls) for name, calls in counts.ended.items()}
        | {
            (server.original or server).spec.name: ServerUsage(
                calls=calls + counts.ended.get((server.original or server).spec.name, 0),
                revisions=_revisions(version, companions.get(server, server)),
                instance=server.spec.name if server.original else None,
            )
            for server, calls in counts.live.items()
        },
    )


def _revisions(client: str, server: ManagedServer) -> str:
    spoken = server.upstream.version if server.upstream is not None else ""
    return client if client == spoken else f"{client or '?'} → {spoken or '?'}"
