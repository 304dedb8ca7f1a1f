"""Tasks of the library that belong to no task of the program, so that any of its tasks may end them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable

log = logging.getLogger("mcpd.client")
_running: set[asyncio.Task[None]] = set()
"""asyncio itself holds only weak references to tasks."""


def start_background_task(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` in the current event loop, which cancels it when the loop ends.

    A task group would end in the task that has opened it, but a test framework runs the set-up and the
    teardown of a fixture in different tasks.
    """

    async def contained() -> None:
        try:
            await work()
        except Exception:
            log.exception("an error in mcpd.client itself")

    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        trio.lowlevel.spawn_system_task(contained)
    else:
        task = asyncio.get_running_loop().create_task(contained())
        _running.add(task)
        task.add_done_callback(_running.discard)
