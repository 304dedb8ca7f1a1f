"""The life of one server: connect, serve, fail, retry, until the supervisor closes it.

`ManagedServer.run` is the only task that opens and closes the server's connection. Everybody else changes
the desired state with a synchronous method (`reconnect`, `set_enabled`, …), which wakes that task.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import attrs
import msgspec
import trio

from mcpd.io.broadcast import CallbackList
from mcpd.model.errors import NotReady
from mcpd.model.events import Event, EventKind
from mcpd.model.server_spec import InvalidSpec, RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.status import CONNECTION_LOST, FailureKind, ServerState, ServerStatus, rfc3339
from mcpd.model.text import shorten
from mcpd.process.memory import trim_heap_soon
from mcpd.process.processes import CpuTimeTotal
from mcpd.process.replacement import discard
from mcpd.protocol.negotiate import negotiated, resume
from mcpd.protocol.upstream_session import Hooks, NotificationInterests, ServerNotification, Upstream
from mcpd.state.cached_lists import definition_key
from mcpd.supervision import restart
from mcpd.supervision.attachments import Attachments
from mcpd.supervision.catalog import Catalog, summarize
from mcpd.supervision.catalog_sync import CatalogSync, dump_catalog
from mcpd.supervision.connect import (
    Attempt,
    ConnectStrategy,
    OpenTransport,
    StartSlot,
    open_transport,
)
from mcpd.supervision.degradation import Degradation
from mcpd.supervision.desired_state import DesiredState
from mcpd.supervision.elicitation_history import ElicitationHistory
from mcpd.supervision.health import ProbeTimer, run_health_checks
from mcpd.supervision.message_tap import ConnectionTrace, ServerTaps
from mcpd.supervision.package_download import package_runner_of, wait_package_downloaded
from mcpd.supervision.result_cache import ResultCache
from mcpd.supervision.secrets import FoundSecrets
from mcpd.supervision.server_log import ServerLog
from mcpd.supervision.state_tracker import StateTracker
from mcpd.supervision.status_report import add_connections, build_status, unparsable_output
from mcpd.supervision.supervisor_context import RunningServer, SupervisorContext, WaitingReport
from mcpd.transports.base import Channel, NullInbound
from mcpd.transports.child_process import Child, Launch, prepare_launch
from mcpd.transports.outgoing_request import Exchange
from mcpd.transports.stdio import OpenPipes, PipeChannel
from mcpd.transports.tool_call_stats import CallStats
from mcpd.wire.message import ABSENT, Message

log = logging.getLogger("mcpd.server")

_NOTHING = Catalog()
_WALL_CLOCK_INTERVAL = 10.0
"""Seconds between checks of the wall clock, which advances during suspend while trio's clock may not."""


class ServerClients(Protocol):
    """The clients of all servers, as a server sees them. The gateway implements it."""

    def capabilities(self, server: ManagedServer) -> Mapping[str, object]:
        """Return what is declared to a server in its handshake, and in each request without an
        `Exchange.meta` of its own."""

    def on_request(
        self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
    ) -> bool:
        """See `Hooks.on_request`."""

    def on_notification(self, server: ManagedServer, notification: ServerNotification) -> None:
        """See `Hooks.on_notification`."""

    def describe_waiting(self, server: ManagedServer, mask: Callable[[str], str]) -> WaitingReport:
        """Return what clients have been asked and which calls wait. `mask` masks secrets."""


def resume_upstream(server: ManagedServer, link: Channel, hooks: Hooks, running: RunningServer) -> Upstream:
    """Return what is connected since the version before this one. Its open streams are replaced."""
    upstream = resume(link, hooks, running.negotiated)
    server.interests.assume_confirmed(running.subscribed)
    link.last_id = running.last_id
    if running.pipes is None:
        link.session = running.session
        return upstream
    for key in running.streams:
        params = msgspec.json.encode({"requestId": msgspec.Raw(key), "reason": "replaced by another"})
        link.notify("notifications/cancelled", params)
    return upstream


def end_running(running: RunningServer) -> None:
    """End a server that nobody adopts."""
    if running.pipes is None:
        return
    child = running.pipes.child
    discard(child.pid, (child.stdin, child.stdout, child.stderr))


class NoClients:
    """For servers that no client uses."""

    def capabilities(self, server: ManagedServer) -> Mapping[str, object]:
        return {}

    def on_request(
        self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
    ) -> bool:
        return False

    def on_notification(self, server: ManagedServer, notification: ServerNotification) -> None: ...

    def describe_waiting(self, server: ManagedServer, mask: Callable[[str], str]) -> WaitingReport:
        return (), (), 0


class ManagedServer:
    """One configured server, or a dedicated instance of it. Created by the supervisor, which also runs it."""

    def __init__(
        self,
        spec: ServerSpec,
        context: SupervisorContext,
        original: ManagedServer | None = None,
        clients: ServerClients | None = None,
    ) -> None:
        self.spec = spec
        self.original = original
        """For a dedicated instance or a companion: the server whose definition it uses. None for a configured
        server."""
        self.companion: ManagedServer | None = None
        """The server's second connection, if one is open (`legacy_companion`). Set by the supervisor."""
        self.companion_refusal = ""
        """Why the server cannot have one for as long as its connection lasts; empty if it may."""
        self.is_closed = False
        """The server has been removed and will not run again."""
        self.log = self._open_log(context)
        self.taps = self._make_taps(context)
        self.call_stats: CallStats = (
            CallStats(context.redactor.mask) if original is None else original.call_stats
        )
        """Covers all connections, and is shared with the dedicated instances."""
        self.cpu_usage = CpuTimeTotal()
        """Includes the dedicated instances. Updated whenever a usage report is made."""
        self.interests = NotificationInterests()
        """Notifications that clients subscribed to. Kept across connections."""
        self.notifications: CallbackList[ServerNotification] = CallbackList()
        """Called with each notification, in order with the responses. Listeners must not block."""
        self.upstream: Upstream | None = None
        """Set if and only if the state is CONNECTED."""
        self.link: Channel | None = None
        """The connection from the start of the handshake on, so also while `upstream` is None."""
        self.child: Child | None = None
        self.launch: Launch | None = None
        self.used_secrets: FoundSecrets = {}
        """What the references in its definition referred to when it was started."""
        self.trace = ConnectionTrace(spec.name, context.redactor.mask)
        self._context = context
        # A server that speaks both eras may have connections of each.
        key = definition_key(spec)
        self._backoff = restart.Backoff(restart.effective_restart_policy(spec), context.random)
        self._tracker = StateTracker()
        self._clients = clients = clients or NoClients()
        self.notifications.add(partial(clients.on_notification, self))
        self.attachments = Attachments()
        """What others keep for this server."""
        self.elicitation_history = ElicitationHistory(context.store, key)
        self._last_received_at: float | None = None
        """When the previous connection last received a message (`trio.current_time()`)."""
        self._last_spawn = -math.inf
        self._desired = DesiredState(spec, context.store)
        self._strategy = ConnectStrategy(spec, context.store, key)
        self._is_going_on = False
        self._wake_event = trio.Event()
        self._probe_timer = ProbeTimer()
        self._degradation = Degradation()
        self._attempt = Attempt()
        self._catalog_sync = CatalogSync(spec, context.store, key, self._list_changed)
        self.results = ResultCache()
        self.list_attachments = self._catalog_sync.attachments
        """The same, but dropped when the lists change."""
        self._apply_debug()
        if self.is_handed_over:
            self._desired.request_start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label} {self.state.value} {self.upstream!r}>"

    def _open_log(self, context: SupervisorContext) -> ServerLog:
        return ServerLog(context.log_dir / f"{self.spec.name}.log", context.redactor)

    def _make_taps(self, context: SupervisorContext) -> ServerTaps:
        return ServerTaps(self.spec.name, context.redactor.mask)

    @property
    def configured_name(self) -> str:
        """The name that people and clients know, which is also that of a dedicated instance."""
        return (self.original or self).spec.name

    @property
    def label(self) -> str:
        """What the daemon's log calls the server."""
        return self.spec.name

    # ── changing the desired state: synchronous ─────────────────────────────────────────────────

    def reconnect(self) -> None:
        """Drop the connection, if any, and connect again immediately, skipping the backoff."""
        self._desired.connect()
        self._wake("reconnect requested")
        if self.companion is not None:
            self.companion.reconnect()

    def connect(self) -> None:
        """Connect unless already connected or connecting."""
        is_under_way = self._tracker.state in (ServerState.CONNECTED, ServerState.PENDING)
        if self._desired.disconnected or not is_under_way:
            self._desired.connect()
            self._wake("connect requested")
        if self.companion is not None:
            self.companion.connect()

    def disconnect(self) -> None:
        """Stay disconnected until `connect`, `reconnect` or the next start of the daemon."""
        if self._desired.disconnect():
            self._wake("it was disconnected")
        if self.companion is not None:
            self.companion.disconnect()

    def set_enabled(self, on: bool, until: float | None = None) -> None:
        """Enable or disable the server persistently, or disable it `until` then (seconds since the epoch)."""
        if self._desired.set_enabled(on, until):
            self._wake("it was switched on" if on else f"it was {self._desired.off_reason}")
        if self.companion is not None:
            self.companion.set_enabled(on, until)

    def request_start(self) -> None:
        """Start a lazy server; no effect on others."""
        if self._desired.request_start():
            self._wake("first use")

    def update_spec(self, spec: ServerSpec) -> None:
        """Apply a definition with the same identity without restarting the server."""
        assert spec.identity == self.spec.identity
        enabled_changed = spec.enabled != self.spec.enabled
        self.spec = self._strategy.spec = self._catalog_sync.spec = spec
        self._backoff.policy = restart.effective_restart_policy(spec)
        self.results.clear()
        self._catalog_sync.mark_stale("tools")
        self._apply_debug()
        if enabled_changed and self._desired.set_default(spec.enabled):
            self._wake("its definition changed")
        if self.companion is not None:
            self.companion.update_spec(spec)

    def note_legacy_works(self) -> None:
        """See `ConnectStrategy.note_legacy_works`."""
        self._strategy.note_legacy_works()

    def note_modern_client(self) -> None:
        """See `ConnectStrategy.note_modern_client`."""
        self._strategy.note_modern_client()

    def _apply_debug(self) -> None:
        self.trace.debug = self.spec.debug or self._context.debug
        self.taps.set_debug_sink(self.trace.log_frame if self.trace.debug else None)

    def _wake(self, reason: str) -> None:
        self._backoff.reset()
        self._strategy.reset()
        self._tracker.forget_failures()
        self._wake_event.set()
        if self.upstream is not None:
            self.upstream.link.close(reason)
        self.drop_upstream()
        self._attempt.scope.cancel(reason=reason)
        self._announce(ServerState.DISABLED if self._desired.is_off else ServerState.PENDING, reason)

    def probe_soon(self, seconds: float) -> None:
        """Health-check a remote server within `seconds`; a local process was suspended like mcpd itself."""
        if isinstance(self.spec, RemoteSpec):
            self._probe_timer.schedule(seconds)

    def close(self) -> None:
        """Mark the server as closed and wake all waiters. Called when `run` will not be entered again.

        From then on, it is in no reference cycle, unless it was connected: it is freed when nothing refers to
        it anymore. If many servers are removed, the garbage collector would free them all in one turn of the
        event loop.
        """
        self.is_closed = True
        self._tracker.notify()
        self.notifications.clear()
        self._catalog_sync.close()

    def reset_after_bug(self) -> None:
        """Prepare for another `run` after the previous one raised. Waiters keep waiting."""
        self.drop_upstream()
        self._announce(ServerState.PENDING, "restarting after an internal error in mcpd")

    # ── reading and waiting ─────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> ServerState:
        return self._tracker.state

    @property
    def catalog(self) -> Catalog | None:
        """The lists as last fetched or cached; None if they were never fetched. While the server is off, the
        lists are empty.
        """
        known = self._catalog_sync.catalog
        return _NOTHING if known is not None and self._desired.is_off else known

    @property
    def lists_expired(self) -> bool:
        """Whether the server is connected and `refresh_expired_lists` would fetch anything."""
        return self.upstream is not None and bool(self._catalog_sync.expired_features)

    @property
    def is_first_start(self) -> bool:
        """Whether the server is starting and nothing is known of its lists yet."""
        return self.catalog is None and self.state is ServerState.PENDING and not self._backoff.attempts

    async def refresh_expired_lists(self) -> None:
        """Fetch the lists whose TTL has passed. Returns immediately without a connection. Never raises."""
        if self.lists_expired:
            await self._catalog_sync.refresh_expired()

    def is_list_doubtful(self, feature: str) -> bool:
        """Whether the server is connected, and a list in which something is missing may have changed."""
        return self.upstream is not None and self._catalog_sync.is_doubtful(feature)

    def doubt_list(self, feature: str) -> None:
        """Fetch a list again soon, because the server does not know an entry of it."""
        if self.is_list_doubtful(feature):
            self._catalog_sync.mark_stale(feature)

    async def refresh_list(self, feature: str) -> None:
        """Fetch a list again, if the server is connected. Never raises."""
        if self.upstream is not None:
            with trio.move_on_after(self.spec.timeouts.list):
                await self._catalog_sync.refresh(feature)

    def status(self) -> ServerStatus:
        """Return the server's status with the evidence behind it."""
        child = self.child
        if child is not None and child.returncode is not None:
            child = None  # nothing has noticed that it has ended yet
        link = None if self.upstream is None else self.upstream.link
        heard_at = self._last_received_at if link is None else link.last_received_at
        mask = self._context.redactor.mask
        degraded = ""
        if link is not None:
            degraded = self._degradation.describe(
                link, self._probe_timer.misses, self._catalog_sync.problem, self._tracker.instability
            )
        status = build_status(
            spec=self.spec,
            tracker=self._tracker,
            kind=self._strategy.kind,
            upstream=self.upstream,
            link=self.link,
            catalog=self.catalog,
            child=child,
            log=self.log,
            mask=mask,
            attempts=self._backoff.attempts,
            last_received=None if heard_at is None else time.time() - (trio.current_time() - heard_at),
            degraded=mask(degraded),
            off_until=self._desired.off_until,
            waiting=self._clients.describe_waiting(self, mask),
        )
        return add_connections(status, None if self.companion is None else self.companion.status())

    async def check_secrets(self) -> str:
        """Say which of the secrets it uses has changed since it was started: see `Secrets.describe_old`."""
        used = self.used_secrets
        old = await self._context.secrets.describe_old(used)
        return old if self.used_secrets is used else ""

    def note_silence(self, seconds: float) -> None:
        """Note that a request has not been answered for `seconds`, until the server sends anything."""
        if self.upstream is not None:
            self._degradation.note_silence(self.upstream.link, self.child, seconds)

    async def wait_settled(self) -> None:
        """Wait until no connection attempt is running or queued, and until a disabled server has stopped."""
        while not self.is_closed and (
            not self._tracker.state.is_settled or self._wake_event.is_set() or self._is_stopping
        ):
            await self._tracker.wait_changed()
        if self.companion is not None:
            await self.companion.wait_settled()

    @property
    def _is_stopping(self) -> bool:
        """Whether the server is off and its process has not ended yet."""
        return self._desired.is_off and self.child is not None

    async def wait_ready(self) -> Upstream:
        """Return the connected upstream, starting a lazy server and retrying a failed one early.

        The caller bounds the wait. Raises NotReady immediately if no connection attempt is due soon.
        """
        if not self.is_closed:
            self.request_start()
            if self._tracker.may_retry_early(may_regain_access=self.spec.may_regain_access):
                self._wake_event.set()  # ends the backoff pause; the attempt counts like any other
        while self.upstream is None:
            if self.is_closed or (self._tracker.not_retrying_soon and not self._wake_event.is_set()):
                raise self.not_ready()
            await self._tracker.wait_changed()
        return self.upstream

    def not_ready(self) -> NotReady:
        """Return the error that says why nothing can be sent now and what to do about it."""
        return self._tracker.not_ready(self.spec.name, is_closed=self.is_closed)

    def explain_state(self) -> str:
        """Return in brief why nothing can be sent now, without what to do about it."""
        return self._tracker.explain(self.spec.name, is_closed=self.is_closed, brief=True)

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Keep the server in its desired state until cancelled."""
        try:
            while True:
                self._wake_event = trio.Event()
                if self._desired.is_off:
                    self._announce(ServerState.DISABLED, self._desired.off_reason)
                    await self._wait_while_off()
                elif not self._desired.start_requested:
                    self._announce(ServerState.IDLE, "starts on first use")
                    await self._wake_event.wait()
                else:
                    self._announce(ServerState.PENDING, "connecting")
                    await self._connect_and_recover()
        finally:
            self.log.close()
            # Its lists may have been large. In some versions of Python, the exception that ends a connection
            # keeps the server in a cycle.
            trim_heap_soon()

    async def _wait_while_off(self) -> None:
        """Wait until the desired state changes or a timed disable ends."""
        while not self._wake_event.is_set():
            if (left := self._desired.seconds_until_enabled) <= 0:
                self._desired.end_timed_disable()
                self._wake("its timed disable ended")
                return
            with trio.move_on_after(left if left == math.inf else min(left, _WALL_CLOCK_INTERVAL)):
                await self._wake_event.wait()

    async def _connect_and_recover(self) -> None:
        attempt = self._attempt = Attempt()
        with attempt.scope:
            if self._wake_event.is_set():
                return
            try:
                await self._connect_and_serve()
            except* Exception as group:  # one server's failure must not affect the others
                self._record_end(group)
        trim_heap_soon()
        if not self._wake_event.is_set() and attempt.has_ended:
            with trio.move_on_at(self._tracker.retry_due):
                await self._wake_event.wait()
        self._tracker.clear_retry()

    def _record_end(self, error: BaseException, link: Channel | None = None) -> None:
        """Record why the connection ended, and start the backoff while the process is still being stopped.
        Only the first call for an attempt counts.
        """
        attempt, child, name = self._attempt, self.child, self.spec.name
        if attempt.has_ended or self._wake_event.is_set():
            if restart.is_bug(error):
                raise error  # the supervisor logs it and runs the server again
            return  # already recorded, or torn down on request
        if another_way := self._strategy.next_fallback(error, was_ready=attempt.ready_at is not None):
            self._announce(ServerState.PENDING, another_way)
            return
        attempt.has_ended = True
        if restart.is_bug(error):
            log.error("%s: an error in mcpd itself; the server is started again", name, exc_info=error)
        mask = self._context.redactor.mask
        returncode = child.returncode if child else None
        evidence = restart.Evidence(
            returncode=returncode,
            stderr=self.log.failure_lines() if child else (),
            unparsable_output=unparsable_output(link, self._strategy.kind, mask) if link else "",
            unparsable_sample=shorten(mask(link.deviations.unparsable_sample)) if link else "",
            is_remote=isinstance(self.spec, RemoteSpec),
        )
        self._handle_failure(error, evidence)

    def _handle_failure(self, error: BaseException, evidence: restart.Evidence) -> None:
        failure, verdict = self._attempt.diagnose(error, evidence, self._strategy)
        if restart.was_stable(self._attempt.ready_at, self._attempt.last_success_at):
            self._backoff.reset()
        requested_delay = restart.requested_delay(error)
        plan = restart.plan_recovery(self.spec.name, verdict, requested_delay, self._backoff)
        failure = attrs.evolve(failure, message=self._context.redactor.mask(failure.message))
        has_ended = failure.kind in (FailureKind.EXITED, FailureKind.KILLED)
        if has_ended and failure.stderr and self._attempt.package_runner is None:
            failure = attrs.evolve(failure, message=failure.summary)  # log, status and `why` name one cause
        failure, message = attrs.evolve(failure, crash_loop=plan.crash_loop), failure.message
        log.log(self._failure_level(plan.level), "%s: %s%s", self.label, message, plan.log_suffix)
        self._tracker.record_failure(failure, plan.pause, requested_delay)
        self._announce(plan.state, plan.reason)

    def _failure_level(self, level: int) -> int:
        """Return the level at which a failure is logged; `level` is the usual one."""
        return level

    async def _connect_and_serve(self) -> None:
        """Hold one connection until it ends. Its end has been recorded, or is raised."""
        context = self._context
        if isinstance(self.spec, InvalidSpec):
            raise restart.InvalidDefinition("; ".join(map(str, self.spec.problems)))
        self.used_secrets = {}
        if (running := self._take_running()) is not None:
            await self._go_on(running)
            return
        spec = await context.secrets.resolve(self.spec, self.used_secrets)
        if isinstance(spec, StdioSpec):
            mark = f"{context.instance}.{next(context.child_numbers)}.{spec.name}"
            self.launch = prepare_launch(spec, context.environ, mark, context.runtime)
            self._tracker.record_start()
        async with StartSlot(context.start_limiter) as slot:
            await trio.sleep(max(0.0, self._last_spawn + restart.floor(spec.restart) - trio.current_time()))
            self._last_spawn = trio.current_time()
            self.log.start_run()
            await self._hold(self._open(spec), slot)

    @property
    def is_disconnected(self) -> bool:
        """Whether a user has disconnected it."""
        return self._desired.disconnected

    @property
    def is_handed_over(self) -> bool:
        """Whether it goes on as the version before this one has left it, and is not connected yet."""
        return self.label in self._context.handed_over or self._is_going_on

    def _take_running(self) -> RunningServer | None:
        """Return what the version before this one has handed over; it is ended if it is another server."""
        running = self._context.handed_over.pop(self.label, None)
        if running is not None and running.definition != definition_key(self.spec):
            end_running(running)
            return None
        return running

    async def _go_on(self, running: RunningServer) -> None:
        """Hold the connection that the version before this one has opened."""
        self._is_going_on = True
        self._last_spawn = trio.current_time()
        spec = self.spec
        try:
            if running.pipes is not None:
                self.launch = running.pipes.child.launch
            else:
                spec = await self._context.secrets.resolve(spec, self.used_secrets)
            opening = self._open(spec, running.pipes)
            async with StartSlot(trio.CapacityLimiter(1)) as slot:
                await self._hold(opening, slot, running)
        finally:
            self._is_going_on = False

    def _open(
        self, spec: ServerSpec, adopted: OpenPipes | None = None
    ) -> AbstractAsyncContextManager[OpenTransport]:
        renew = self._context.secrets.renew
        return open_transport(
            spec,
            self.launch,
            self._strategy.kind,
            self._context,
            self.log.feed,
            self.trace.log_http_request,
            partial(renew, self.spec, self.used_secrets) if self.used_secrets else None,
            adopted,
        )

    async def _hold(
        self,
        opening: AbstractAsyncContextManager[OpenTransport],
        slot: StartSlot,
        running: RunningServer | None = None,
    ) -> None:
        try:
            async with opening as connection:
                self.child, self.link = connection.child, connection.channel
                connection.channel.on_lost = self._withdraw_lost
                self.taps.on_connecting(connection.channel)
                await self._serve_until_end(connection, slot, running)
        finally:
            self.taps.on_disconnected()
            if self.link is not None:  # it ends in no reference cycle; see `close`
                self.link.inbound = NullInbound()
                self.link.on_lost = self.link.on_refused = None
            self.link = None
            self.child = None  # its pid may be reused from now on
            self._tracker.notify()

    async def _serve_until_end(
        self, connection: OpenTransport, slot: StartSlot, running: RunningServer | None
    ) -> None:
        link = connection.channel
        try:
            await self._serve(connection, slot, running)
        except* Exception as group:
            self._attempt.last_success_at = link.last_success_at
            if connection.child is not None:
                self._withdraw_lost()
                await connection.child.wait_stderr_drained()
            self.drop_upstream()
            self._record_end(group, link)
        finally:
            slot.release()
            self.drop_upstream()
            self.interests.on_disconnected()
            link.close("the connection is being closed")

    def _withdraw_lost(self) -> None:
        """Withdraw a connection that is lost, and say so, while its last output is still being read.

        The failure follows in a fraction of a second, with the cause.
        """
        if self.upstream is not None:
            self.drop_upstream()
            self._announce(ServerState.PENDING, CONNECTION_LOST)

    def drop_upstream(self) -> None:
        """Withdraw the connection from all callers."""
        if self.upstream is not None:
            self._last_received_at = self.upstream.link.last_received_at
            self.upstream = None
            self.results.clear()

    async def _serve(self, connection: OpenTransport, slot: StartSlot, running: RunningServer | None) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            nursery.start_soon(slot.release_after_timeout)
            if running is None:
                upstream = await self._negotiate(connection)
                await upstream.start_subscriptions(nursery)  # before fetching the lists, which may change
            else:
                upstream = resume_upstream(self, connection.channel, self._hooks(), running)
                nursery.start_soon(upstream.start_subscriptions, nursery)
            await self._become_ready(upstream, b"" if running is None else running.lists)
            slot.release()
            times = self.spec.timeouts
            nursery.start_soon(run_health_checks, upstream, times, connection.is_stopped, self._probe_timer)
            nursery.start_soon(self._catalog_sync.keep_fresh, upstream)
            await trio.sleep_forever()

    async def _negotiate(self, connection: OpenTransport) -> Upstream:
        self._attempt.package_runner = package_runner_of(self.spec)
        fetching = await wait_package_downloaded(
            self.spec,
            connection.child,
            self.log.last_lines,
            report=lambda doing: self._announce(ServerState.PENDING, self._context.redactor.mask(doing)),
        )
        self._attempt.package_runner = None
        if not self._strategy.is_fallback:
            self.trace.clear()
        if fetching >= 1:
            self.trace.add_step("install", "download finished, server started", fetching)
            self._announce(ServerState.PENDING, "connecting")
        return await self._strategy.negotiate(connection.channel, self._hooks(), self.trace.add_step)

    def _hooks(self) -> Hooks:
        return Hooks(
            on_list_changed=self._on_list_changed,
            on_change_announced=self._catalog_sync.note_announcement,
            on_log=self.log.add_line,
            capabilities=self._clients.capabilities(self),
            on_request=partial(self._clients.on_request, self),
            on_notification=self.notifications,
            refresh_list=self._catalog_sync.refresh,
            on_modern_detected=self._strategy.learn_modern,
            interests=self.interests,
        )

    async def _become_ready(self, upstream: Upstream, lists: bytes = b"") -> None:
        """Fetch the lists, unless they are given, then announce CONNECTED."""
        sync = self._catalog_sync
        catalog = sync.resume(upstream, lists) if lists else await sync.fetch(upstream)
        self._strategy.record_success(upstream)
        if self.elicitation_history.names_no_calls:
            upstream.link.correlates_server_requests = False
        self.upstream = upstream
        upstream.link.on_refused = self._probe_timer.check_access
        self.companion_refusal = ""
        self._is_going_on = False
        self._attempt.ready_at = trio.current_time()
        self.log.note_ready()
        self._tracker.record_connected()
        self._catalog_sync.replace(catalog)
        self._announce(ServerState.CONNECTED, "")
        self._catalog_sync.save()

    def _on_list_changed(self, feature: str) -> None:
        self.results.forget(feature)
        self._catalog_sync.mark_stale(feature)

    def _list_changed(self, feature: str, summary: str) -> None:
        """Notify clients, also of an announced change that is none: a tool may have come and gone between two
        fetches, and MCP says that a server's notifications SHOULD reach the client. `CatalogSync` fetches,
        and so notifies, at most twice a second."""
        if summary:
            self._publish(EventKind(feature), summary)
        self.notifications(ServerNotification(f"notifications/{feature}/list_changed", ABSENT))

    def _announce(self, state: ServerState, reason: str) -> None:
        """Change the state; the only place that does."""
        if self._tracker.set_state(state, reason):
            # Failures have their own line, and a server that keeps reconnecting must not fill the log.
            flapping = self._backoff.attempts > restart.LOGGED_FAILURES
            quiet = flapping or state in (ServerState.PENDING, ServerState.FAILED)
            level = logging.DEBUG if quiet else logging.INFO
            details = summarize(self.catalog) if state is ServerState.CONNECTED else reason
            log.log(level, "%s: %s%s", self.label, state.value, details and f" ({details})")
        self._publish(EventKind.STATUS, reason)
        self._tracker.notify()

    def running(self) -> RunningServer | None:
        """Return what the next version of the daemon needs to go on with the connection; None if it must open
        another one."""
        upstream, link, child, launch = self.upstream, self.link, self.child, self.launch
        pipes = None
        if isinstance(link, PipeChannel) and child is not None and launch is not None:
            pipes = link.open_pipes(child, launch)
        if upstream is None or link is None or (pipes is None and link.session is None):
            return None
        return RunningServer(
            label=self.label,
            definition=definition_key(self.spec),
            pipes=pipes,
            session=link.session or "",
            last_id=link.last_id,
            negotiated=negotiated(upstream),
            lists=dump_catalog(self._catalog_sync.catalog or Catalog()),
            subscribed=self.interests.confirmed(),
            streams=[key for key, each in link.requests.long_lived.items() if each.cancellable],
            since=self._tracker.since,
        )

    def publish_status(self) -> None:
        """Announce the status again: its second connection has changed."""
        self._publish(EventKind.STATUS, self._tracker.reason)

    def _publish(self, kind: EventKind, message: str) -> None:
        self._context.changes.value += 1
        at, status = rfc3339(time.time()), self.status()
        self._context.announce(Event(kind=kind, at=at, server=self.spec.name, message=message, status=status))
