"""The client that the conformance suite runs: mcpd's upstream code in one scenario.

    MCP_CONFORMANCE_SCENARIO=tools_call python -m tests.conformance.client http://localhost:1234/mcp

mcpd detects the era, completes the handshake, filters the lists, and handles headers and rounds. This module
only makes the choices of a user: which tool to call, and what to answer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.model.server_spec import RemoteSpec
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks, Upstream
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.catalog_fetch import fetch_catalog
from mcpd.supervision.connect import open_remote
from mcpd.supervision.restart import leaf_exceptions
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import Message
from tests.calls.awaiting_caller import request_with_input

Json = dict[str, Any]
CAPABILITIES: Json = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
TIMEOUT = 60.0


@attrs.frozen
class Session:
    upstream: Upstream
    catalog: Catalog

    async def call(self, tool: str, arguments: Mapping[str, object]) -> Json:
        """Call a tool in as many rounds as the server wants, and answer each question with the defaults."""
        params = {"name": tool, "arguments": arguments}
        result = await request_with_input(self.upstream, "tools/call", params, answer, timeout=TIMEOUT)
        return as_object(result)


def as_object(raw: Raw | bytes) -> Json:
    value = wire.value(raw)
    assert isinstance(value, dict)
    return value


def filled_in(params: Json) -> Json:
    """Accept an elicitation without a change in the form."""
    asked = params.get("requestedSchema", {}).get("properties", {})
    content = {name: field["default"] for name, field in asked.items() if "default" in field}
    content |= {n: True for n, field in asked.items() if field.get("type") == "boolean" and n not in content}
    return {"action": "accept", "content": content}


async def answer(method: str, params: Raw) -> Mapping[str, object]:
    if method == "roots/list":
        return {"roots": []}
    if method == "elicitation/create":
        return filled_in(as_object(params))
    raise NotImplementedError(method)


def asked(channel: Channel, message: Message, exchange: Exchange | None) -> bool:
    """Answer a legacy server, which asks with requests."""
    if message.method == "elicitation/create":
        channel.respond(message, json.dumps(filled_in(as_object(message.params))).encode())
    elif message.method == "roots/list":
        channel.respond(message, b'{"roots":[]}')
    else:
        return False
    return True


def report(step: str, outcome: str, seconds: float) -> None:
    print(f"{step}: {outcome} ({seconds:.2f} s)", file=sys.stderr)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Session]:
    spec = RemoteSpec(name="server", kind="http", url=url)
    hooks = Hooks(
        on_list_changed=lambda what: print(f"{what} changed", file=sys.stderr),
        on_log=lambda line: print(line, file=sys.stderr),
        capabilities=CAPABILITIES,
        on_request=asked,
    )
    async with open_remote(spec, "http", os.environ) as connection, trio.open_nursery() as nursery:
        connection.channel.tap = lambda way, frame: print(way, frame.decode(), file=sys.stderr)
        nursery.start_soon(connection.run)
        upstream = await negotiate(connection.channel, hooks, "auto", spec.timeouts.probe, report)
        if upstream.run_subscriptions is not None:
            nursery.start_soon(upstream.run_subscriptions)
            await upstream.notifications_ready.wait()
        yield Session(upstream, await fetch_catalog(upstream, spec))
        nursery.cancel_scope.cancel()


# ── scenarios ───────────────────────────────────────────────────────────────────────────────────────────


async def connect_and_list(session: Session) -> None:
    """Connect and list, which most scenarios check. A mock server without capabilities is listed too."""
    if not session.upstream.has("tools"):
        await session.upstream.request("tools/list", {}, timeout=TIMEOUT)


async def add(session: Session) -> None:
    await session.call("add_numbers", {"a": 5, "b": 3})


async def call_all(session: Session) -> None:
    """Call every listed tool, with a plausible value for each required argument."""
    for tool in session.catalog.tools:
        await session.call(tool.name, plausible(as_object(tool.raw)["inputSchema"]))


def plausible(schema: Json) -> Json:
    values: Json = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}
    fields = schema.get("properties", {})
    return {name: values.get(fields[name].get("type")) for name in schema.get("required", [])}


async def use_everything(session: Session) -> None:
    await call_all(session)
    for resource in session.catalog.resources:
        await request_with_input(
            session.upstream, "resources/read", {"uri": resource.name}, answer, timeout=TIMEOUT
        )
    for prompt in session.catalog.prompts:
        await request_with_input(
            session.upstream, "prompts/get", {"name": prompt.name}, answer, timeout=TIMEOUT
        )


async def replay(session: Session) -> None:
    """Make the calls that the scenario specifies."""
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await session.call(call["name"], call["arguments"])


async def give_schema_back(session: Session) -> None:
    tool = session.catalog.tool("json_schema_2020_12_tool")
    assert tool is not None
    await session.call("json_schema_echo", {"schema": as_object(tool.raw)["inputSchema"]})


async def call_in_rounds(session: Session) -> None:
    """Make all calls concurrently, to detect rounds that are mixed up."""
    async with trio.open_nursery() as nursery:
        for tool in session.catalog.tools:
            nursery.start_soon(session.call, tool.name, {})


SCENARIOS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "elicitation-sep1034-client-defaults": call_all,
    "http-custom-headers": replay,
    "http-invalid-tool-headers": call_all,
    "http-standard-headers": use_everything,
    "json-schema-2020-12-preservation": give_schema_back,
    "sep-2322-client-request-state": call_in_rounds,
    "sse-retry": call_all,
    "tools_call": add,
}


async def main(url: str, scenario: str) -> None:
    async with connected(url) as session:
        await SCENARIOS.get(scenario, connect_and_list)(session)


if __name__ == "__main__":
    if os.environ.get("MCP_CONFORMANCE_SCENARIO", "").startswith("auth/"):
        from tests.conformance import login_client

        login_client.main(sys.argv[1], os.environ["MCP_CONFORMANCE_SCENARIO"])
        sys.exit()
    try:
        trio.run(main, sys.argv[1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""))
    except* (McpdError, OSError, trio.TooSlowError) as group:
        for leaf in leaf_exceptions(group):
            print(f"{type(leaf).__name__}: {leaf}", file=sys.stderr)
        sys.exit(1)
