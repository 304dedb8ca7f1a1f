"""A minimal MCP client in the test's own process, so that a test can run many at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import attrs

from tests.e2e.harness import Daemon
from tests.gateway.mcp_client import McpClient
from tests.interop.clients.drivers import Call, Json
from tests.interop.clients.job import Job, Report, elicited, roots, sampled, text_of

_LEVEL = "io.modelcontextprotocol/logLevel"


@attrs.frozen
class Attached:
    """A `Driver` over the daemon's socket, in one revision. The server entry is `{"name": …}`."""

    daemon: Daemon
    version: str
    library: bool = True
    until: ExitStack | None = None
    """Keeps the connections open until it is closed. None: each is closed after its last call."""

    @property
    def name(self) -> str:
        return f"attached {self.version}"

    def missing(self) -> str | None:
        return None

    def use(self, server: Json, calls: Sequence[Call], home: Path, name: str = "somebody") -> Report:
        job, report = Job(server, name, []), Report()

        def answer(method: str, params: Json) -> Json:
            if method == "roots/list":
                report.asked.append("roots")
                return roots(job)
            if method == "elicitation/create":
                report.asked.append(params["message"])
                return elicited(job, params["requestedSchema"])
            report.asked.append(params["messages"][0]["content"]["text"])
            return sampled(job)

        client = McpClient(self.daemon, self.version, server=server["name"], answer=answer)
        if self.until is not None:
            self.until.enter_context(closing(client.line))
        report.protocol = self.version
        report.tools = [tool["name"] for tool in client.request("tools/list")["tools"]]
        level = {_LEVEL: "debug"} if client.modern else {}
        wanted: list[Json] = [
            {"name": tool, "arguments": arguments, "_meta": {"progressToken": f"{name} {number}", **level}}
            for number, (tool, arguments) in enumerate(calls)
        ]
        for result in client.request_all("tools/call", wanted):
            report.answer(text_of([_Part(**part) for part in result["content"]]), bool(result.get("isError")))
        for note in client.heard:
            params = note.get("params", {})
            if note["method"] == "notifications/message":
                report.logs.append(str(params["data"]))
            elif note["method"] == "notifications/progress":
                assert params["progressToken"].startswith(f"{name} "), f"{name} got {note}"
                report.progress.append(params.get("message") or str(params["progress"]))
        if self.until is None:
            client.line.close()
        return report


@attrs.frozen
class _Part:
    type: str
    text: str = ""
