"""The set of servers: `set_desired` says which there should be, one task starts and stops them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
import trio

from mcpd.io.broadcast import AsyncValue
from mcpd.model.errors import UnknownServer
from mcpd.model.events import Event, EventKind
from mcpd.model.server_spec import ServersDiff, ServerSpec, diff_specs
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten, similar_names
from mcpd.process.suspend import watch_for_suspend
from mcpd.state.history import current_actor
from mcpd.supervision.legacy_companion import LegacyCompanion
from mcpd.supervision.managed_server import ManagedServer, NoClients, ServerClients
from mcpd.supervision.supervisor_context import SupervisorContext

log = logging.getLogger("mcpd.supervisor")

_AT_ONCE = 16
"""Servers that are created, started or stopped in one turn of the event loop: each takes up to 0.3 ms."""
_RERUN_DELAY = 1.0
"""Seconds before a server whose task raised is run again, so that a repeating bug does not spin."""

_REPLACED = "it was removed, or its definition changed"
_RESUME_PROBE_SPREAD = 2.0
"""Seconds over which the health checks after a suspend are spread."""


class _RunningServer(msgspec.Struct, eq=False):
    """A server and the scope of the task that runs it."""

    server: ManagedServer
    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)
    ended: trio.Event = msgspec.field(default_factory=trio.Event)

    async def run(self) -> None:
        """Run until the scope is cancelled. A bug delays this server by a second and affects no other."""
        try:
            with self.scope:
                while True:
                    try:
                        await self.server.run()
                    except* Exception:
                        name = self.server.spec.name
                        log.exception("%s: an error in mcpd itself; the server is started again", name)
                        with suppress(Exception):  # this may raise the same bug, which has been logged
                            self.server.reset_after_bug()
                    await trio.sleep(_RERUN_DELAY)
        finally:
            self.server.close()
            self.ended.set()


class Instances:
    """The dedicated instances and companions of the servers in `of`: each serves some clients only."""

    def __init__(self, context: SupervisorContext, of: Mapping[str, _RunningServer]) -> None:
        self._context = context
        self._of = of
        self._running: dict[ManagedServer, _RunningServer] = {}
        self._nursery: trio.Nursery | None = None
        self._clients: ServerClients = NoClients()

    def start_in(self, nursery: trio.Nursery, clients: ServerClients) -> None:
        """Run all instances that are started from now on in `nursery`, for these clients."""
        self._nursery, self._clients = nursery, clients

    def servers(self) -> list[ManagedServer]:
        return list(self._running)

    def running(self) -> list[_RunningServer]:
        return list(self._running.values())

    def start(self, of: ManagedServer, spec: ServerSpec) -> ManagedServer:
        """Start a dedicated instance of `of` under the name of `spec`; it ends with `of` at the latest.

        Raises NotReady while `of` is stopping, because its definition is outdated then.
        """
        self._require_running(of)
        server = ManagedServer(spec, self._context, of, self._clients)
        self._start(server)
        return server

    def start_companion(self, of: ManagedServer) -> LegacyCompanion:
        """Open the second connection of `of`. Raises NotReady like `start`."""
        self._require_running(of)
        server = of.companion = LegacyCompanion(of, self._context, self._clients)
        self._start(server)
        return server

    def _require_running(self, server: ManagedServer) -> None:
        life = self._of.get(server.spec.name)
        if life is None or life.server is not server or life.scope.cancel_called:
            raise server.not_ready()

    def _start(self, server: ManagedServer) -> None:
        life = self._running[server] = _RunningServer(server)
        assert self._nursery is not None, "the supervisor runs"
        self._nursery.start_soon(self._run, life, name=f"server {server.label}")

    async def _run(self, life: _RunningServer) -> None:
        try:
            await life.run()
        finally:
            server = life.server
            del self._running[server]
            if not isinstance(server, LegacyCompanion):
                cause = "the process for some of the clients has ended"
                announce_removal(self._context, server.spec.name, cause)
            elif server.original.companion is server:
                server.original.companion = None
                server.original.publish_status()

    def stop(self, server: ManagedServer, reason: str) -> None:
        """Stop an instance or companion soon and fail its pending requests with `reason`. Synchronous."""
        life = self._running.get(server)
        if life is not None:
            if server.upstream is not None:
                server.upstream.link.close(reason)
            life.scope.cancel(reason=reason)

    def stop_those_of(self, server: ManagedServer) -> None:
        """Stop all instances of a server that is stopping."""
        for life in self._running.values():
            if life.server.original is server:
                life.scope.cancel(reason=_REPLACED)

    def is_ending(self, instance: ManagedServer) -> bool:
        """Return whether an instance or companion has ended or is stopping: nothing can be sent to it."""
        life = self._running.get(instance)
        return life is None or life.scope.cancel_called


def announce_removal(context: SupervisorContext, name: str, cause: str, by: str = "") -> None:
    at = rfc3339(time.time())
    context.announce(Event(kind=EventKind.REMOVED, at=at, server=name, message=cause, by=by))


class Supervisor:
    """Reconciles the running servers with the desired set.

    `run` is the only task that starts or stops servers. If the set changes again before it was applied, the
    intermediate set is skipped. A server that cannot start has a failed status; applying never raises.
    """

    def __init__(self, context: SupervisorContext) -> None:
        self._context = context
        self._desired: AsyncValue[tuple[int, Mapping[str, ServerSpec]]] = AsyncValue((0, {}))
        self._removed_by: dict[str, str] = {}
        """Removed server → who removed it, from then until it has ended."""
        self._applied: AsyncValue[int] = AsyncValue(0)
        self._running: dict[str, _RunningServer] = {}
        self._clients: ServerClients = NoClients()
        self.instances = Instances(context, self._running)

    @property
    def changes(self) -> int:
        """The number of changes of the set of servers, of their states and of their lists so far."""
        return self._context.changes.value

    @property
    def generation(self) -> int:
        return self._desired.value[0]

    @property
    def desired(self) -> Mapping[str, ServerSpec]:
        return self._desired.value[1]

    def plan(self, desired: Mapping[str, ServerSpec]) -> ServersDiff:
        return diff_specs(self.desired, desired)

    def set_desired(self, desired: Mapping[str, ServerSpec]) -> tuple[int, ServersDiff]:
        """Replace the desired set; return its generation and the changes. Synchronous."""
        plan = self.plan(desired)
        for name in desired:
            self._removed_by.pop(name, None)
        self._removed_by.update(dict.fromkeys(plan.removed, current_actor()))
        self._desired.set((self.generation + 1, dict(desired)))
        return self.generation, plan

    async def wait_applied(self, generation: int) -> None:
        """Wait until the set of `generation`, or a newer one, is in effect."""
        await self._applied.wait_until(lambda applied: applied >= generation)

    async def wait_replaced(self, server: ManagedServer) -> ManagedServer:
        """Return the server that replaces `server` if its definition has changed, once it exists.

        Returns `server` itself if it is not replaced, or if it takes longer than its connect timeout to stop.
        """
        name = server.spec.name
        current, wanted = self.find(name), self.desired.get(name)
        if (
            current is None
            or wanted is None
            or (current is server and wanted.identity == server.spec.identity)
        ):
            await trio.lowlevel.checkpoint()
            return server
        with trio.move_on_after(server.spec.timeouts.connect):
            await self.wait_applied(self.generation)
        return self.find(name) or server

    def get(self, name: str) -> ManagedServer:
        """Return the configured server `name`. Raises UnknownServer with suggestions."""
        life = self._running.get(name)
        if life is not None:
            return life.server
        known = sorted(self._running)
        if near := similar_names(name, known):
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = f"configured servers: {', '.join(known) or 'none'}"
        shown = shorten(name)
        raise UnknownServer(f"no server named {shown!r}; {hint}", server=shown)

    def find(self, name: str) -> ManagedServer | None:
        life = self._running.get(name)
        return None if life is None else life.server

    def get_any(self, name: str) -> ManagedServer:
        """Return the server or dedicated instance `name`, to inspect or reconnect it. Raises UnknownServer.

        Do not use an instance's tools through this: it belongs to its clients.
        """
        if name not in self._running:
            for instance in self.instances.servers():
                if instance.spec.name == name:
                    return instance
        return self.get(name)

    def servers(self) -> list[ManagedServer]:
        """Return the configured servers in the order of their definitions, without dedicated instances."""
        order = {name: index for index, name in enumerate(self.desired)}
        lives = sorted(self._running.items(), key=lambda item: order.get(item[0], len(order)))
        return [life.server for _, life in lives]

    def everything(self) -> list[ManagedServer]:
        """Return the configured servers, then the dedicated instances and companions."""
        return [*self.servers(), *self.instances.servers()]

    def announce(self, event: Event) -> None:
        self._context.announce(event)

    def stop_all(self, reason: str) -> None:
        """Start stopping all servers, permanently. Cancel `run` soon after."""
        for life in self._all_running():
            life.scope.cancel(reason=reason)

    def kill_all(self) -> None:
        """Send SIGKILL to the process groups of all servers."""
        for life in self._all_running():
            if life.server.child is not None:
                life.server.child.signal_group(9)

    def _all_running(self) -> list[_RunningServer]:
        return [*self._running.values(), *self.instances.running()]

    async def run(self, clients: ServerClients | None = None) -> None:
        """Apply each desired set until cancelled, and create its servers with `clients`. When it returns, all
        servers have stopped.
        """
        self._clients = clients or self._clients
        async with trio.open_nursery() as nursery:
            self.instances.start_in(nursery, self._clients)
            nursery.start_soon(watch_for_suspend, self._on_resume)
            running: Mapping[str, ServerSpec] = {}
            seen = -1
            while True:
                generation, desired = await self._desired.wait_until(
                    lambda wish, seen=seen: wish[0] != seen  # type: ignore[misc]  # bound on purpose
                )
                await self._reconcile(nursery, running, desired)
                running = {name: spec for name, spec in desired.items() if name in self._running}
                seen = generation
                self._applied.set(generation)

    def _on_resume(self, slept: float) -> None:
        """Check the remote servers after a suspend, spread over time: their connections are probably dead."""
        log.info("resumed after %.0f s of suspend: checking the remote servers", slept)
        self._context.on_resume(slept)
        for life in self._all_running():
            life.server.probe_soon(_RESUME_PROBE_SPREAD * self._context.random())

    async def _reconcile(
        self, nursery: trio.Nursery, running: Mapping[str, ServerSpec], desired: Mapping[str, ServerSpec]
    ) -> None:
        plan = diff_specs(running, desired)
        await self._start(nursery, [desired[name] for name in plan.added])
        replaced = []
        for name in plan.changed:
            if running[name].identity != desired[name].identity or not self._update(desired[name]):
                replaced.append(name)
        for number, name in enumerate((*plan.removed, *replaced), 1):
            if not number % _AT_ONCE:
                await trio.lowlevel.checkpoint()
            self._running[name].server.drop_upstream()  # calls from now on wait for the replacement
            self._running[name].scope.cancel(reason=_REPLACED)
            self.instances.stop_those_of(self._running[name].server)
        for name in (*plan.removed, *replaced):
            await self._running[name].ended.wait()  # the old server must have ended before its name is reused
            del self._running[name]
            self._context.changes.value += 1
            if name in replaced:
                await self._start(nursery, [desired[name]])
            else:
                announce_removal(
                    self._context, name, "no longer in the configuration", self._removed_by.pop(name, "")
                )

    def _update(self, spec: ServerSpec) -> bool:
        """Apply a definition of the same identity. Return False after a bug: the server must be replaced."""
        try:
            self._running[spec.name].server.update_spec(spec)
            self._context.changes.value += 1  # what clients see of it depends on its definition, such as tags
        except Exception:
            log.exception("%s: an error in mcpd itself; the server is started again", spec.name)
            return False
        return True

    async def _start(self, nursery: trio.Nursery, specs: Sequence[ServerSpec]) -> None:
        """Start servers, a few in each turn of the event loop. They appear together, when all are created."""
        created: deque[_RunningServer] = deque()
        try:
            for number, spec in enumerate(specs, 1):
                if (server := self._create(spec)) is not None:
                    created.append(_RunningServer(server))
                if not number % _AT_ONCE:
                    await trio.lowlevel.checkpoint()
            self._running.update({life.server.spec.name: life for life in created})
            self._context.changes.value += len(created)
            while created:
                life = created.popleft()
                nursery.start_soon(life.run, name=f"server {life.server.spec.name}")
                if not len(created) % _AT_ONCE:
                    await trio.lowlevel.checkpoint()
        finally:
            for life in created:  # the daemon stops
                life.server.log.close()
                life.server.close()
                life.ended.set()

    def _create(self, spec: ServerSpec) -> ManagedServer | None:
        """Create a server. If a bug prevents this, the server is left out until the next set is applied."""
        try:
            return ManagedServer(spec, self._context, clients=self._clients)
        except Exception:
            problem = (
                "an error in mcpd itself; the server is left out until the configuration is loaded again"
            )
            log.exception("%s: %s", spec.name, problem)
            event = Event(kind=EventKind.CONFIG, at=rfc3339(time.time()), server=spec.name, message=problem)
            self._context.announce(event)
            return None
