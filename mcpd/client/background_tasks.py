"""Tasks that the library runs beside a block of the program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup, TaskStatus


@asynccontextmanager
async def open_background_tasks() -> AsyncIterator[TaskGroup]:
    """Run tasks during a block, and cancel them at its end.

    An exception of the block leaves it unchanged, as if there were no task group, which would wrap it in an
    exception group. So does an exception that only one task raises: trio raises KeyboardInterrupt in the task
    that is running.
    """
    failed: BaseException | None = None
    ended = anyio.Event()
    try:
        async with anyio.create_task_group() as own:
            tasks: TaskGroup = await own.start(_run_until, ended)
            try:
                yield tasks
            except anyio.get_cancelled_exc_class():  # the scope that is cancelled must see it
                raise
            except BaseException as error:
                failed = error
            finally:
                ended.set()
    except BaseExceptionGroup as group:  # of the tasks, because of which the block was cancelled
        failed = group
        while isinstance(failed, BaseExceptionGroup) and len(failed.exceptions) == 1:
            failed = failed.exceptions[0]
    if failed is not None:
        raise failed


async def _run_until(ended: anyio.Event, *, task_status: TaskStatus[TaskGroup]) -> None:
    """Run the tasks of a group until `ended`.

    It is cancelled in a task of its own. To cancel it in the task of the program would end that in Python
    3.11 and 3.12 after an `asyncio.TaskGroup` has failed there: they leave a request to cancel the task.
    """
    async with anyio.create_task_group() as tasks:
        task_status.started(tasks)
        await ended.wait()
        tasks.cancel_scope.cancel()
