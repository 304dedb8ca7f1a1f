"""A client's session goes on in the next version of the daemon, with its calls in progress.

A call that a local server works on is awaited there under the id that it was sent with. What was not sent to
a server yet is handled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import trio

from mcpd.calls.call import BETWEEN_ROUNDS, PROGRESS, SENT, Call, Progress
from mcpd.calls.client_context import (
    ClientContext,
    ClientIdentity,
    ClientRequest,
    Responder,
)
from mcpd.calls.questions.router import OpenRequest
from mcpd.calls.routes import Target
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.requests import ClientRequests
from mcpd.gateway.session import ClientSession
from mcpd.model.errors import LinkLost
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.stdio import PipeChannel
from mcpd.wire import message as wire

_SERVER_TIMEOUT = 2.0
"""Seconds for a server of the earlier version to be connected again, which takes milliseconds."""


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """A request without a response. See `ClientRequest`."""

    key: bytes
    method: str
    params: bytes
    progress_token: bytes
    timeout: float
    has_no_meta: bool
    client_context: bytes
    """As JSON, which has numbers of any size."""


_SAME = ("key", "method", "params", "progress_token", "timeout", "has_no_meta")


class CallInProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a local server works on. See `Call`."""

    request: RequestState
    server: str
    """See `ManagedServer.label`."""
    sent_as: bytes
    """The id that it was sent with."""
    params: bytes
    tool: str
    alias: tuple[str, str] | None
    idle_timeout: float
    total_timeout: float
    timeout_source: str
    patience: float
    """Seconds until its deadline."""
    hard_patience: float
    """Seconds until the deadline that nothing extends."""
    age: float
    """Seconds since it came."""
    rounds: int
    progress: tuple[float, float] | None


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """See `ClientSession`."""

    server: str | None
    profile: str
    client: ClientIdentity
    names: list[str]
    version: str
    client_context: bytes
    is_initialized: bool
    peer: str
    roots: list[bytes]
    calls_by_server: dict[str, int]
    next_request: int
    """The id of the next request to the client."""
    dedicated: list[tuple[str, str, str]]
    """See `DedicatedServers.describe`."""
    subscriptions: list[tuple[bytes, str, str, str]]
    """Stream, the client's URI, the label of its server, the server's own URI."""
    streams: list[tuple[RequestState, list[str]]]
    """The open subscriptions of a modern client, and the lists whose changes they report."""
    calls: list[CallInProgress]
    waiting: list[RequestState]
    """Requests that no server has seen."""


# ── in the version that hands over ──────────────────────────────────────────────────────────────────


def can_go_on(call: Call) -> bool:
    """Return whether the next version can wait for the answer to a call, or send it."""
    if call.request is None or call.is_task or call.state is BETWEEN_ROUNDS:
        return False
    if not isinstance(call.caller, ClientSession) or call.caller.client.via == "http":
        return False
    return call.rounds == 0 and (call.key == b"" or isinstance(call.upstream.link, PipeChannel))


def _is_sent(call: Call) -> bool:
    """Return whether the server may have received it: it does not wait for anything here."""
    return call.state is SENT and call.upstream.link.requests.holds(call)


def describe_session(gateway: Gateway, session: ClientSession) -> SessionState:
    subscriptions = gateway.subscriptions.of(session)
    calls = [call for call in session.calls.values() if can_go_on(call)]
    waiting = [_request(call.request) for call in calls if not _is_sent(call) and call.request]
    return SessionState(
        server=None if session.view.single is None else session.view.single.spec.name,
        profile="" if session.scope.profile is None else session.scope.profile.name,
        client=session.client,
        names=session.names,
        version=session.version,
        client_context=msgspec.json.encode(session.context),
        is_initialized=session.is_initialized,
        peer=session.peer,
        roots=[bytes(root) for root in session.roots],
        calls_by_server=dict(session.calls_by_server()),
        next_request=session.client_requests.next_id,
        dedicated=gateway.dedicated_servers.describe(session),
        subscriptions=[
            (stream, uri, server.label, own) for (stream, uri), (server, own) in subscriptions.items()
        ],
        streams=[(_request(each.request), sorted(each.features)) for each in session.listen_streams.values()],
        calls=[_call(call) for call in calls if _is_sent(call)],
        waiting=[*waiting, *map(_request, session.waiting_requests())],
    )


def _request(request: ClientRequest) -> RequestState:
    context = msgspec.json.encode(request.context)
    return RequestState(client_context=context, **{name: getattr(request, name) for name in _SAME})


def _call(call: Call) -> CallInProgress:
    now, progress = trio.current_time(), None if call.kept is None else call.kept.get(PROGRESS)
    assert call.request is not None
    return CallInProgress(
        request=_request(call.request),
        server=call.server.label,
        sent_as=call.key,
        params=call.params,
        tool=call.tool,
        alias=call.alias,
        idle_timeout=call.idle_timeout,
        total_timeout=call.total_timeout,
        timeout_source=call.timeout_source,
        patience=call.deadline - now,
        hard_patience=call.hard_deadline - now,
        age=now - call.arrived_at,
        rounds=call.rounds,
        progress=None if progress is None else (progress.high, progress.base),
    )


# ── in the next version ─────────────────────────────────────────────────────────────────────────────


async def go_on(gateway: Gateway, session: ClientSession, state: SessionState, responder: Responder) -> None:
    """Bring a new session to this state. Raises nothing: what fails is answered with an error."""
    session.version, session.peer, session.names = state.version, state.peer, state.names
    session.context = msgspec.json.decode(state.client_context, type=ClientContext)
    session.is_initialized = state.is_initialized
    session.roots = tuple(map(msgspec.Raw, state.roots))
    session.call_counts.ended = dict(state.calls_by_server)
    session.client_requests = ClientRequests(session.send, state.next_request)
    if session.version and session.context.prefers_legacy:
        session.view = session.view.for_legacy_clients()
    for definition, name, directory in state.dedicated:
        if (server := gateway.core.supervisor.find(definition)) is not None:
            gateway.dedicated_servers.go_on(session, server, name, directory)
    if session.is_initialized:
        companions = gateway.calls.connections.companions
        companions.open_for(session, session.context, session.view.servers())
        if session.context.log_level:
            gateway.on_log_level_changed(session)
    servers = await _wait_connected(gateway, session)
    for request, features in state.streams:
        session.go_on_listening(_make_request(request, responder), features)
    for stream_key, resources in _by_stream(state.subscriptions, servers).items():
        gateway.subscriptions.add_all(session, stream_key, resources)
    for call in state.calls:
        _await_answer(gateway, session, call, servers.get(call.server), responder)


def handle_waiting(session: ClientSession, state: SessionState, responder: Responder) -> None:
    """Handle what no server has seen. Before that, all sessions must be as before: these calls must not take
    the turns of others that are in progress."""
    for request in state.waiting:
        session.handle_again(_make_request(request, responder))


async def _wait_connected(gateway: Gateway, session: ClientSession) -> dict[str, ManagedServer]:
    """Return the servers of a client by label, once those of the earlier version are connected."""
    servers = gateway.servers_of(session)
    with trio.move_on_after(_SERVER_TIMEOUT):
        for server in servers:
            if server.is_handed_over:
                server.request_start()
                await server.wait_settled()
    return {server.label: server for server in servers}


def go_on_asking(server: ManagedServer, requests: Iterable[OpenRequest]) -> None:
    """Wait for the answers of clients to requests of a server. A client that was not asked yet is asked."""
    link = server.link
    for each in requests if link is not None else ():
        assert link is not None
        message = wire.parse(wire.request(each.key, each.method, each.params))
        call = link.requests.pending.get(each.sent_as)
        session = call.caller if isinstance(call, Call) else None
        if isinstance(session, ClientSession):
            session.client_requests.assumed = each.client_key
            link.inbound.on_request(message, call)
            session.client_requests.assumed = b""
        else:
            link.inbound.on_request(message)


def _by_stream(
    subscriptions: Iterable[tuple[bytes, str, str, str]], servers: Mapping[str, ManagedServer]
) -> dict[bytes, list[tuple[str, ManagedServer, str]]]:
    found: dict[bytes, list[tuple[str, ManagedServer, str]]] = {}
    for stream, uri, label, own in subscriptions:
        if label in servers:
            found.setdefault(stream, []).append((uri, servers[label], own))
    return found


def _await_answer(
    gateway: Gateway,
    session: ClientSession,
    state: CallInProgress,
    server: ManagedServer | None,
    responder: Responder,
) -> None:
    request = _make_request(state.request, responder)
    if server is None or server.upstream is None:
        error = LinkLost(f"{state.server}: the server has ended while mcpd was upgraded", may_have_run=True)
        session.respond_exception(request, error)
        return
    target = Target(server=server, params=state.params, tool=state.tool, alias=state.alias)
    call = gateway.calls.go_on(session, request, target, server.upstream)
    now = trio.current_time()
    call.idle_timeout, call.total_timeout = state.idle_timeout, state.total_timeout
    call.timeout_source, call.rounds = state.timeout_source, state.rounds
    call.arrived_at = call.sent_at = now - state.age
    call.deadline, call.hard_deadline = now + state.patience, now + state.hard_patience
    if state.progress is not None:
        call.slots[PROGRESS] = Progress(*state.progress)
    server.upstream.link.await_answer(call, state.sent_as, request.method)


def _make_request(state: RequestState, responder: Responder) -> ClientRequest:
    context = msgspec.json.decode(state.client_context, type=ClientContext)
    same = {name: getattr(state, name) for name in _SAME}
    return ClientRequest(responder=responder, context=context, **same)
