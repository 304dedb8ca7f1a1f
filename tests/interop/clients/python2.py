"""The official Python SDK 2.x as a client: it looks for 2026-07-28 first."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

from tests.interop.clients.job import Job, Report, do, elicited, results, roots, sampled, text_of


async def work(job: Job, report: Report) -> None:
    async def on_elicitation(context: Any, params: Any) -> types.ElicitResult:
        report.asked.append(params.message)
        return types.ElicitResult.model_validate(elicited(job, params.requested_schema))

    async def on_sampling(context: Any, params: Any) -> types.CreateMessageResult:
        report.asked.append(params.messages[0].content.text)
        return types.CreateMessageResult.model_validate(sampled(job))

    async def on_roots(context: Any) -> types.ListRootsResult:
        report.asked.append("roots")
        return types.ListRootsResult.model_validate(roots(job))

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        report.logs.append(str(params.data))

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        report.progress.append(message or str(progress))

    async with AsyncExitStack() as stack:
        server: Any
        if "url" in job.server:
            http = httpx2.AsyncClient(headers=job.server.get("headers"), timeout=60)
            server = streamable_http_client(
                job.server["url"], http_client=await stack.enter_async_context(http)
            )
        else:
            server = StdioServerParameters(
                command=job.server["command"],
                args=job.server["args"],
                env={**os.environ, **job.server.get("env", {})},
            )
        client = Client(
            server,
            elicitation_callback=on_elicitation,
            sampling_callback=on_sampling,
            list_roots_callback=on_roots,
            logging_callback=on_log,
            log_level="info",
            client_info=types.Implementation(name=job.name, version="1"),
        )
        await stack.enter_async_context(client)
        report.protocol = client.protocol_version
        report.tools = [tool.name for tool in (await client.list_tools()).tools]
        for result in await results(
            job, lambda name, given: client.call_tool(name, given, None, on_progress)
        ):
            report.answer(text_of(result.content), result.is_error)


if __name__ == "__main__":
    do(work)
