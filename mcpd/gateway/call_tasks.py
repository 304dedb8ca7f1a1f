"""Tasks for work that cannot be finished immediately. Each can be cancelled by its client."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from mcpd.gateway.client_context import ClientRequest
from mcpd.gateway.forwarded_call import ForwardedCall
from mcpd.model.errors import McpdError, ProtocolViolation
from mcpd.wire.message import BadFrame

if TYPE_CHECKING:
    from mcpd.gateway.client_session import ClientSession

log = logging.getLogger("mcpd.gateway")

Work = Callable[[], Awaitable[None]]
Spawn = Callable[[Work], None]
"""Starts a task. The provider decides how long it may live."""
_FIRST_CONNECT_TIMEOUT = 10.0
"""Seconds that a new client's first request waits for its server to connect."""


def spawn_request(session: ClientSession, request: ClientRequest, work: Work) -> None:
    """Answer a request in a task of its own; an McpdError raised by `work` becomes the response.

    A result that `work` waited for may arrive together with the cancellation, so `work` must check for
    cancellation before it acts. It must undo whatever it did before being cancelled.
    """
    scope, tasks = trio.CancelScope(), session.request_tasks
    tasks[request.key] = scope

    async def run() -> None:
        with scope:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                await work()
            except Exception as error:
                if not scope.cancel_called:
                    session.respond_exception(request, error)
        if tasks.get(request.key) is scope:
            del tasks[request.key]
        if scope.cancel_called and not session.is_closed:
            request.responder.drop()

    session.spawn(run)


def when_catalog_known(session: ClientSession, request: ClientRequest, work: Callable[[], None]) -> None:
    """Run `work` once the client's server is connected; after a timeout, run it anyway with what is known."""
    single = session.view.single
    is_asleep = single is not None and single.spec.lazy and single.catalog is not None
    if single is None or single.upstream is not None or is_asleep:
        work()
        return

    async def wait() -> None:
        with suppress(McpdError):  # then every capability is offered, and each request reports the failure
            await session.gateway.core.wait_ready(single, _FIRST_CONNECT_TIMEOUT)
        await trio.lowlevel.checkpoint_if_cancelled()
        work()

    spawn_request(session, request, wait)


def spawn_for_call(call: ForwardedCall, work: Work) -> None:
    """Do something for a call while it is not at its server. It can be cancelled, as in `spawn_request`."""
    session, scope = call.session, trio.CancelScope()
    call.cancel_task = lambda reason: scope.cancel(reason=reason)

    async def run() -> None:
        with scope:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                await work()
            except Exception as error:
                call.cancel_task = None
                if call.request is not None:
                    session.refuse_request(call.request, to_mcpd_error(error, call.server.spec.name), call)

    request = call.request
    assert request is not None
    session.active_calls[request.key] = call
    session.spawn(run)


def to_mcpd_error(error: Exception, server: str) -> McpdError:
    """Convert an exception raised on behalf of a call into the error that its client gets."""
    if isinstance(error, McpdError):
        return error
    if isinstance(error, BadFrame):
        return ProtocolViolation(f"{server}: {error}", server=server)
    log.error("%s: an error in mcpd itself, while handling a call", server, exc_info=error)
    return ProtocolViolation(f"{server}: an error in mcpd itself; see its log", server=server)
