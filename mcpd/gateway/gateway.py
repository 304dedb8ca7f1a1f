"""The gateway: all MCP clients of the daemon, their views, and the notifications they get."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, Call, Caller, Spawn
from mcpd.calls.client_context import ClientContext, ClientIdentity
from mcpd.calls.engine import CallEngine
from mcpd.calls.kept_results import KeptResults
from mcpd.calls.limits import IncompleteLines
from mcpd.calls.permissions import Policies
from mcpd.calls.routes import StageFactory
from mcpd.calls.shared_approvals import SharedApprovals
from mcpd.calls.shared_limits import SharedLimits
from mcpd.calls.stages.approval import NOTIFICATION_INTERVAL, Approvals, ApprovalStageFactory
from mcpd.calls.stages.cache import CacheStageFactory
from mcpd.calls.stages.call_log import CallLog, CallLogStageFactory
from mcpd.calls.stages.known_items import KnownItemStageFactory
from mcpd.calls.stages.large_results import LargeResultStageFactory
from mcpd.calls.stages.login import LoginLinks, LoginLinkStageFactory, LoginToolStageFactory
from mcpd.calls.stages.lost_session import LostSessionStageFactory
from mcpd.calls.stages.policy import PolicyStageFactory
from mcpd.calls.stages.tasks import TaskStageFactory
from mcpd.calls.stages.tool_overrides import ToolOverrideStageFactory
from mcpd.calls.stages.use_limits import UseLimitStageFactory
from mcpd.calls.stages.validation import ValidationStageFactory
from mcpd.files.paths import cache_dir
from mcpd.gateway import legacy, lists, modern
from mcpd.gateway.aggregate import AggregateServer
from mcpd.gateway.built_in.read_result import answer_read
from mcpd.gateway.built_in.table import answer_unknown_tool
from mcpd.gateway.instances import DedicatedServers
from mcpd.gateway.pass_through import PassThrough
from mcpd.gateway.session import ClientSession, SessionMethods
from mcpd.gateway.subscriptions import ClientSubscriptions
from mcpd.gateway.tool_search import ToolSearch
from mcpd.gateway.views import SingleServer, View
from mcpd.model.errors import UnknownProfile
from mcpd.model.events import Event, EventKind
from mcpd.model.policy import ALL_SERVERS, PolicyRule, Profile, match_profile
from mcpd.model.status import ServerState, rfc3339
from mcpd.operations import Operations
from mcpd.process.desktop_notification import LimitedNotifications
from mcpd.protocol import extensions
from mcpd.protocol.upstream_session import LEVELS, ServerNotification
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.supervisor_context import WaitingReport
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message, strip_reserved

log = logging.getLogger("mcpd.gateway")
_EVERY_SERVER = Profile()
_LISTS_CHANGE = (ServerState.CONNECTED, ServerState.NEEDS_AUTH)
"""The states in which the lists of a person's server may be others than before."""

CAPABILITIES: Mapping[str, object] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
    "extensions": {extensions.UI: extensions.UI_CLIENT},
}
"""Declared to every server: what some client may support. A tool of an MCP App has text for the others."""
METHODS = SessionMethods(
    legacy.METHODS,
    modern.METHODS,
    legacy.NOTIFICATIONS,
    lists.answer_list,
    answer_read,
    modern.apply_request_meta,
    modern.ClientListenStream,
    answer_unknown_tool,
)


class Gateway:
    """One per daemon. `run` must run for as long as there are sessions. Implements `ServerClients`."""

    def __init__(self, core: Operations, call_log: CallLog | None = None) -> None:
        self.core = core
        self.sessions: dict[ClientSession, None] = {}
        self.waiting_requests: set[trio.CancelScope] = set()
        """The tasks of clients' requests that wait for something."""
        self.incomplete_lines = IncompleteLines()
        notifications = LimitedNotifications(
            core.environ,
            lambda: core.config.loaded.settings.approval_notifications,
            self.spawn,
            NOTIFICATION_INTERVAL,
        )
        self.policies = Policies(core)
        self.approvals = Approvals(
            self._announce_approval,
            lambda *texts: notifications.show(*map(core.redactor.mask, texts)),
            lambda *rule: core.config.insert_rule(*rule),
        )
        self.call_log = call_log
        limits = None if core.shared is None else SharedLimits(core.shared)
        if core.shared is not None:
            shared = SharedApprovals(core.shared, self.approvals, core.redactor.mask, self.spawn)
            self.approvals.shared = shared
        self.kept_results = KeptResults(Path(cache_dir(core.environ)) / "results")
        stages: list[StageFactory] = [
            LoginToolStageFactory(),  # its answer needs no permission, and is never sent
            # These come before the cache, because they also apply to cached results.
            PolicyStageFactory(self.policies),
            TaskStageFactory(self.policies),
            UseLimitStageFactory(self.policies, limits),
            ApprovalStageFactory(self.policies, self.approvals),
            KnownItemStageFactory(),
            ValidationStageFactory(),
            ToolOverrideStageFactory(),  # what comes before it knows the tool as clients do
            CacheStageFactory(),
            LoginLinkStageFactory(LoginLinks(core, self.spawn, _notify_elicitation_complete)),
            LostSessionStageFactory(),
            LargeResultStageFactory(self.kept_results),
        ]
        if call_log is not None:
            stages.append(CallLogStageFactory(call_log))
        self.dedicated_servers = DedicatedServers(core, self.spawn)
        self.tool_search = ToolSearch(core, self.policies)
        self.calls = CallEngine(core, self.spawn, self.roots, self._own_server, stages, core.replica)
        self.subscriptions = ClientSubscriptions(self.spawn)
        self._pass_through = PassThrough(self._users_of)
        self.list_changes = lists.ListChanges(
            self.sessions, self.calls.connections.companions.used_by, self.dedicated_servers.users
        )
        self._nursery: trio.Nursery | None = None
        self._synced_servers: dict[str, ManagedServer] = {}
        """Servers that know all interests, by name. A name may get a new server."""
        self._announced_rules: dict[str, tuple[PolicyRule, ...]] = {}
        """The policies that clients know of, by server."""
        self._aggregates: dict[str, AggregateServer] = {}
        """The views of several servers, by the names of their profiles."""

    # ── clients come and go ─────────────────────────────────────────────────────────────────────

    def view(self, server: str | None = None, profile: str | None = None) -> View:
        """Return what a client sees. Raises UnknownServer, UnknownProfile."""
        if server is not None:
            return SingleServer(self.core, self.core.supervisor.get(server))
        return self.profile_view(profile)

    def profile_view(self, profile: str | None) -> AggregateServer:
        """Return the view of all servers of a profile, or of all. Raises UnknownProfile."""
        profiles = self.core.config.loaded.settings.profiles
        if not profile or profile == ALL_SERVERS:
            chosen = _EVERY_SERVER
        elif profile in profiles:
            chosen = profiles[profile]
        else:
            known = ", ".join(sorted(profiles)) or "none (define them in `settings.profiles`)"
            raise UnknownProfile(f"no profile named {profile!r}; known profiles: {known}")
        view = self._aggregates.get(chosen.name)
        if view is None:
            view = self._aggregates[chosen.name] = AggregateServer(self.core, chosen)
        return view

    def profile_for(self, directory: str | None) -> str | None:
        """Return the profile for a client that named none, by its working directory.

        Only the user's configuration decides; nothing in that directory is read.
        """
        if directory is None or not directory.startswith("/"):
            return None
        found = match_profile(directory, self.core.config.loaded.settings.profile_by_directory)
        return None if found == ALL_SERVERS else found

    def open_session(
        self, view: View, client: ClientIdentity, send: Callable[[bytes], None], spawn: Spawn
    ) -> ClientSession:
        """Open a client's session. The caller closes it; `spawn` must run tasks that end with it."""
        if person := client.person_id:
            view = view.for_person(person, partial(self.dedicated_servers.source, person))
        session = ClientSession(self, METHODS, view, client, send, spawn)
        self.sessions[session] = None
        if person:
            self.dedicated_servers.sources(session, view.servers())
        return session

    def on_session_closed(self, session: ClientSession) -> None:
        self.sessions.pop(session, None)
        self.subscriptions.on_session_closed(session)
        used = self.servers_of(session)
        self.dedicated_servers.on_session_closed(session)
        self.calls.on_caller_left(session)
        for server in used:
            server.interests.forget(session)
        if session.roots:
            _notify_roots_changed(used)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task that outlives the client it is for."""

        async def contained() -> None:
            try:
                await work()
            except Exception:
                log.exception("an error in mcpd itself, in a task of a client")

        if self._nursery is not None:
            self._nursery.start_soon(contained)

    async def run(self) -> NoReturn:
        """Notify clients of changes until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                with self.core.events.listen() as events:
                    async for event in events:
                        try:
                            self._on_event(event)
                        except Exception:
                            log.exception("an error in mcpd itself, notifying clients of %s", event.kind)
        raise AssertionError("cancelled")

    def refuse_new_calls(self) -> None:
        """Refuse new calls with NotReady, because the daemon stops. Those in progress go on."""
        self.core.refuse_new_calls()
        self.calls.routes.forget()

    def end_subscriptions(self) -> None:
        """End every subscription with a result: the daemon stops."""
        for session in list(self.sessions):
            for listen in list(session.listen_streams.values()):
                listen.end()
            session.listen_streams.clear()

    def capabilities(self, server: ManagedServer) -> Mapping[str, object]:
        """See `ServerClients`. A dedicated server of one client learns exactly what this client declares, and
        that of several the extensions of its own clients."""
        if server.spec.share == "all" or server.original is None:
            return CAPABILITIES
        declared = [
            user.declared_to_own_servers.capabilities for user in self.dedicated_servers.users(server)
        ]
        if server.spec.share == "client" and len(declared) == 1:
            return declared[0]
        return {**CAPABILITIES, "extensions": extensions.united(each.get("extensions") for each in declared)}

    # ── what servers say ────────────────────────────────────────────────────────────────────────

    def on_request(
        self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
    ) -> bool:
        """See `ServerClients`. A bug in mcpd fails the request, not the server's connection."""
        try:
            return self._pass_through.send_request(
                server, link, message, exchange
            ) or self.calls.questions.requests.route(server, link, message, exchange)
        except Exception:
            log.exception("%s: an error in mcpd itself, handling a request of this server", server.spec.name)
            self.calls.questions.requests.forget(link, message)
            return False

    def on_notification(self, server: ManagedServer, notification: ServerNotification) -> None:
        method = notification.method
        if method.endswith("/list_changed"):
            self.list_changes.notify(server, method.split("/")[1])
        elif method == "notifications/resources/updated":
            server.results.forget("resources")
            self.subscriptions.on_resource_updated(server, notification.uri)
        elif method == "notifications/message":
            levels_set = (
                session
                for session in self.sessions
                if session.is_initialized and session.context.log_level and server in self.servers_of(session)
            )
            forward_log_message(server, notification, levels_set)
        elif method == "notifications/elicitation/complete":
            client = self.calls.questions.urls.on_completed(server, notification)
            _notify_elicitation_complete(client, notification.params)
        elif method == "notifications/cancelled" and server.upstream is not None:
            try:
                self.calls.questions.requests.cancel(server.upstream.link, notification.params)
                self._pass_through.cancel(server.upstream.link, notification.params)
            except BadFrame:
                return
        else:
            self._pass_through.notify_client(server, notification)

    def describe_waiting(self, server: ManagedServer, mask: Callable[[str], str]) -> WaitingReport:
        """See `ServerClients`."""
        return self.calls.turns.describe(server, mask)

    def _on_event(self, event: Event) -> None:
        """Notify clients if a server was enabled, disabled or removed, or if names or policies changed."""
        if event.server is None:
            self._on_config_changed()
            self._on_profiles_changed()
            for view in self._aggregates.values():
                if view.announced_style is not view.style:
                    view.announced_style = view.style
                    self.list_changes.notify_view(view, ("tools", "prompts"))
        elif event.kind is EventKind.REMOVED:
            self._synced_servers.pop(event.server, None)
            for view in self._aggregates.values():
                view.release_lists()
            self.list_changes.on_removed(event.server)
        elif event.status is not None and (server := self.core.supervisor.find(event.server)) is not None:
            self._on_status(server, event.status.status)
        elif event.status is not None and event.status.status in _LISTS_CHANGE:
            for server in self.dedicated_servers.of_people(event.server):
                for feature in lists.FEATURES:
                    self.list_changes.notify(server, feature)

    def _on_status(self, server: ManagedServer, state: ServerState) -> None:
        """Not for a dedicated server: clients see the lists of its original."""
        if server.state is ServerState.DISABLED:
            self.dedicated_servers.on_disabled(server)
        self.list_changes.on_status(server, state)
        if state is ServerState.CONNECTED:
            self._sync_interests(server.spec.name)
            self._prepare_decisions([server])
            for session in self.sessions:
                if session.is_initialized and session.view.covers(server):
                    self.calls.connections.companions.open_for(session, session.context, [server])

    def _announce_approval(self, server: str, message: str) -> None:
        event = Event(
            kind=EventKind.APPROVAL,
            at=rfc3339(time.time()),
            server=server,
            message=self.core.redactor.mask(message),
        )
        self.core.supervisor.announce(event)

    def _on_config_changed(self) -> None:
        """Apply changed policies to calls and lists: what a client may use may be listed now, or not any
        more."""
        rules = {
            server.spec.name: self.policies.of(server).rules for server in self.core.supervisor.servers()
        }
        changed = {name for name, each in rules.items() if self._announced_rules.get(name, ()) != each}
        self._announced_rules = rules
        if not changed:
            return
        self.calls.routes.forget()
        self._prepare_decisions(self.core.supervisor.servers())
        for session in list(self.sessions):
            if any(server.spec.name in changed for server in session.view.servers()):
                for feature in lists.FEATURES:
                    session.notify_list_changed(feature)

    def _on_profiles_changed(self) -> None:
        """Apply changed profiles to clients that are connected. Those of a removed profile see nothing."""
        profiles = self.core.config.loaded.settings.profiles
        for name, view in self._aggregates.items():
            profile = profiles.get(name) or Profile(name=name, servers=())
            if name and profile != view.profile:
                view.use_profile(profile)
                self.list_changes.notify_view(view, lists.FEATURES)

    def _prepare_decisions(self, servers: Iterable[ManagedServer]) -> None:
        """Compare lists and clients with the rules now, and not when the first call arrives."""
        for server in servers:
            if self.policies.apply_to(server):
                self.spawn(partial(self.policies.prepare, server))
        for session in self.sessions:
            session.prepare_decisions()

    # ── the interests of all in one server ──────────────────────────────────────────────────────

    def on_log_level_changed(self, session: ClientSession) -> None:
        """A legacy client has set its log level."""
        for server in self.servers_of(session):
            server.interests.set_log_level(session, session.context.log_level)

    def _sync_interests(self, name: str) -> None:
        """Apply to a new server what clients subscribe to."""
        server = self.core.supervisor.find(name)
        if server is None or self._synced_servers.get(name) is server:
            return
        self._synced_servers[name] = server
        self.subscriptions.on_server_replaced(server)
        for session in self.sessions:
            if session.context.log_level and session.view.covers(server):
                server.interests.set_log_level(session, session.context.log_level)

    def roots(self, server: ManagedServer) -> Sequence[Raw]:
        """Return the roots to report to a server outside of calls, without duplicates.

        A server that all clients share gets the roots that they declare, and a dedicated server those of its
        clients. The process of the definition gets none if the others have dedicated ones: it keeps to the
        directories in its command.
        """
        roots: dict[bytes, None] = {}
        for session in self.sessions:
            if server.original is not None:
                found = session.effective_roots() if server in self.servers_of(session) else ()
            else:
                is_user = server.spec.share == "all" and session.view.covers(server)
                found = session.roots if is_user else ()
            roots.update(dict.fromkeys(map(bytes, found)))
        return tuple(Raw(root) for root in roots)

    def _own_server(self, caller: Caller, server: ManagedServer) -> ManagedServer:
        return (
            self.dedicated_servers.server_for(caller, server) if isinstance(caller, ClientSession) else server
        )

    def on_roots_changed(self, session: ClientSession) -> None:
        _notify_roots_changed(self.servers_of(session))

    def _users_of(self, server: ManagedServer) -> Sequence[ClientSession]:
        return [session for session in self.sessions if server in self.servers_of(session)]

    def servers_of(self, session: ClientSession) -> Sequence[ManagedServer]:
        """Return the servers that it uses: those it sees, disabled or not, except those that a person has an
        own one of; its dedicated servers, and the companions it uses."""
        seen = [
            server
            for server in self.core.supervisor.servers()
            if session.view.covers(server)
            and not (session.client.person_id and server.spec.share == "person")
        ]
        dedicated = self.dedicated_servers.used_by(session)
        return list(dict.fromkeys([*seen, *dedicated, *self.calls.connections.companions.used_by(session)]))


def _notify_elicitation_complete(client: Caller | None, params: Raw) -> None:
    if isinstance(client, ClientSession):
        client.notify_elicitation_complete(params)


def _notify_roots_changed(servers: Iterable[ManagedServer]) -> None:
    for server in servers:
        if server.upstream is not None:
            server.upstream.announce_roots()


_Receiver = tuple[ClientContext, Callable[[bytes], None]]
"""The context of a client, and how to send to it."""


def forward_log_message(
    server: ManagedServer, notification: ServerNotification, levels_set: Iterable[ClientSession]
) -> None:
    """Send a log message to the clients that it may be for and whose log level admits it; mcpd logs it
    anyway. `levels_set`: the legacy clients of the server that have set a log level.

    Streamable HTTP names the call (see `Inbound`). Otherwise it may belong to any call in flight, so each
    client with one gets it, once. Outside of calls it is for `levels_set`, since a log level applies to a
    whole session (MCP 2025-11-25, logging).
    """
    if notification.exchange is not None:
        receivers = _receivers([notification.exchange])
    elif server.upstream is None:
        return
    elif calls := [e for e in server.upstream.link.requests.outstanding() if e.method in INTERACTIVE_METHODS]:
        receivers = _receivers(calls)
    else:
        receivers = [(session.context, session.send) for session in levels_set]
    frame = b""
    for context, send in receivers:
        if not _wants(context.log_level, context.modern, notification.params):
            continue
        if not frame:
            try:
                members = wire.members(notification.params)
            except BadFrame:
                return  # no client could read it
            strip_reserved(members)
            frame = wire.notification("notifications/message", msgspec.json.encode(members))
        send(frame)


def _receivers(exchanges: Iterable[Exchange]) -> list[_Receiver]:
    """Return each client that waits for one of these. Of several calls of one client, the one with the most
    verbose log level counts."""
    found: dict[object, tuple[int, ClientContext, Callable[[bytes], None]]] = {}
    for call in exchanges:
        if not isinstance(call, Call) or call.request is None:
            continue
        context = call.context
        if call.caller.scope.is_control and not context.log_level:
            continue  # the control API has log messages only for clients that also speak MCP
        verbosity = -LEVELS.index(context.log_level) if context.log_level else -len(LEVELS)
        if call.caller not in found or found[call.caller][0] < verbosity:
            found[call.caller] = verbosity, context, call.request.responder.send
    return [(context, send) for _, context, send in found.values()]


def _wants(level: str, modern: bool, params: Raw) -> bool:
    """Return whether a client with log level `level` gets this message."""
    if not level:
        return not modern  # a legacy client that set none gets everything
    try:
        message_level = msgspec.json.decode(wire.members(params).get("level", Raw(b'"info"')), type=str)
    except (BadFrame, msgspec.MsgspecError):
        return False
    return message_level in LEVELS and LEVELS.index(message_level) >= LEVELS.index(level)
