"""Tasks that the library runs beside a block of the program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def open_background_tasks() -> AsyncIterator[TaskGroup]:
    """Run tasks during a block, and cancel them at its end.

    An exception of the block leaves it unchanged, as if there were no task group, which would wrap it in an
    exception group. So does an exception that only one task raises: trio raises KeyboardInterrupt in the task
    that is running.
    """
    failed: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except anyio.get_cancelled_exc_class():  # the scope that is cancelled must see it
                raise
            except BaseException as error:
                failed = error
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # of the tasks, because of which the block was cancelled
        failed = group.exceptions[0] if len(group.exceptions) == 1 else group
    if failed is not None:
        raise failed
