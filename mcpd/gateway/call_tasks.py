"""What cannot be answered at once is worked on in a task of its own, which its client can cancel."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from mcpd.gateway.client_context import Request
from mcpd.gateway.forwarded_call import Relay
from mcpd.model.errors import McpdError, ProtocolViolation
from mcpd.wire.message import BadFrame

if TYPE_CHECKING:
    from mcpd.gateway.session import Session

log = logging.getLogger("mcpd.gateway")

Spawn = Callable[[Callable[[], Awaitable[None]]], None]
"""Begins a task. Whose it is, and with what it ends, says who gives it."""
_FIRST = 10.0
"""Seconds that a client's first words wait for the one server that they are meant for."""


def later(session: Session, request: Request, work: Callable[[], Awaitable[None]]) -> None:
    """Answer a request in a task of its own; an McpdError that `work` raises is its response.

    What `work` waited for may come together with the cancellation: before it acts, it has to look.
    What it did before it is cancelled it has to take back itself.
    """
    scope, waiting = trio.CancelScope(), session.waiting
    waiting[request.key] = scope

    async def run() -> None:
        with scope:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                await work()
            except Exception as error:
                if not scope.cancel_called:
                    session.failed(request, error)
        if waiting.get(request.key) is scope:
            del waiting[request.key]
        if scope.cancel_called and not session.is_closed:
            request.reply.drop()

    session.spawn(run)


def once_known(session: Session, request: Request, work: Callable[[], None]) -> None:
    """Answer when it is known what the one server offers, if that is soon; else with what may be."""
    single = session.view.single
    asleep = single is not None and single.spec.lazy and single.catalog is not None
    if single is None or single.upstream is not None or asleep:
        work()
        return

    async def wait() -> None:
        with suppress(McpdError):  # then all that it may offer is said, and each request says why not
            await session.gateway.core.wait_ready(single, _FIRST)
        await trio.lowlevel.checkpoint_if_cancelled()
        work()

    later(session, request, wait)


def beside(relay: Relay, work: Callable[[], Awaitable[None]]) -> None:
    """Do something for a relay that is not with its server; it can still be cancelled: see `later`."""
    session, scope = relay.session, trio.CancelScope()
    relay.stop = lambda reason: scope.cancel(reason=reason)

    async def run() -> None:
        with scope:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                await work()
            except Exception as error:
                relay.stop = None
                if relay.request is not None:
                    session.refuse(relay.request, as_ours(error, relay.server.spec.name), relay)

    request = relay.request
    assert request is not None
    session.relays[request.key] = relay
    session.spawn(run)


def as_ours(error: Exception, server: str) -> McpdError:
    """What went wrong in what is done for a call, as its client is told."""
    if isinstance(error, McpdError):
        return error
    if isinstance(error, BadFrame):
        return ProtocolViolation(f"{server}: {error}", server=server)
    log.error("%s: an error in mcpd itself, in seeing a call through", server, exc_info=error)
    return ProtocolViolation(f"{server}: an error in mcpd itself; its log says more", server=server)
