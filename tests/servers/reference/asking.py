"""Tools that may speak with their caller while they run: progress, log lines, questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from tests.servers.reference.content import PLAIN, Json, form, text

PAUSE = 0.05
"""What the suite's descriptions ask for between two notifications, in seconds."""


class Caller(Protocol):
    """The client that called, as a tool sees it."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Which of `sampling`, `elicitation` and `roots` were declared."""
        ...

    async def log(self, line: str) -> None: ...

    async def progress(self, done: float, total: float, message: str) -> None:
        """Nothing happens when the caller gave no token."""
        ...

    async def ask(self, method: str, params: Json) -> Json:
        """A request to the caller, tied to this call as far as the transport can say so; its result."""
        ...

    async def hang_up(self) -> None:
        """Close the stream that would carry the result: the caller has to come back for it."""
        ...

    async def changed(self, what: str) -> None:
        """Change it, and announce that: `tools`, `prompts`, or the URI of a resource."""
        ...


def answer(*content: Json) -> Json:
    return {"content": list(content)}


def said(what: str) -> Json:
    return answer(text(what))


def failed(why: str) -> Json:
    return {**said(why), "isError": True}


def question(what: str, most: int = 100) -> Json:
    """The params of a sampling/createMessage."""
    return {"messages": [{"role": "user", "content": text(what)}], "maxTokens": most}


DEFAULTS = {
    "name": {"type": "string", "description": "User name", "default": "John Doe"},
    "age": {"type": "integer", "description": "User age", "default": 30},
    "score": {"type": "number", "description": "User score", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "description": "Verification status", "default": True},
}
"""A default for every primitive type (SEP-1034)."""

ENUMS: dict[str, Json] = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {
        "type": "string",
        "oneOf": [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)],
    },
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2"]}},
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
    },
}
"""Every way to offer a choice (SEP-1330)."""


async def with_logging(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await caller.log(line)
        await asyncio.sleep(PAUSE)
    return said("Tool with logging executed successfully")


async def with_progress(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    for done in (0, 50, 100):
        await caller.progress(done, 100, f"{done} of 100")
        await asyncio.sleep(PAUSE)
    return said("Tool with progress executed successfully")


async def sampling(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    if "sampling" not in caller.capabilities:
        return failed("the client declared no sampling")
    result = await caller.ask("sampling/createMessage", question(arguments["prompt"]))
    return said(f"LLM response: {result['content'].get('text')}")


async def elicited(caller: Caller, message: str, schema: Json) -> Json:
    if "elicitation" not in caller.capabilities:
        return failed("the client declared no elicitation")
    result = await caller.ask("elicitation/create", {"message": message, "requestedSchema": schema})
    content = json.dumps(result.get("content") or {})
    return said(f"Elicitation completed: action={result['action']}, content={content}")


async def elicitation(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return await elicited(caller, arguments["message"], form(response={"type": "string"}))


async def elicitation_defaults(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return await elicited(caller, "Please check what we know", {"type": "object", "properties": DEFAULTS})


async def elicitation_enums(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return await elicited(caller, "Please choose", form(**ENUMS))


async def error(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return failed("This tool intentionally returns an error for testing")


async def reconnection(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    """Let the caller go in the middle; what is logged afterwards has to wait for them to come back."""
    await caller.log("Before disconnect")
    await caller.hang_up()
    await asyncio.sleep(4 * PAUSE)
    await caller.log("After reconnect")
    return said("Reconnection test completed")


async def echo(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return said(arguments["text"])


async def converse(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    """All that a call can cause at once, each part marked with the caller's `tag`.

    The answer repeats what was answered to the questions: with two callers at a time it shows whether either
    was asked something, or received something, that belonged to the other.
    """
    tag, steps = arguments["tag"], arguments.get("steps", 3)
    for step in range(1, steps + 1):
        await caller.progress(step, steps, f"{tag} {step}")
        await caller.log(f"{tag} {step}")
        await asyncio.sleep(PAUSE / 10)
    heard: Json = {"tag": tag}
    if "elicitation" in caller.capabilities:
        asked = {"message": f"{tag}: what is your name?", "requestedSchema": form(name={"type": "string"})}
        heard["elicited"] = await caller.ask("elicitation/create", asked)
    if "sampling" in caller.capabilities:
        heard["sampled"] = await caller.ask("sampling/createMessage", question(f"{tag}: who are you?"))
    if "roots" in caller.capabilities:
        heard["roots"] = await caller.ask("roots/list", {})
    return said(json.dumps(heard))


async def change_tools(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    await caller.changed("tools")
    return said("changed the list of tools")


async def change_prompts(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    await caller.changed("prompts")
    return said("changed the list of prompts")


async def change_resource(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    await caller.changed("test://watched-resource")
    return said("changed the watched resource")


async def from_header(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return said(f"region={arguments.get('region')}")


async def schema_2020_12(caller: Caller, arguments: Mapping[str, Any]) -> Json:
    return said(json.dumps(dict(arguments)))


Tool = Callable[[Caller, Mapping[str, Any]], Awaitable[Json]]


def always(content: list[Json]) -> Tool:
    async def tool(caller: Caller, arguments: Mapping[str, Any]) -> Json:
        return answer(*content)

    return tool


TOOLS: dict[str, Tool] = {
    **{name: always(content) for name, content in PLAIN.items()},
    "echo": echo,
    "test_error_handling": error,
    "test_tool_with_logging": with_logging,
    "test_logging_tool": with_logging,
    "test_tool_with_progress": with_progress,
    "test_sampling": sampling,
    "test_elicitation": elicitation,
    "test_elicitation_sep1034_defaults": elicitation_defaults,
    "test_elicitation_sep1330_enums": elicitation_enums,
    "test_reconnection": reconnection,
    "test_trigger_tool_change": change_tools,
    "test_trigger_prompt_change": change_prompts,
    "test_trigger_resource_change": change_resource,
    "test_x_mcp_header": from_header,
    "json_schema_2020_12_tool": schema_2020_12,
    "converse": converse,
    "test_dynamic_tool": always([text("dynamic")]),
}
"""What both generations of the SDK can carry. The first is called by the suite without arguments; the last is
there only now and then."""
