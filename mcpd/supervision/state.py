"""One server's desired, actual and reported state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import attrs
import trio

from mcpd.model.errors import NotReady
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import Failure, FailureKind, ServerState, ServerStatus, format_time, rfc3339
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream
from mcpd.state_file import StateFile
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.connect import TransportKind
from mcpd.supervision.server_log import ServerLog
from mcpd.transports.base import Channel
from mcpd.transports.child_process import Child

DISCONNECTED = "disconnected by hand"
"""Why a server is off that was disconnected; any other that is off has been switched off."""


class DesiredState:
    """Every change says whether it is one, so that the server's task need not be disturbed for nothing."""

    def __init__(self, spec: ServerSpec, store: StateFile) -> None:
        self._name, self._store = spec.name, store
        toggled = store.is_enabled(spec.name)
        self.enabled = spec.enabled if toggled is None else toggled
        """The toggle, which outlives the daemon, or else the definition."""
        self.disconnected = False
        """By hand, until it is asked for again or the daemon starts anew."""
        self.start_requested = not spec.lazy
        """Whether somebody wants to use it; a lazy server starts with nobody."""

    @property
    def is_off(self) -> bool:
        return not self.enabled or self.disconnected

    @property
    def off_until(self) -> float | None:
        """When it comes on by itself (seconds since 1970); None while it is on, or off for good."""
        return None if self.enabled else self._store.disabled_until(self._name)

    @property
    def seconds_until_enabled(self) -> float:
        """Until then, as the wall clock has it now; not above 0 once it has gone by."""
        return math.inf if (until := self.off_until) is None else until - time.time()

    @property
    def off_reason(self) -> str:
        """For the status."""
        if self.enabled:
            return DISCONNECTED
        if (until := self.off_until) is not None:
            return f"switched off until {format_time(until)}"
        return "switched off" if self._is_toggled else "switched off in its definition"

    @property
    def _is_toggled(self) -> bool:
        return self._store.is_enabled(self._name) is not None

    def connect(self) -> None:
        """Be connected, as far as the toggle allows it."""
        self.disconnected, self.start_requested = False, True

    def disconnect(self) -> bool:
        changed = not self.disconnected
        self.disconnected = True
        return changed

    def set_enabled(self, on: bool, until: float | None = None) -> bool:
        """Turn the toggle: on, off, or off until then. Switching on takes back a disconnect, too."""
        another_end = not on and until != self._store.disabled_until(self._name)
        self._store.set_toggle(self._name, on if until is None else until)
        if on == self.enabled and not (on and self.disconnected):
            return another_end
        self.enabled, self.disconnected = on, False
        return True

    def end_timed_disable(self) -> None:
        """That it was switched off for: on from now on, and what was disconnected besides stays so."""
        self._store.set_toggle(self._name, True)
        self.enabled = True

    def set_default(self, enabled: bool) -> bool:
        """What another definition says; nothing where a toggle overrules it."""
        if self._is_toggled:
            return False
        self.enabled = enabled
        return True

    def request_start(self) -> bool:
        changed = not self.start_requested
        self.start_requested = True
        return changed


_RETRY_SOON = 5.0
"""A call waits for a retry that is due within this time, instead of failing on the spot."""
_EARLY_RETRY_INTERVAL = 5.0
"""Seconds that a server which cannot be reached is left alone after an attempt, however many want it."""


class StateTracker:
    """Changed by the server's own task and by wishes, through `become`; others read it and wait."""

    def __init__(self) -> None:
        self.state = ServerState.PENDING
        self.reason = "queued"
        self.since = time.time()
        self.failure: Failure | None = None
        """Why the last connection or attempt ended; kept until a person acts."""
        self.retry_at: float | None = None
        """When the next attempt begins, by the wall clock, for display."""
        self.retry_due = math.inf
        """The same by `trio.current_time()`."""
        self._scheduled_at = -math.inf
        self._changed = trio.Event()

    def set_state(self, state: ServerState, reason: str) -> bool:
        """The only place that changes the state. Whether it is another one than before."""
        assert self.state.may_become(state), f"{self.state} may not become {state}"
        another = state is not self.state
        if another:
            self.since = time.time()
        self.state, self.reason = state, reason
        return another

    def notify(self) -> None:
        """Wake who waits for a change."""
        moved, self._changed = self._changed, trio.Event()
        moved.set()

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def schedule_retry(self, seconds: float) -> None:
        self._scheduled_at = trio.current_time()
        self.retry_at, self.retry_due = time.time() + seconds, self._scheduled_at + seconds

    def clear_retry(self) -> None:
        self.retry_at, self.retry_due = None, math.inf

    @property
    def not_retrying_soon(self) -> bool:
        """Whether waiting for a connection is no use: off, or failed with no attempt soon."""
        if self.state in (ServerState.PENDING, ServerState.IDLE):
            return False
        if self.state is ServerState.FAILED:
            return self.retry_due - trio.current_time() > _RETRY_SOON
        return True

    @property
    def may_retry_early(self) -> bool:
        """Whether who wants it now may have it tried before its time. Only a server that could not be
        reached: it may be there by now; to look costs no process, and bothers nobody who asked for peace."""
        if self.state is not ServerState.FAILED or self.failure is None:
            return False
        unreachable = self.failure.kind is FailureKind.UNREACHABLE
        return (
            unreachable
            and self.not_retrying_soon
            and trio.current_time() - self._scheduled_at >= _EARLY_RETRY_INTERVAL
        )

    def not_ready(self, name: str, *, is_closed: bool = False) -> NotReady:
        """Why nothing can be sent now, and what to do. `over`: it has ended for good."""
        why = self.reason
        if is_closed or self.state is ServerState.CONNECTED:  # nobody announces the end of what goes for good
            why = "it is being stopped, since it was removed or defined anew"
        elif self.failure is not None and self.state in (ServerState.FAILED, ServerState.NEEDS_AUTH):
            why = self.failure.message
        back = "connect" if self.reason == DISCONNECTED else "enable"
        advice = {
            ServerState.DISABLED: f"`mcpctl {back} {name}` brings it back",
            ServerState.NEEDS_AUTH: f"then `mcpctl reconnect {name}`",
            ServerState.FAILED: f"see `mcpctl status {name}`; `mcpctl reconnect {name}` tries now",
        }.get(self.state, "try again in a moment")
        when = ""
        if self.retry_at is not None:
            when = f"; next attempt in {max(0, self.retry_at - time.time()):.0f} s"
        return NotReady(
            f"{name} is {self.state.value}: {why}{when}. Nothing was sent; {advice}",
            server=name,
            state=self.state.value,
            retry_at=None if self.retry_at is None else rfc3339(self.retry_at),
        )


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
