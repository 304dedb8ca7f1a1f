# mypy: ignore-errors
# Its library lives in .venv-fastmcp, where mypy does not look.
"""FastMCP's client, which stands on the official SDK 2.x and adds sessions and transports of its own."""

from __future__ import annotations

import os
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from tests.interop.clients.job import Job, Report, do, elicited, results, roots, sampled, text_of


async def work(job: Job, report: Report) -> None:
    async def on_elicitation(message: str, response_type: Any, params: Any, context: Any) -> Any:
        report.asked.append(message)
        return elicited(job, getattr(params, "requested_schema", None) or params.requestedSchema)["content"]

    async def on_sampling(messages: Any, params: Any, context: Any) -> str:
        report.asked.append(messages[0].content.text)
        return sampled(job)["content"]["text"]

    async def on_log(message: Any) -> None:
        data = message.data
        report.logs.append(data["msg"] if isinstance(data, dict) else str(data))

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        report.progress.append(message or str(done))

    if "url" in job.server:
        transport = StreamableHttpTransport(job.server["url"], headers=job.server.get("headers"))
    else:
        env = {**os.environ, **job.server.get("env", {})}
        transport = StdioTransport(job.server["command"], job.server["args"], env=env, keep_alive=False)
    client = Client(
        transport,
        roots=[root["uri"] for root in roots(job)["roots"]],
        sampling_handler=on_sampling,
        elicitation_handler=on_elicitation,
        log_handler=on_log,
        progress_handler=on_progress,
    )
    async with client:
        report.protocol = str(client.protocol_version)
        report.tools = [tool.name for tool in await client.list_tools()]
        for result in await results(job, lambda *call: client.call_tool(*call, raise_on_error=False)):
            report.answer(text_of(result.content), result.is_error)


if __name__ == "__main__":
    do(work)
