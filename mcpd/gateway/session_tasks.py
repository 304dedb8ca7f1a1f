"""Tasks for requests that cannot be answered immediately. Each can be cancelled by its client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from mcpd.calls.call import Work
from mcpd.calls.client_context import ClientRequest
from mcpd.model.errors import McpdError

if TYPE_CHECKING:
    from mcpd.gateway.client_session import ClientSession

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
