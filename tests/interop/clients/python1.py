# mypy: ignore-errors
# Written for the SDK in .venv-mcp1; the one that mypy sees has other types of the same names.
"""The official Python SDK 1.x as a client: it knows only `initialize`."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

from tests.interop.clients.job import Job, Report, do, elicited, results, roots, sampled, text_of


async def work(job: Job, report: Report) -> None:
    async def on_elicitation(context: Any, params: Any) -> types.ElicitResult:
        report.asked.append(params.message)
        return types.ElicitResult.model_validate(elicited(job, params.requestedSchema))

    async def on_sampling(context: Any, params: Any) -> types.CreateMessageResult:
        report.asked.append(params.messages[0].content.text)
        return types.CreateMessageResult.model_validate(sampled(job))

    async def on_roots(context: Any) -> types.ListRootsResult:
        report.asked.append("roots")
        return types.ListRootsResult.model_validate(roots(job))

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        report.logs.append(str(params.data))

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        report.progress.append(message or str(done))

    async with AsyncExitStack() as stack:
        if job.server.get("type") == "sse":
            transport = sse_client(job.server["url"], headers=job.server.get("headers"))
        elif "url" in job.server:
            transport = streamablehttp_client(job.server["url"], headers=job.server.get("headers"))
        else:
            env = {**os.environ, **job.server.get("env", {})}
            transport = stdio_client(
                StdioServerParameters(command=job.server["command"], args=job.server["args"], env=env)
            )
        reading, writing, *_ = await stack.enter_async_context(transport)
        session = ClientSession(
            reading,
            writing,
            sampling_callback=on_sampling,
            elicitation_callback=on_elicitation,
            list_roots_callback=on_roots,
            logging_callback=on_log,
            client_info=types.Implementation(name=job.name, version="1"),
        )
        await stack.enter_async_context(session)
        report.protocol = (await session.initialize()).protocolVersion
        report.tools = [tool.name for tool in (await session.list_tools()).tools]
        for result in await results(
            job, lambda name, given: session.call_tool(name, given, None, on_progress)
        ):
            report.answer(text_of(result.content), result.isError)


if __name__ == "__main__":
    do(work)
