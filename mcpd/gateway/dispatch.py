"""Dispatch of client requests to their servers: immediately, once the server is ready, or in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import trio

from mcpd.gateway import call_tasks, input_required, turn_queue, url_elicitation
from mcpd.gateway.call_timeouts import set_call_timeouts
from mcpd.gateway.client_context import ClientRequest, forwarded_capabilities
from mcpd.gateway.client_view import Route
from mcpd.gateway.forwarded_call import INTERACTIVE_METHODS, ForwardedCall
from mcpd.gateway.revision_translation import translation
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire

if TYPE_CHECKING:
    from mcpd.gateway.client_session import ClientSession

DEFAULT_LOG_LEVEL = "info"
"""The log level of a modern server's messages for a legacy client that did not set one."""


def forward(session: ClientSession, request: ClientRequest) -> None:
    """Forward a request to its server. Raises McpdError, BadFrame; nothing was sent then."""
    route = session.view.route(request.method, request.params)
    server, params = route.server, route.params
    if server.spec.share != "all":
        server = session.gateway.dedicated_servers.server_for(session, server)
    if request.context.modern and b'"requestState"' in params and request.method in INTERACTIVE_METHODS:
        if session.gateway.suspended_calls.resume(session, request):
            return
        params = _with_verified_state(session, server, params)
    if server.upstream is not None:
        _send(session, request, server, route, params)
    else:
        _send_when_ready(session, request, server, route, params)


def _send_when_ready(
    session: ClientSession, request: ClientRequest, server: ManagedServer, route: Route, params: bytes
) -> None:
    async def work() -> None:
        await session.gateway.core.wait_ready(server)
        await trio.lowlevel.checkpoint_if_cancelled()
        del session.request_tasks[request.key]
        _send(session, request, server, route, params)

    call_tasks.spawn_request(session, request, work)


def _with_verified_state(session: ClientSession, server: ManagedServer, params: bytes) -> bytes:
    """Return the params with the server's own `requestState`. Raises InvalidArguments if forged."""
    members = wire.members(params)
    if "requestState" in members:
        state = session.gateway.state_signer.verify(server.spec.name, members["requestState"])
        if state is None:
            message = "`requestState` is not from this server, or mcpd has been restarted since"
            raise InvalidArguments(f"{message}; send the call again", [Problem("$.requestState", message)])
        members["requestState"] = state
    return msgspec.json.encode(members)


def _send(
    session: ClientSession, request: ClientRequest, server: ManagedServer, route: Route, params: bytes
) -> None:
    upstream = server.upstream
    if upstream is None:
        raise session.gateway.core.not_ready_error(server)
    context = request.context
    accepted_params = None
    may_be_answered = context.modern and upstream.era == "legacy" and request.method in INTERACTIVE_METHODS
    if may_be_answered and b'"inputResponses"' in bytes(params):
        accepted_params = url_elicitation.accept_visit(server.spec.name, params)
    call = ForwardedCall(
        session=session,
        context=context,
        request=request,
        upstream=upstream,
        server=server,
        params=params if accepted_params is None else accepted_params,
        resumed_after_url=accepted_params is not None,
        alias=route.alias,
        translation=translation(context.version, upstream.version),
    )
    set_call_timeouts(call, server.spec.timeouts, route.tool)
    if request.method == "tools/call":
        session.count_call(server)
    session.last_version = context.version
    session.active_calls[request.key] = call
    try:
        _send_in_turn(call, request)
    except Exception:
        session.active_calls.pop(request.key, None)
        session.release_call(call)
        raise


def _send_in_turn(call: ForwardedCall, request: ClientRequest) -> None:
    """Submit the call now, or when its turn comes."""
    may_need_turn = call.server.spec.concurrency != "free" or call.context.accepts_server_requests
    if not may_need_turn or turn_queue.acquire_turn(call, request, _submit):
        _submit(call)


def retry_call(call: ForwardedCall, wait: Callable[[], Awaitable[None]]) -> None:
    """Send the call once more once `wait` has returned. Other calls may have their turn meanwhile."""
    if call.holds_turn:
        turn_queue.release_turn(call)

    async def send_again() -> None:
        await wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        call.cancel_task = None
        assert call.request is not None
        _send_in_turn(call, call.request)

    call_tasks.spawn_for_call(call, send_again)


def _submit(call: ForwardedCall) -> None:
    """Submit the call for the first time, with the client's context in its `_meta`."""
    request, upstream, context, session = call.request, call.upstream, call.context, call.session
    assert request is not None
    cached = session.cached_meta
    if cached[0] is not upstream or cached[1] is not context:
        capabilities = forwarded_capabilities(context, is_single_server=session.view.single is not None)
        level = context.log_level or (None if context.modern else DEFAULT_LOG_LEVEL)
        meta = upstream.request_meta(capabilities, level)
        cached = session.cached_meta = (upstream, context, meta)
    call.meta = cached[2]
    if (
        request.method == "tools/call"
        and upstream.accepts_task_param
        and input_required.add_required_task(call)
    ):
        call.as_task = True
    call.submit()
