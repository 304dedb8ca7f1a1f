"""The daemon: creates all components, runs them in nested nurseries, and shuts them down in order.

The nesting defines the shutdown order: stop accepting, let calls finish, disconnect clients, stop
servers, and finally the guardian, the event history and the state file.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import socket as sockets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs
import trio

from mcpd import __version__
from mcpd.api import listeners
from mcpd.api.listeners import ConnectionLimit, Slot
from mcpd.api.socket_connection import Arrival, SocketConnection
from mcpd.calls.schema_checker import schema_checker_pids
from mcpd.calls.stages.call_log import CallLog
from mcpd.config.check_document import LoadedConfig
from mcpd.config.http import ClusterSettings, HttpSettings, TlsFiles
from mcpd.deferred import DeferredHttp, DeferredLoginService
from mcpd.files import paths
from mcpd.files.paths import UnusablePath
from mcpd.gateway.gateway import Gateway
from mcpd.io import reader
from mcpd.io.broadcast import Broadcast
from mcpd.model.errors import LoginFailed, McpdError, Unsupported
from mcpd.model.events import Event
from mcpd.model.replica import ALONE
from mcpd.model.server_spec import RemoteSpec
from mcpd.operations import Operations
from mcpd.privacy.redact import Redactor
from mcpd.process import containers, instance_lock, labels, processes, replacement, systemd
from mcpd.process.guardian import Guardian
from mcpd.process.port_store import PortStore
from mcpd.state.active_config import ActiveConfig, watch_config
from mcpd.state.history import EventHistory, acting_for, current_actor
from mcpd.state.state_file import StateFile
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.restart import SecretUnavailable
from mcpd.supervision.secrets import Secrets
from mcpd.supervision.shared_toggles import SharedToggles
from mcpd.supervision.supervisor import Supervisor
from mcpd.supervision.supervisor_context import SupervisorContext
from mcpd.upgrade import OpenConnection, OwnDescriptors, TakeOver, Upgrade, describe_listeners

if TYPE_CHECKING:
    from mcpd.api.http.cluster import Cluster
    from mcpd.api.http.routes import HttpApi, HttpPort
    from mcpd.auth.service import LoginService
    from mcpd.auth.token_store import TokenStore
    from mcpd.calls.shared_calls import SharedCalls
    from mcpd.state.shared import SharedState

log = logging.getLogger("mcpd")

DRAIN_TIMEOUT = 3.0
"""Seconds that calls in progress have to finish when the daemon stops."""
_LAST_READS_TIMEOUT = 0.5
"""Seconds to read what clients have already sent when the daemon stops."""
_NETWORK_NOTICE = 5.0
"""Seconds for which `/readyz` fails before a daemon with a port for other machines refuses calls."""
NETWORK_DRAIN_TIMEOUT = 10.0
"""DRAIN_TIMEOUT of such a daemon."""
_REDIRECT_TIME = 0.25
"""Seconds in which HTTP clients are sent to the next daemon: closing a connection may lose a request."""
_KILL_INTERVAL = 0.05


@attrs.frozen(kw_only=True)
class DaemonOptions:
    """The daemon's command line and environment, with the loaded configuration."""

    config_path: Path | None
    """`--config`."""
    socket: str
    debug: bool
    environ: Mapping[str, str]
    loaded: LoadedConfig
    http: HttpSettings | None = None
    """The setting `http`, with the address of `--http`."""
    is_http_option: bool = False
    """Whether `--http` was given, so that the daemon must not run without the port."""
    require_http_token: bool = True
    """False with `--http-auth none`."""
    on_started: Callable[[], None] = lambda: None
    """Called when everything works but servers and clients."""


async def run(options: DaemonOptions, redactor: Redactor, taken: TakeOver | None = None) -> None:
    """Run the daemon until it is told to stop. `taken`: what the version before this one has left.

    Raises AlreadyRunning, UnusablePath or OSError before anything is started.
    """
    left = None if taken is None else taken.state
    with ExitStack() as stack, replacement.replaceable():
        if taken is not None:
            reader.hold(clients_only=False)
        inherited_fds = systemd.listen_fds() if left is None else dict(left.listeners)
        is_own_socket = not inherited_fds if left is None else left.is_own_socket
        store = PortStore(options.socket, inherited_fds)
        runtime = paths.socket_directory(options.socket)
        held = None if left is None else left.lock
        lock = stack.enter_context(instance_lock.hold_instance_lock(options.socket, held))
        certificate_problem = _certificate_problem(options)
        unix, ports, http_problem = listeners.open_listeners(
            options.socket,
            inherited_fds.values(),
            stack,
            store,
            http=None if options.http is None or certificate_problem else options.http.listen,
            is_required=options.is_http_option,
        )
        if certificate_problem:
            ports, http_problem = [], certificate_problem
        if left is not None and left.is_own_socket:
            stack.enter_context(listeners.removing(options.socket))
        if labels.INSTANCE_VARIABLE not in options.environ:
            # mcpctl started it from within a server of another daemon: it is not a part of that server.
            labels.drop_own_label()
        instances = os.path.join(runtime, "instances")
        paths.private_directory(instances)
        ends = [
            _describe_crash(instance, killed)
            for instance, killed in processes.sweep_dead_instances(instances).items()
        ]
        instance = os.urandom(8).hex() if left is None else left.instance
        record = stack.enter_context(
            processes.record_instance(instances, instance, None if left is None else left.record)
        )
        # Normally there are none left: stopping a server ends its processes.
        stack.callback(labels.kill_marked, instance)
        processes.become_subreaper()
        processes.disable_core_dumps()
        own = OwnDescriptors(instance, lock, record, is_own_socket)
        daemon = _Daemon(options, redactor, own, unix, ports, store, runtime, ends, http_problem, taken)
        await daemon.run()
    log.info("stopped")


def _certificate_problem(options: DaemonOptions) -> str:
    """Return why the port in the settings cannot be opened: clients of the Unix socket must not be affected.

    Raises OSError if `--http` was given.
    """
    if options.http is None or not isinstance(options.http.tls, TlsFiles):
        return ""
    from mcpd.api.http.tls import TlsServer

    try:
        TlsServer(options.http.tls)
    except OSError as error:
        if options.is_http_option:
            raise
        return f"http: {error.strerror}, then run `mcpctl config reload`"
    return ""


def _describe_crash(instance: str, killed: int) -> str:
    """Log that a daemon has ended without stopping, and return that for the history."""
    message = "the previous mcpd ended without stopping: it was killed, or it crashed"
    if killed:
        message += f"; killed {killed} process{'' if killed == 1 else 'es'} that it left behind"
    log.warning("%s (daemon %s)", message, instance)
    return message


class _Daemon:
    def __init__(
        self,
        options: DaemonOptions,
        redactor: Redactor,
        own: OwnDescriptors,
        listener: sockets.socket,
        ports: list[sockets.socket],
        store: PortStore,
        runtime: str,
        earlier_ends: Sequence[str] = (),
        http_problem: str = "",
        taken: TakeOver | None = None,
    ) -> None:
        """Build all components, from the lowest to the highest: each gets those that it uses.

        Two arrows point up, and lead to what is created later, on demand: the logins, which need the
        supervisor, and HTTP, which needs the gateway. The supervisor gets the gateway when it runs.

        `earlier_ends`: how daemons before this one ended, if not in the usual way. `http_problem`: why the
        port in the settings is not open.
        """
        environ, loaded, instance = options.environ, options.loaded, own.instance
        self._options, self._own, self._taken = options, own, taken
        self._listener, self._ports, self._runtime = listener, ports, runtime
        self._store, self._is_handed_over = store, False
        self._stop_requested, self._stop_reason = trio.Event(), ""
        self._draining = trio.CancelScope()
        self._force_stop = trio.Event()
        self._connections: set[SocketConnection] = set()
        self._undecided: set[OpenConnection] = set()
        self._socket_limit = ConnectionLimit("unix")
        cluster = None if options.http is None else options.http.cluster
        self._cluster, self._redis = _join_cluster(cluster), "" if cluster is None else cluster.redis
        if cluster is not None:
            password = urlsplit(cluster.redis).password or ""
            redactor.add(filter(None, [cluster.key, password, unquote(password)]))
        # 1. What is on disk.
        self._state = state = Path(paths.state_dir(environ))
        self._state_file = StateFile(state, Path(paths.cache_dir(environ)))
        if taken is None:
            self._state_file.claim()
        else:
            self._state_file.claimed = taken.state.claim
        self._history = EventHistory(state / "history.jsonl", redactor.mask)
        self._call_log = CallLog(state / "calls.jsonl", redactor)
        self._record_start(earlier_ends)
        # 2. The servers.
        self._events: Broadcast[Event] = Broadcast()
        self._guardian = Guardian(
            instance,
            os.path.join(runtime, containers.CONTAINERS, instance),
            None if taken is None else taken.state.guardian,
        )
        self._logins = DeferredLoginService(
            lambda: bool(self._redis) or (state / "login").exists(), self._create_login_service
        )
        self._context = SupervisorContext(
            instance=instance,
            environ=environ,
            store=self._state_file,
            guard=self._guardian,
            redactor=redactor,
            secrets=Secrets(instance, environ, redactor),
            log_dir=state / "logs",
            start_limiter=trio.CapacityLimiter(loaded.settings.max_starts),
            random=random.random,
            announce=self._publish,
            credentials_for=self._logins.credentials_for,
            runtime=runtime,
            debug=options.debug,
            handed_over={} if taken is None else {each.label: each for each in taken.state.servers},
            child_numbers=itertools.count(1 if taken is None else taken.state.next_child),
        )
        self._supervisor = Supervisor(self._context)
        self._shared = None if self._cluster is None else self._share(self._cluster)
        self._toggles = None
        if self._shared is not None:
            self._toggles = SharedToggles(self._supervisor, self._state_file, self._shared.exchange_soon)
            self._call_log.shared = self._share_calls(self._shared)
            self._shared.parts += [self._toggles, self._call_log.shared]
        # 3. Which servers there are.
        self._configuration = ActiveConfig(
            loaded,
            options.config_path,
            environ,
            self._supervisor,
            self._state_file,
            redactor,
            state,
            http_problem,
            self._open_http,
        )
        self._open_ports = ExitStack()
        # 4. What can be done with them.
        self._http = DeferredHttp(self._create_http_api)
        self._operations = Operations(
            supervisor=self._supervisor,
            config=self._configuration,
            redactor=redactor,
            events=self._events,
            event_history=self._history,
            logins=self._logins,
            http=self._http,
            instance=instance,
            socket=options.socket,
            stop=self._stop,
            upgrade=lambda: self._upgrade.run(),
            describe_upgrade=lambda: None if taken is None else taken.result(),
            environ=environ,
            store=self._state_file,
            replica=ALONE if self._cluster is None else self._cluster.replica,
            shared=self._shared,
            toggles=self._toggles,
        )
        # 5. The clients.
        self._gateway = Gateway(self._operations, self._call_log)
        self._upgrade = Upgrade(
            own,
            self._context,
            self._gateway,
            self._guardian,
            self._http,
            self._connections,
            self._undecided,
            [self._state_file, self._history, self._call_log],
            lambda: describe_listeners(self._listener, self._ports, self._store),
        )

    def _record_start(self, earlier_ends: Sequence[str]) -> None:
        for end in earlier_ends:
            self._history.record_daemon(end)
        if self._state_file.read_problem:
            self._history.record_daemon(self._state_file.read_problem)
        how = "started" if self._taken is None else f"replaced {self._taken.state.version}"
        self._history.record_daemon(f"mcpd {__version__} {how} (pid {os.getpid()})")

    def _create_login_service(self) -> LoginService:
        from mcpd.auth.service import LoginService

        return LoginService(
            self._supervisor,
            self._state,
            environ=self._context.environ,
            redactor=self._context.redactor,
            announce=self._context.announce,
            on_resume=self._context.on_resume,
            resolve=self._resolve_for_login,
            read_secret=self._context.secrets.fetch,
            may_notify=lambda: self._configuration.loaded.settings.login_notifications,
            storage=self._options.loaded.settings.login_storage,
            store=self._shared_logins(),
        )

    def _shared_logins(self) -> TokenStore | None:
        """Return what keeps the logins of all replicas; None if there is nothing."""
        if self._cluster is None or not self._redis:
            return None
        from mcpd.auth.shared_token_store import SharedKey, SharedTokenStore

        return SharedTokenStore(self._redis, SharedKey(self._cluster.replica.key))

    def _share(self, cluster: Cluster) -> SharedState | None:
        """Return what the replicas share; None if that is nothing."""
        if not self._redis:
            return None
        from mcpd.state.shared import SharedState

        owner = f"{os.uname().nodename} {self._state}"
        return SharedState(self._redis, cluster.replica.key, cluster.address, owner)

    def _share_calls(self, state: SharedState) -> SharedCalls:
        from mcpd.calls.shared_calls import SharedCalls

        return SharedCalls(state, lambda: self._configuration.loaded.settings.call_log_size << 20)

    async def _resolve_for_login(self, spec: RemoteSpec) -> RemoteSpec:
        """Return a definition with its secrets. Raises LoginFailed."""
        try:
            resolved = await self._context.secrets.resolve(spec)
        except SecretUnavailable as error:
            raise LoginFailed(f"{spec.name}: {error}", server=spec.name, step="definition") from None
        assert isinstance(resolved, RemoteSpec)
        return resolved

    def _create_http_api(self) -> HttpApi:
        from mcpd.api.http.routes import HttpApi

        return HttpApi(self._gateway, self._state, self._cluster)

    def _open_http(self, http: HttpSettings) -> str:
        """Open the port in the settings while the daemon runs. Returns why that failed, or nothing."""
        if self._http.listener is not None:
            return f"http: {http.listen} is not used, because mcpd listens at {self._http.listener.url}"
        try:
            with ExitStack() as opened:
                listener = opened.enter_context(listeners.bind_tcp(http.listen))
                self._http.accept(self._open_port(listener, http, opened))
                self._open_ports.enter_context(opened.pop_all())
        except OSError as error:
            return f"http: {error.strerror}, then run `mcpctl config reload`"
        except (UnusablePath, Unsupported) as error:
            return f"http: {error}"
        self._store.keep(listener)
        return ""

    def _publish(self, event: Event) -> None:
        """Send an event to all listeners and record it, with the actor that caused it."""
        if by := current_actor():
            event = attrs.evolve(event, by=self._context.redactor.mask(by))
        self._events.send(event)
        self._history.record(event)

    def _stop(self, reason: str) -> None:
        if not self._stop_requested.is_set():
            self._history.record_daemon(f"stopping: {reason}", current_actor())
            self._stop_reason = reason
            self._stop_requested.set()

    async def run(self) -> None:
        with self._open_ports as opened:
            await self._run([self._open_port(each, self._options.http, opened) for each in self._ports])

    def _open_port(self, listener: sockets.socket, http: HttpSettings | None, stack: ExitStack) -> HttpPort:
        """Return the port, which `stack` closes. Raises UnusablePath, OSError."""
        required = self._options.require_http_token
        return stack.enter_context(
            self._http.api.open_port(listener, self._state, self._runtime, required, http)
        )

    async def _run(self, ports: list[HttpPort]) -> None:
        async with trio.open_nursery() as services, self._logins.running_in(services):
            await services.start(self._guardian.run)
            services.start_soon(self._state_file.run)
            services.start_soon(self._history.run)
            services.start_soon(self._call_log.run)
            if self._shared is not None:
                services.start_soon(self._shared.run)
            services.start_soon(self._reap_strays)
            services.start_soon(
                containers.end_forgotten, self._runtime, os.path.join(self._runtime, "instances")
            )
            services.start_soon(self._handle_signals)
            services.start_soon(self._kill_when_forced)
            self._options.on_started()
            async with trio.open_nursery() as servers:
                servers.start_soon(self._supervisor.run, self._gateway)
                servers.start_soon(self._gateway.run)
                await self._supervisor.wait_applied(self._supervisor.generation)  # clients see all servers
                if self._taken is not None:
                    await self._taken.wait_connected(self._supervisor)
                async with trio.open_nursery() as clients:
                    if self._taken is not None:
                        await self._taken.serve_clients(
                            self._supervisor, clients, ports, self._serve, self._socket_limit
                        )
                        self._taken.finish(self._context)
                    async with trio.open_nursery() as accepting:
                        if (interval := systemd.watchdog_interval()) is not None:
                            accepting.start_soon(systemd.feed_watchdog, interval)
                        accepting.start_soon(watch_config, self._configuration)
                        serve = partial(listeners.serve, clients=clients, limit=self._socket_limit)
                        await accepting.start(serve, self._listener, self._serve)
                        for port in ports:
                            await accepting.start(_serve_port, port, clients)
                        with self._http.accepting(partial(_accept, accepting, clients)):
                            await self._serve_until_stopped()
                        accepting.cancel_scope.cancel(reason="stopping")
                    await self._drain()
                    clients.cancel_scope.cancel(reason="stopping")
                servers.cancel_scope.cancel(reason="stopping")
            services.cancel_scope.cancel(reason="stopping")

    async def _serve_until_stopped(self) -> None:
        systemd.notify(READY="1")
        socket = self._operations.socket
        log.info("mcpd %s is listening on %s (pid %d)", __version__, socket, os.getpid())
        await self._stop_requested.wait()
        log.info("stopping: %s", self._stop_reason)
        systemd.notify(STOPPING="1")
        if self._http.begin_stopping():  # balancers notice it, and send nothing more
            with trio.move_on_after(_NETWORK_NOTICE):
                await self._force_stop.wait()
        self._is_handed_over = self._store.leave()
        if self._is_handed_over:
            self._http.api.hand_over()

    async def _serve(self, connection: sockets.socket, slot: Slot, arrival: Arrival | None = None) -> None:
        undecided = OpenConnection(connection.fileno(), slot.pid)
        self._undecided.add(undecided)
        try:
            http = False if arrival is not None else await listeners.speaks_http(connection, slot)
        finally:
            self._undecided.discard(undecided)
        if http:
            await self._http.api.serve_unix(connection, slot)
        elif http is not None:
            client = SocketConnection(self._gateway, connection, slot.pid, slot, arrival=arrival)
            self._connections.add(client)
            try:
                await client.run()
            finally:
                self._connections.remove(client)

    async def _drain(self) -> None:
        """Refuse new calls, let those in progress finish for DRAIN_TIMEOUT, then fail the rest."""
        running = [server for server in self._all_servers() if server.upstream is not None]
        self._gateway.refuse_new_calls()
        self._gateway.end_subscriptions()
        limit = NETWORK_DRAIN_TIMEOUT if self._http.serves_network else DRAIN_TIMEOUT
        self._draining.deadline = trio.current_time() + limit
        with self._draining:
            # Polling is fine here: once per process, for at most DRAIN_TIMEOUT
            while any(server.upstream and server.upstream.link.requests.is_busy for server in running):  # noqa: ASYNC110
                await trio.sleep(0.02)
        self._operations.close_all()
        self._http.close("mcpd is stopping")
        # Gives the outboxes time to send the answers.
        await trio.sleep(_REDIRECT_TIME if self._is_handed_over else 0.05)
        connections = list(self._connections)
        with trio.move_on_after(_LAST_READS_TIMEOUT):  # what clients have sent until now is refused
            for client in connections:
                client.stop_reading()
            for client in connections:
                await client.has_read_all.wait()

    async def _handle_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            async for number in received:
                if number != signal.SIGHUP and self._stop_requested.is_set():
                    log.warning("%s again: killing the remaining processes", signal.Signals(number).name)
                    self._force_stop.set()
                elif number == signal.SIGHUP:
                    await self._reload()
                else:
                    self._stop(signal.Signals(number).name)

    async def _reload(self) -> None:
        try:
            with acting_for(lambda: "SIGHUP"):
                await self._configuration.reload()
        except McpdError:
            log.debug("reload failed; the errors were logged and are in `mcpctl status`")
        except Exception:
            log.exception("reloading the configuration failed; nothing was changed")

    async def _kill_when_forced(self) -> None:
        """After a second stop signal: do not wait for calls, and send SIGKILL to all servers."""
        await self._force_stop.wait()
        self._draining.cancel(reason="forced stop")
        self._operations.close_all()  # first, so that clients see this reason and not the server's exit
        while True:  # repeat: a server may just be starting
            self._supervisor.kill_all()
            await trio.sleep(_KILL_INTERVAL)

    async def _reap_strays(self) -> None:
        """Reap orphaned descendants. mcpd is their subreaper, so they would otherwise remain zombies."""
        with trio.open_signal_receiver(signal.SIGCHLD) as received:
            async for _ in received:
                processes.reap_orphans(self._own_children())
                # Wait until a zombie is old enough to be distinguished from a child that is being started.
                await trio.sleep(processes.MIN_REAP_AGE + 0.1)
                processes.reap_orphans(self._own_children())

    def _all_servers(self) -> list[ManagedServer]:
        return self._supervisor.everything()

    def _own_children(self) -> set[int]:
        pids = {server.child.pid for server in self._all_servers() if server.child is not None}
        pids |= self._context.secrets.command_pids
        return pids | schema_checker_pids() | {self._guardian.pid or 0}


def _join_cluster(settings: ClusterSettings | None) -> Cluster | None:
    if settings is None:
        return None
    from mcpd.api.http.cluster import Cluster

    return Cluster(settings)


def _accept(accepting: trio.Nursery, clients: trio.Nursery, port: HttpPort) -> None:
    accepting.start_soon(_serve_port, port, clients)


async def _serve_port(
    port: HttpPort, clients: trio.Nursery, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Accept until cancelled; serve the connections in `clients`."""
    async with trio.open_nursery() as nursery:
        if port.background is not None:
            nursery.start_soon(port.background)
        await listeners.serve(port.listener, port.serve, clients, port.limit, task_status=task_status)
