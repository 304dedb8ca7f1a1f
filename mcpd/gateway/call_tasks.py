"""What cannot be answered at once is worked on in a task of its own, which its client can cancel."""

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

Spawn = Callable[[Callable[[], Awaitable[None]]], None]
"""Begins a task. Whose it is, and with what it ends, says who gives it."""
_FIRST_CONNECT_TIMEOUT = 10.0
"""Seconds that a client's first words wait for the one server that they are meant for."""


def spawn_request(
    session: ClientSession, request: ClientRequest, work: Callable[[], Awaitable[None]]
) -> None:
    """Answer a request in a task of its own; an McpdError that `work` raises is its response.

    What `work` waited for may come together with the cancellation: before it acts, it has to look.
    What it did before it is cancelled it has to take back itself.
    """
    scope, waiting = trio.CancelScope(), session.request_tasks
    waiting[request.key] = scope

    async def run() -> None:
        with scope:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                await work()
            except Exception as error:
                if not scope.cancel_called:
                    session.respond_exception(request, error)
        if waiting.get(request.key) is scope:
            del waiting[request.key]
        if scope.cancel_called and not session.is_closed:
            request.responder.drop()

    session.spawn(run)


def when_catalog_known(session: ClientSession, request: ClientRequest, work: Callable[[], None]) -> None:
    """Answer when it is known what the one server offers, if that is soon; else with what may be."""
    single = session.view.single
    asleep = single is not None and single.spec.lazy and single.catalog is not None
    if single is None or single.upstream is not None or asleep:
        work()
        return

    async def wait() -> None:
        with suppress(McpdError):  # then all that it may offer is said, and each request says why not
            await session.gateway.core.wait_ready(single, _FIRST_CONNECT_TIMEOUT)
        await trio.lowlevel.checkpoint_if_cancelled()
        work()

    spawn_request(session, request, wait)


def spawn_for_call(call: ForwardedCall, work: Callable[[], Awaitable[None]]) -> None:
    """Do something for a relay that is not with its server; it can still be cancelled: see `later`."""
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
                    session.respond_mcpd_error(
                        call.request, to_mcpd_error(error, call.server.spec.name), call
                    )

    request = call.request
    assert request is not None
    session.active_calls[request.key] = call
    session.spawn(run)


def to_mcpd_error(error: Exception, server: str) -> McpdError:
    """What went wrong in what is done for a call, as its client is told."""
    if isinstance(error, McpdError):
        return error
    if isinstance(error, BadFrame):
        return ProtocolViolation(f"{server}: {error}", server=server)
    log.error("%s: an error in mcpd itself, in seeing a call through", server, exc_info=error)
    return ProtocolViolation(f"{server}: an error in mcpd itself; its log says more", server=server)
