"""A client's request goes to the server that its view names: now, when that is there, or in its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import trio

from mcpd.gateway import call_concurrency, call_tasks, input_required, url_elicitation
from mcpd.gateway.client_context import Request, passed_on
from mcpd.gateway.forwarded_call import MAY_ASK, Relay
from mcpd.gateway.revision_translation.results import translation
from mcpd.gateway.virtual_server import Route
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.outgoing_request import OF_THE_TOOL
from mcpd.wire import message as wire

if TYPE_CHECKING:
    from mcpd.gateway.session import Session

UNSAID = "info"
"""What a legacy client gets of a modern server's log messages as long as it has not said."""


def pass_on(session: Session, request: Request) -> None:
    """Raises McpdError, BadFrame: then nothing was sent, and the request is to be answered with that."""
    route = session.view.route(request.method, request.params)
    server, params = route.server, route.params
    if server.spec.share != "all":
        server = session.gateway.instances.of(session, server)
    if request.asker.modern and b'"requestState"' in params and request.method in MAY_ASK:
        if session.gateway.parked.resume(session, request):
            return
        params = _unsealed(session, server, params)
    if server.upstream is not None:
        _send(session, request, server, route, params)
    else:
        _send_when_ready(session, request, server, route, params)


def _send_when_ready(
    session: Session, request: Request, server: ManagedServer, route: Route, params: bytes
) -> None:
    async def work() -> None:
        await session.gateway.core.wait_ready(server)
        await trio.lowlevel.checkpoint_if_cancelled()
        del session.waiting[request.key]
        _send(session, request, server, route, params)

    call_tasks.later(session, request, work)


def _unsealed(session: Session, server: ManagedServer, params: bytes) -> bytes:
    """With the state as the server wrote it. Raises InvalidArguments for one that is not from it."""
    members = wire.members(params)
    if "requestState" in members:
        state = session.gateway.seal.open(server.spec.name, members["requestState"])
        if state is None:
            words = "`requestState` is not what this server gave, or the daemon has started anew since"
            raise InvalidArguments(f"{words}; call again", [Problem("$.requestState", words)])
        members["requestState"] = state
    return msgspec.json.encode(members)


def _send(session: Session, request: Request, server: ManagedServer, route: Route, params: bytes) -> None:
    tool, upstream = route.tool, server.upstream
    if upstream is None:
        raise session.gateway.core.not_ready_error(server)
    times, asker = server.spec.timeouts, request.asker
    agreed = None
    asked = asker.modern and upstream.era == "legacy" and request.method in MAY_ASK
    if asked and b'"inputResponses"' in bytes(params):
        agreed = url_elicitation.come_back(server.spec.name, params)
    relay = Relay(
        session=session,
        asker=asker,
        request=request,
        upstream=upstream,
        server=server,
        params=params if agreed is None else agreed,
        returned=agreed is not None,
        alias=route.alias,
        translation=translation(asker.version, upstream.version),
        idle=times.tools.get(tool, times.call) if times.tools else times.call,
        limit=times.call_max,
    )
    if times.tools and tool in times.tools:
        relay.clock = OF_THE_TOOL
    if request.method == "tools/call":
        session.used(server)
    session.spoke = asker.version
    session.relays[request.key] = relay
    try:
        _put(relay, request)
    except Exception:
        session.relays.pop(request.key, None)
        session.over(relay)
        raise


def _put(relay: Relay, request: Request) -> None:
    """To its server, now or in its turn."""
    alone = relay.server.spec.concurrency != "free" or relay.asker.may_be_asked
    if not alone or call_concurrency.acquire_turn(relay, request, _start):
        _start(relay)


def call_again(relay: Relay, until: Callable[[], Awaitable[None]]) -> None:
    """Its server has answered, but not what it was asked. Meanwhile others have their turn."""
    if relay.lined:
        call_concurrency.release_turn(relay)

    async def call() -> None:
        await until()
        await trio.lowlevel.checkpoint_if_cancelled()
        relay.stop = None
        assert relay.request is not None
        _put(relay, relay.request)

    call_tasks.beside(relay, call)


def _start(relay: Relay) -> None:
    """`Relay.submit` for the first time: whose it is has not been written on it yet."""
    request, upstream, asker, session = relay.request, relay.upstream, relay.asker, relay.session
    assert request is not None
    dressed = session.dressed
    if dressed[0] is not upstream or dressed[1] is not asker:
        told = passed_on(asker, whole=session.view.single is not None)
        level = asker.log_level or (None if asker.modern else UNSAID)
        meta = upstream.request_meta(told, level)
        dressed = session.dressed = (upstream, asker, meta)
    relay.meta = dressed[2]
    if request.method == "tools/call" and upstream.accepts_task_param and input_required.only_as_task(relay):
        relay.as_task = True
    relay.submit()
