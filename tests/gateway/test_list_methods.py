"""How long a list waits for starting servers: no longer than clients do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.gateway import list_methods
from mcpd.gateway.client_context import ClientRequest, make_client_context
from mcpd.gateway.list_methods import FIRST_START_TIMEOUT


@pytest.mark.parametrize(
    ("known_after", "answered_after"),
    [([], 0), ([2, 3, 1], 3), ([1, 600], FIRST_START_TIMEOUT)],
    ids=["nobody-new", "all-in-time", "one-hangs"],
)
async def test_merged_list_waits_for_servers_that_start_for_the_first_time(
    autojump_clock: trio.testing.MockClock, known_after: list[float], answered_after: float
) -> None:
    """An editor that starts right after `mcpctl import` asks once, and must not see an empty list."""
    began = trio.current_time()
    answered: list[tuple[float, bytes]] = []

    def starting(seconds: float) -> Any:
        async def wait_settled() -> None:
            await trio.sleep_until(began + seconds)

        return SimpleNamespace(is_first_start=True, lists_expired=False, wait_settled=wait_settled)

    async def nothing(servers: object) -> None: ...

    async with trio.open_nursery() as nursery:
        servers = [starting(seconds) for seconds in known_after]
        session: Any = SimpleNamespace(
            view=SimpleNamespace(
                single=None,
                servers=lambda: servers,
                capabilities=lambda version: {"tools": {}},
                entries=lambda member: (b'{"name":"echo"}',),
            ),
            gateway=SimpleNamespace(core=SimpleNamespace(refresh_catalogs=nothing)),
            request_tasks={},
            spawn=nursery.start_soon,
            respond=lambda request, body: answered.append((trio.current_time() - began, body)),
        )
        nowhere: Any = None
        list_methods.answer_list(
            session,
            ClientRequest(b"1", "tools/list", Raw(b""), nowhere, make_client_context("2025-11-25", {})),
        )
    ((after, body),) = answered
    assert after == pytest.approx(answered_after)
    assert body == b'{"tools":[{"name":"echo"}]}'
