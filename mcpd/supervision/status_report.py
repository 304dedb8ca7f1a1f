"""How a server is, for people and scripts: everything that is known of it, put together with the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import ServerStatus, rfc3339
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.connection import TransportKind
from mcpd.supervision.server_log import ServerLog
from mcpd.supervision.state import StateTracker
from mcpd.transports.base import Channel
from mcpd.transports.child_process import Child


@attrs.frozen(kw_only=True, eq=False)
class StatusInputs:
    """What a status is made of."""

    spec: ServerSpec
    tracker: StateTracker
    kind: TransportKind
    upstream: Upstream | None
    catalog: Catalog | None
    child: Child | None
    log: ServerLog
    unparsable_output: str
    """See `noise`; of the connection that there is."""
    connections: int
    """So far, this one included."""
    attempts: int
    last_received: float | None
    """When something came from it last, by the wall clock."""
    off_until: float | None
    """When it comes on again by itself, by the wall clock, too."""


def build_status(known: StatusInputs) -> ServerStatus:
    upstream, catalog, stands = known.upstream, known.catalog, known.tracker
    session = None if upstream is None else upstream.link.session
    return ServerStatus(
        name=known.spec.name,
        status=stands.state,
        since=rfc3339(stands.since),
        transport=known.kind,
        reason=stands.reason,
        pid=None if known.child is None else known.child.pid,
        tools=len(catalog.tools) if catalog else 0,
        resources=len(catalog.resources) if catalog else 0,
        prompts=len(catalog.prompts) if catalog else 0,
        restarts=max(0, known.connections - 1),
        attempts=known.attempts,
        last_error=stands.failure,
        last_ok=None if known.last_received is None else rfc3339(known.last_received),
        retry_at=None if stands.retry_at is None else rfc3339(stands.retry_at),
        off_until=None if known.off_until is None else rfc3339(known.off_until),
        updated=catalog.fetched_at or None if catalog else None,
        protocol_version=upstream.version if upstream else None,
        era=upstream.era if upstream else None,
        session=None if session is None else bool(session),
        server_info=upstream.info if upstream else None,
        capabilities=tuple(sorted(upstream.capabilities)) if upstream else (),
        lazy=known.spec.lazy,
        in_flight=upstream.link.in_flight if upstream else 0,
        warnings=tuple(_warnings(known)),
    )


def unparsable_output(channel: Channel, kind: TransportKind, mask: Callable[[str], str]) -> str:
    """How much came that was no message, with the first of it; empty when all was well."""
    number, first = channel.unparsable_lines, shorten(mask(channel.unparsable_sample))
    what, where = ("line", " on its stdout") if kind == "stdio" else ("frame", "")
    if number == 1:
        return f"1 {what}{where} was no message: {first}"
    return f"{number} {what}s{where} were no messages; the first: {first}" if number else ""


def _warnings(known: StatusInputs) -> Iterator[str]:
    if known.catalog is not None:
        yield from known.catalog.warnings
    if known.upstream is not None:
        if known.unparsable_output:
            yield known.unparsable_output
        for what, count in known.upstream.link.protocol_deviations.items():
            yield f"{count} {what}"
    if known.log.dropped:
        yield f"{known.log.dropped} log lines could not be written to {known.log.path}"
