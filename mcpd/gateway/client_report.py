"""Who is connected and what they use, for a person: put together when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from mcpd.client_registry import ClientConnection, program_name
from mcpd.gateway.client_session import ClientSession
from mcpd.model.status import rfc3339
from mcpd.model.usage import ClientsResult, ConnectedClient, ServerUsage


def connected_clients(
    sessions: Iterable[ClientSession], connections: Iterable[ClientConnection]
) -> ClientsResult:
    """Every conversation in MCP, then everybody else on the socket."""
    speaking = [_session_report(session) for session in sessions]
    others = [
        ConnectedClient(
            door=client.door,
            name=client.name,
            pid=client.pid,
            since=rfc3339(client.since),
            calls=sum(client.calls.values()),
            servers={name: ServerUsage(calls=calls) for name, calls in client.calls.items()},
        )
        for client in connections
        if not client.attached and (client.pid is not None or client.door != "socket")
    ]
    return ClientsResult(clients=(*speaking, *others))


def _session_report(session: ClientSession) -> ConnectedClient:
    client, view = session.client, session.view
    version = session.version or session.last_version
    return ConnectedClient(
        door=client.via,
        name=client.name or session.peer or (program_name(client.pid) if client.pid else ""),
        pid=client.pid or None,
        since=rfc3339(time.time() - session.age),
        sees=view.label,
        protocol_version=version,
        calls=session.call_count,
        in_flight=session.in_flight,
        cwd=client.cwd,
        servers={name: ServerUsage(calls=calls) for name, calls in session.calls_by_ended_server.items()}
        | {
            (server.original or server).spec.name: ServerUsage(
                calls=calls + session.calls_by_ended_server.get((server.original or server).spec.name, 0),
                revisions=_revisions(version, server.upstream.version if server.upstream else ""),
                instance=server.spec.name if server.original else None,
            )
            for server, calls in session.calls_by_live_server.items()
        },
    )


def _revisions(client: str, server: str) -> str:
    return client if client == server else f"{client or '?'} → {server or '?'}"
