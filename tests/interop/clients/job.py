"""What a client of a library is to do, and what it saw: JSON on its stdin and stdout.

    {"server": {"url": "http://127.0.0.1:1/mcp"}, "name": "alice", "calls": [["echo", {"text": "x"}]]}

The server is written as in an `mcpServers` file. The client lists the tools, then makes all calls at once. It
is somebody: asked by the server, it answers with its name, and it says what it was asked and received.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Json = dict[str, Any]


LIMIT = float(os.environ.get("CLIENT_LIMIT", "200"))
"""Seconds after which a client gives up by itself, so that it can say what it was waiting for."""


@dataclasses.dataclass
class Job:
    server: Json
    name: str
    calls: list[tuple[str, Json]]


@dataclasses.dataclass
class Report:
    protocol: str = ""
    tools: list[str] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    """The text of each call's answer, in the order of the calls."""
    failed: list[bool] = dataclasses.field(default_factory=list)
    """Which of them say that the tool failed."""
    asked: list[str] = dataclasses.field(default_factory=list)
    """The questions of the server, as it put them."""
    logs: list[str] = dataclasses.field(default_factory=list)
    progress: list[str] = dataclasses.field(default_factory=list)

    def answer(self, text: str, failed: bool) -> None:
        self.texts.append(text)
        self.failed.append(failed)


def elicited(job: Job, schema: Json | None = None) -> Json:
    """Fill in a form: each required text with the name."""
    wanted = (schema or {}).get("required") or ["name"]
    return {"action": "accept", "content": dict.fromkeys(wanted, job.name)}


def sampled(job: Job) -> Json:
    text = {"type": "text", "text": job.name}
    return {"role": "assistant", "content": text, "model": "none", "stopReason": "endTurn"}


def roots(job: Job) -> Json:
    return {"roots": [{"uri": f"file:///{job.name}", "name": job.name}]}


def text_of(content: list[Any]) -> str:
    return "".join(part.text for part in content if part.type == "text")


async def results(job: Job, call: Callable[[str, Json], Awaitable[Any]]) -> list[Any]:
    """Make the calls of the job, and return their results in order."""
    return await asyncio.gather(*(call(name, arguments) for name, arguments in job.calls))


def do(work: Callable[[Job, Report], Coroutine[Any, Any, None]]) -> None:
    """Read the job, have it done, print the report."""
    job, report = Job(**json.load(sys.stdin)), Report()
    try:
        asyncio.run(asyncio.wait_for(work(job, report), LIMIT))
    except BaseException:
        print(f"so far: {report}", file=sys.stderr)
        raise
    print(json.dumps(dataclasses.asdict(report)))
