"""Every operation of the daemon as a plain method. The API only translates requests into these calls."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs
import trio

from mcpd import __version__
from mcpd.config.inherited_environment import inherited_environment, withheld_variables
from mcpd.config.next_step import next_step
from mcpd.io.broadcast import Broadcast
from mcpd.model.api import (
    DaemonInfo,
    DaemonStatus,
    DashboardLink,
    HttpListener,
    PingResult,
    ServerDetail,
    ServerResult,
    UpgradeResult,
)
from mcpd.model.codec import unstructure
from mcpd.model.errors import CallTimeout, NotReady, UpstreamRefused
from mcpd.model.events import Event, EventKind, History, TapParams
from mcpd.model.login import LoginStatus
from mcpd.model.replica import ALONE, Replica
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.privacy.redact import Redactor
from mcpd.process.labels import INSTANCE_VARIABLE
from mcpd.protocol.upstream_session import Upstream
from mcpd.state.active_config import ActiveConfig
from mcpd.state.clients import ClientRegistry
from mcpd.state.history import EventHistory
from mcpd.state.state_file import StateFile, unsaved_warning
from mcpd.supervision.health import lacks_method
from mcpd.supervision.legacy_companion import LegacyCompanion
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.message_tap import Tap
from mcpd.supervision.shared_toggles import SharedToggles
from mcpd.supervision.supervisor import Supervisor
from mcpd.transports.child_process import Launch, child_environment
from mcpd.wire.url import redact_url

if TYPE_CHECKING:
    from mcpd.auth.person_login import LoginPages
    from mcpd.auth.service import LoginService
    from mcpd.state.shared import SharedState

LOG_TAIL = 10
HISTORY_TAIL = 5
_STOPPING = "mcpd is stopping"


class LoginAccess(Protocol):
    """The logins of remote servers. Implemented by the daemon, which loads their code with the first use."""

    @property
    def problem(self) -> str:
        """Why logins cannot be stored; empty if they can."""

    async def service(self) -> LoginService:
        """Return what logs in to remote servers. Raises Unsupported while the daemon stops."""

    async def statuses(self) -> Sequence[LoginStatus]:
        """Return all logins in use; none if nothing has logged in."""


class HttpAccess(Protocol):
    """HTTP and the dashboard. Implemented by the daemon, which loads their code with the first use."""

    @property
    def listener(self) -> HttpListener | None:
        """The port that serves HTTP, if one is open."""

    @property
    def problem(self) -> str:
        """Why a renewed certificate is not used; usually empty."""

    def dashboard_link(self) -> DashboardLink:
        """Return a one-time address of the dashboard, and open a port for it first if there is none.

        Raises Unsupported if none can be opened, or while the daemon stops.
        """


@attrs.define(eq=False)
class Operations:
    """The operations. Synchronous ones run without interruption; callers limit how long async ones wait."""

    supervisor: Supervisor
    config: ActiveConfig
    redactor: Redactor
    events: Broadcast[Event]
    instance: str
    socket: str
    stop: Callable[[str], None]
    """Stop the daemon; takes the reason for the log."""
    upgrade: Callable[[], Awaitable[None]]
    """Replace the daemon by the installed version. Returns only by an exception. Raises NotUpgraded."""
    describe_upgrade: Callable[[], UpgradeResult | None]
    """Return how this version has replaced the one before it; None if it has not."""
    event_history: EventHistory
    logins: LoginAccess
    http: HttpAccess
    clients: ClientRegistry = attrs.field(factory=ClientRegistry)
    environ: Mapping[str, str] = attrs.field(factory=dict)
    store: StateFile | None = None
    """What keeps the desired state over restarts."""
    replica: Replica = ALONE
    shared: SharedState | None = None
    """What replicas share; None without Redis."""
    toggles: SharedToggles | None = None
    """The part of it that is about enabled servers."""
    started_at: float = attrs.field(factory=time.time)
    login_pages: LoginPages | None = None
    """Where people on other machines log in to servers, while they can reach mcpd."""
    _ready_waits: set[trio.CancelScope] = attrs.field(factory=set)
    """The scopes of callers that wait for a server; cancelled when the daemon stops."""
    is_stopping: bool = False
    """Whether new calls are refused. Calls in progress still get time to finish."""
    _is_closed: bool = False
    """Whether all connections are closed, and nothing is waited for."""

    # ── status ──────────────────────────────────────────────────────────────────────────────────

    def status(self, approvals: int = 0) -> DaemonStatus:
        """Return the status of the daemon and all servers. `approvals`: how many calls wait for one."""
        servers = tuple(
            server.status()
            for server in self.supervisor.everything()
            if not isinstance(server, LegacyCompanion)
        )
        return DaemonStatus(servers=servers, config=self.config.status(), daemon=self.daemon_info(approvals))

    def daemon_info(self, approvals: int = 0) -> DaemonInfo:
        return DaemonInfo(
            version=__version__,
            pid=os.getpid(),
            started_at=rfc3339(self.started_at),
            socket=self.socket,
            instance=self.instance,
            clients=len(self.clients),
            approvals=approvals,
            http=self.http.listener,
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        """Return what cannot be saved, and what could not be read."""
        kept = () if self.store is None else self.store.warnings
        if self.shared is not None and self.shared.problem:
            kept += (self.shared.problem,)
        if problem := self.logins.problem:
            kept += (f"{problem}; mcpctl login --list",)
        if problem := self.http.problem:
            kept += (f"{problem}; the old certificate is used; correct the files",)
        return kept

    async def wait_saved(self) -> tuple[str, ...]:
        """Wait until all changes of the state are saved. Return warnings if that has failed.

        Every operation that changes what a restart must not undo ends with this.
        """
        problem = "" if self.store is None else await self.store.wait_saved()
        return (unsaved_warning(problem),) if problem else ()

    def explain_server(self, name: str) -> ServerDetail | Awaitable[ServerDetail]:
        """Return everything that explains a server's state. Raises UnknownServer."""
        server = self.supervisor.get_any(name)
        if server.upstream is None or not server.used_secrets:
            return self._server_detail(server)
        return self._server_detail_with_secrets(server)

    async def _server_detail_with_secrets(self, server: ManagedServer) -> ServerDetail:
        return self._server_detail(server, await server.check_secrets())

    def _server_detail(self, server: ManagedServer, old_secret: str = "") -> ServerDetail:
        status = server.status()
        if old_secret and server.upstream is not None and not status.degraded:
            status = attrs.evolve(status, degraded=old_secret)
        spec, link, mask = server.spec, server.link, self.redactor.mask
        detail = ServerDetail(
            server=status,
            url=mask(redact_url(spec.url)) if isinstance(spec, RemoteSpec) else "",
            log=server.log.tail(LOG_TAIL),
            log_file=str(server.log.path),
            junk_lines=link.deviations.unparsable_lines if link else 0,
            junk_sample=shorten(mask(link.deviations.unparsable_sample)) if link else "",
            late_replies=link.deviations.late_replies if link else 0,
            negotiation=tuple(server.trace.steps),
            concurrency=_effective_concurrency(spec),
            share=spec.share,
            definition=self.config.definition(server.configured_name),
            history=self.event_history.history(server.spec.name, HISTORY_TAIL).entries,
        )
        if isinstance(spec, StdioSpec):
            detail = self._with_process(detail, spec, server.launch)
        return attrs.evolve(detail, next=next_step(cast("dict[str, Any]", unstructure(detail))))

    def _with_process(self, detail: ServerDetail, spec: StdioSpec, launch: Launch | None) -> ServerDetail:
        mask, env = self.redactor.mask, child_environment(spec, self.environ, "")
        inherited = inherited_environment(self.environ)
        return attrs.evolve(
            detail,
            command=tuple(map(mask, (spec.command, *spec.args))),
            cwd=spec.cwd,
            env=tuple(sorted(env.keys() - {INSTANCE_VARIABLE})),
            inherited_env={name: mask(text) for name, text in inherited.items() if name not in spec.env},
            withheld_env=tuple(name for name in withheld_variables(self.environ) if name not in spec.env),
            executable=launch.executable if launch else None,
            path=env.get("PATH", ""),
        )

    def history(self, name: str | None, limit: int) -> History:
        """Return the newest entries. Raises UnknownServer if neither the set nor the history has `name`."""
        if name is not None and not self.event_history.has_entries(name):
            self.supervisor.get(name)
        return self.event_history.history(name, limit)

    def clear_cache(self, server: str | None) -> int:
        """Drop the cached results of one server or of all. Return how many. Raises UnknownServer."""
        if server is not None:
            self.supervisor.get(server)
        every = self.supervisor.everything()
        return sum(each.results.clear() for each in every if server is None or each.configured_name == server)

    def tap(self, params: TapParams) -> AbstractContextManager[Tap]:
        """Record the messages of one server while the block runs. Raises UnknownServer."""
        server = self.supervisor.get_any(params.server)
        return server.taps.open_tap(params.methods, max(0, params.limit))

    @contextmanager
    def watch(self) -> Iterator[tuple[Iterator[Event], trio.MemoryReceiveChannel[Event]]]:
        """Yield a snapshot, whose events are created one after another, and a channel with every event from
        now on. An event of the snapshot may already contain a change that the channel reports, too.
        """
        with self.events.listen() as changes:
            now = rfc3339(time.time())
            snapshot = (
                Event(kind=EventKind.SNAPSHOT, at=now, server=server.spec.name, status=server.status())
                for server in self.supervisor.servers()
            )
            yield snapshot, changes

    # ── lists ───────────────────────────────────────────────────────────────────────────────────

    async def load_catalog(self, server: ManagedServer) -> None:
        """Wait until the server's catalog is known; this starts a lazy server. Raises NotReady.

        Expired lists are fetched again if the server is connected.
        """
        if server.catalog is None:
            await self.wait_ready(server)
        await server.refresh_expired_lists()

    async def refresh_catalogs(self, servers: Iterable[ManagedServer]) -> None:
        """Refresh the expired lists of connected servers. Starts nothing and waits only briefly."""
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(server.refresh_expired_lists)

    # ── desired state ───────────────────────────────────────────────────────────────────────────

    async def change_desired_state(
        self, name: str, change: Callable[[ManagedServer], None], wait: float, *, persistent: bool = False
    ) -> ServerResult:
        """Apply `change` to a server, wait up to `wait` seconds until it settles, and return its status.

        Persistent changes apply to configured servers only, not to dedicated instances, and are saved, or
        the result warns that they are not. Raises UnknownServer.
        """
        server = self.supervisor.get(name) if persistent else self.supervisor.get_any(name)
        change(server)
        if persistent and self.toggles is not None:
            self.toggles.note_change(name)
        if wait > 0:
            with trio.move_on_after(wait):
                await server.wait_settled()
        warnings = await self.wait_saved() if persistent else ()
        return ServerResult(server=server.status(), warnings=warnings)

    # ── requests to servers ─────────────────────────────────────────────────────────────────────

    async def wait_ready(self, server: ManagedServer, timeout: float | None = None) -> Upstream:
        """Wait until the server is connected, by default for its connect timeout. Raises NotReady."""
        if self._is_closed:
            raise self.not_ready_error(server)
        with trio.move_on_after(server.spec.timeouts.connect if timeout is None else timeout) as waiting:
            self._ready_waits.add(waiting)
            try:
                await server.wait_ready()
            finally:
                self._ready_waits.discard(waiting)
        if (upstream := server.upstream) is None:
            raise self.not_ready_error(server)
        return upstream

    def not_ready_error(self, server: ManagedServer) -> NotReady:
        """Return the error that says why nothing can be sent to `server`, and what to do."""
        if not self.is_stopping:
            return server.not_ready()
        return NotReady(
            f"{server.spec.name}: {_STOPPING}. Nothing was sent; try again after it has restarted",
            server=server.spec.name,
            state=server.state.value,
        )

    def refuse_new_calls(self) -> None:
        """Refuse calls from now on, because the daemon stops. Those in progress go on."""
        self.is_stopping = True

    def close_all(self) -> None:
        """Close all connections because the daemon stops. Current and later callers get NotReady."""
        self.is_stopping = self._is_closed = True
        for server in self.supervisor.everything():
            if server.upstream is not None:
                server.upstream.link.close(_STOPPING)
        self.supervisor.stop_all(_STOPPING)
        for waiting in self._ready_waits:
            waiting.cancel(reason=_STOPPING)

    async def ping(self, name: str, timeout: float) -> PingResult:
        """Measure a round trip to a connected server, with its cheapest request. Starts nothing.

        Raises UnknownServer, NotReady, CallTimeout, LinkLost, Overloaded.
        """
        server = self.supervisor.get_any(name)
        upstream = server.upstream
        if upstream is None:
            raise self.not_ready_error(server)
        started, heard_at = time.perf_counter(), upstream.link.last_received_at
        error = ""
        try:
            await upstream.request(upstream.ping_method, {}, timeout=timeout)
        except UpstreamRefused as refused:  # an error is a response too
            error = "" if lacks_method(refused) else self.redactor.mask_start(refused.message, 300)
        except CallTimeout:  # replaced, because its message is about tool calls
            if upstream.link.last_received_at == heard_at:
                server.note_silence(timeout)
            message = f"{name}: no answer to {upstream.ping_method} within {timeout:g} s"
            raise CallTimeout(message, server=name, after=timeout) from None
        return PingResult(server=name, ms=round((time.perf_counter() - started) * 1000, 2), error=error)


def _effective_concurrency(spec: ServerSpec) -> str:
    """Return the definition's `concurrency`; `free` if `auto` means that for this server."""
    return "free" if spec.concurrency == "auto" and not spec.takes_write_turns else spec.concurrency
