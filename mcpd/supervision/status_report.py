"""Puts everything known about a server into the status that users and scripts see."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mcpd.model.policy import uncached_tools
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import (
    ConnectionStatus,
    ServerInfo,
    ServerState,
    ServerStatus,
    rfc3339,
)
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.connect import TransportKind
from mcpd.supervision.server_log import ServerLog
from mcpd.supervision.state_tracker import StateTracker
from mcpd.supervision.supervisor_context import WaitingReport
from mcpd.transports.base import Channel
from mcpd.transports.child_process import Child


def build_status(
    *,
    spec: ServerSpec,
    tracker: StateTracker,
    kind: TransportKind,
    upstream: Upstream | None,
    link: Channel | None,
    catalog: Catalog | None,
    child: Child | None,
    log: ServerLog,
    mask: Callable[[str], str],
    attempts: int,
    last_received: float | None,
    degraded: str,
    off_until: float | None,
    waiting: WaitingReport,
) -> ServerStatus:
    """`link` is the connection, also during the handshake. `last_received` and `off_until` are wall clock
    times."""
    warnings = [] if catalog is None else list(catalog.warnings)
    if spec.cache and catalog is not None:
        warnings += uncached_tools(spec, catalog.raw_tool, [tool.name for tool in catalog.tools])
    if link is not None and (unparsable := unparsable_output(link, kind, mask)):
        warnings.append(unparsable)
    if upstream is not None:
        warnings += [f"{count} {what}" for what, count in upstream.link.deviations.counts.items()]
    if log.dropped:
        warnings.append(f"{log.dropped} log lines could not be written to {log.path}")
    status = ServerStatus(
        name=spec.name,
        status=tracker.state,
        since=rfc3339(tracker.since),
        transport=kind,
        reason=tracker.reason,
        pid=None if child is None else child.pid,
        containers=() if child is None or child.containers is None else child.containers.describe(),
        degraded=degraded,
        restarts=tracker.restarts,
        attempts=attempts,
        last_error=tracker.failure,
        last_ok=_optional_time(last_received),
        retry_at=_optional_time(tracker.retry_at),
        off_until=_optional_time(off_until),
        lazy=spec.lazy,
        questions=waiting[0],
        waiting=waiting[1],
        waiting_calls=waiting[2],
        warnings=tuple(map(mask, warnings)),
    )
    if catalog is not None:
        status = attrs.evolve(
            status,
            tools=len(catalog.tools),
            resources=len(catalog.resources),
            prompts=len(catalog.prompts),
            updated=catalog.fetched_at or None,
        )
    if upstream is not None:
        session = upstream.link.session
        status = attrs.evolve(
            status,
            protocol_version=upstream.version,
            era=upstream.era,
            session=None if session is None else bool(session),
            server_info=ServerInfo(
                **{name: mask(text) for name, text in attrs.asdict(upstream.info).items()}
            ),
            capabilities=tuple(sorted(upstream.capabilities)),
            in_flight=upstream.link.requests.in_flight,
        )
    return status


def _optional_time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)


def add_connections(status: ServerStatus, companion: ServerStatus | None) -> ServerStatus:
    """Return the status of a server together with that of its second connection, if it has one."""
    if companion is None:
        return attrs.evolve(status, connections=(_connection(status),))
    warnings = [*status.warnings, *companion.warnings]
    if companion.status is ServerState.FAILED and companion.last_error is not None:
        failure = companion.last_error.summary
        warnings.append(
            f"the second connection failed: {failure}; until it is back, all clients use the first"
        )
    return attrs.evolve(
        status,
        in_flight=status.in_flight + companion.in_flight,
        questions=(*status.questions, *companion.questions),
        waiting=(*status.waiting, *companion.waiting),
        waiting_calls=status.waiting_calls + companion.waiting_calls,
        warnings=tuple(dict.fromkeys(warnings)),
        connections=(_connection(status), _connection(companion)),
    )


def _connection(status: ServerStatus) -> ConnectionStatus:
    return ConnectionStatus(
        status=status.status,
        revision=status.protocol_version,
        era=status.era,
        pid=status.pid,
        since=status.since,
        restarts=status.restarts,
        in_flight=status.in_flight,
        last_error=status.last_error,
    )


def unparsable_output(channel: Channel, kind: TransportKind, mask: Callable[[str], str]) -> str:
    """Describe the output that was not JSON-RPC, with a sample; empty if there was none."""
    count, first = channel.deviations.unparsable_lines, shorten(mask(channel.deviations.unparsable_sample))
    what, where = ("line", " on its stdout") if kind == "stdio" else ("frame", "")
    if count == 1:
        return f"1 {what}{where} was not JSON-RPC: {first}"
    return f"{count} {what}s{where} were not JSON-RPC; the first: {first}" if count else ""
