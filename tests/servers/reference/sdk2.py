"""The reference server on the official SDK 2.x: every revision, asking in each in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp import types
from mcp.server import NotificationOptions, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.subscriptions import PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from tests.servers.reference import asking, content, rounds
from tests.servers.reference.content import Json
from tests.servers.reference.rounds import Round
from tests.servers.reference.serving import RETRY_MS, Events, serve

Context = ServerRequestContext[Any, Any]
Params = types.PaginatedRequestParams | None
QUESTIONS: Mapping[str, tuple[type[types.ServerRequest], type[BaseModel]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}

ONLY_MODERN = ("test_missing_capability",)
RESOURCE_NOT_FOUND = -32002
"""Through 2025-11-25; 2026-07-28 says -32602."""


def plain(value: BaseModel) -> Json:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


def declared(ctx: Context) -> frozenset[str]:
    capabilities = ctx.session.client_capabilities
    return frozenset(plain(capabilities)) if capabilities else frozenset()


def this_round(ctx: Context, params: types.CallToolRequestParams | types.GetPromptRequestParams) -> Round:
    answers = {key: plain(value) for key, value in (params.input_responses or {}).items()}
    return Round(params.arguments or {}, declared(ctx), answers, params.request_state)


class Store(EventStore):
    """What was sent, for clients that come back."""

    def __init__(self) -> None:
        self._events = Events()

    async def store_event(self, stream_id: str, message: Any) -> str:
        return self._events.add(stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream, missed = self._events.after(last_event_id)
        for event, message in missed:
            await send_callback(EventMessage(message, event))
        return stream


class World:
    """What lasts between requests: who listens, and how often the watched resource was changed."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.changes = 0
        more = [*asking.TOOLS, *rounds.ASKED, *ONLY_MODERN]
        self.lists = {
            False: content.Lists(list(asking.TOOLS), content.PROMPTS),
            True: content.Lists(more, [*content.PROMPTS, rounds.PROMPT]),
        }
        """Of the older revisions, and of 2026-07-28."""
        self._watching: dict[tuple[str, str], ServerSession] = {}

    def watch(self, ctx: Context, uri: str) -> None:
        self._watching[uri, session_id(ctx)] = ctx.session

    def leave(self, ctx: Context, uri: str) -> None:
        self._watching.pop((uri, session_id(ctx)), None)

    async def changed(self, uri: str) -> None:
        self.changes += 1
        await self.bus.publish(ResourceUpdated(uri))
        for (watched, _), session in list(self._watching.items()):
            if watched == uri:
                await session.send_resource_updated(uri)


def session_id(ctx: Context) -> str:
    return (ctx.request.headers.get("mcp-session-id") or "") if ctx.request is not None else ""


class Caller:
    """`asking.Caller`, over a request of either era."""

    def __init__(self, ctx: Context, world: World, memory: rounds.Memory) -> None:
        self._ctx, self._world, self._memory = ctx, world, memory
        self.capabilities = declared(ctx)
        self._modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def log(self, line: str) -> None:
        await self._ctx.session.send_log_message("info", line, "reference", self._ctx.request_id)

    async def progress(self, done: float, total: float, message: str) -> None:
        await self._ctx.session.report_progress(done, total, message)

    async def ask(self, method: str, params: Json) -> Json:
        if self._modern:
            return self._memory.recall(method, params)
        request, result = QUESTIONS[method]
        asked = request.model_validate({"method": method, "params": params})
        tie = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        return plain(await self._ctx.session.send_request(asked, result, metadata=tie))

    async def hang_up(self) -> None:
        if self._ctx.close_sse_stream is not None:
            await self._ctx.close_sse_stream()

    async def changed(self, what: str) -> None:
        if what not in ("tools", "prompts"):
            await self._world.changed(what)
            return
        for lists in self._world.lists.values():
            lists.change(what)
        if self._modern:
            await self._world.bus.publish(ToolsListChanged() if what == "tools" else PromptsListChanged())
        elif what == "tools":
            await self._ctx.session.send_tool_list_changed()
        else:
            await self._ctx.session.send_prompt_list_changed()


class Reference(Server[Any]):
    """Announces that its lists can change, which the SDK leaves out unless it is received."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **named: Any
    ) -> Any:
        changing = notification_options or NotificationOptions(True, True, True)
        return super().create_initialization_options(changing, *more, **named)


def reference() -> Server[Any]:
    world = World()

    def modern(ctx: Context) -> bool:
        return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def list_tools(ctx: Context, params: Params) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate({"tools": content.tools(world.lists[modern(ctx)].tools)})

    async def call_tool(
        ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        now = this_round(ctx, params)
        if params.name not in world.lists[modern(ctx)].tools:
            raise MCPError(types.INVALID_PARAMS, f"no tool {params.name!r}")
        if params.name in rounds.ASKED:
            return called(rounds.play(params.name, now))
        if params.name == "test_missing_capability" and "sampling" not in now.capabilities:
            needed: Json = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "this needs sampling", needed)
        if params.name in ONLY_MODERN:
            return called(asking.said("nothing was missing"))
        memory = rounds.Memory(now)
        try:
            return called(await asking.TOOLS[params.name](Caller(ctx, world, memory), now.arguments))
        except KeyError as missing:
            raise MCPError(types.INVALID_PARAMS, f"{params.name} needs {missing}") from None
        except rounds.Unanswered as open_:
            return called(memory.unanswered(open_))

    async def list_prompts(ctx: Context, params: Params) -> types.ListPromptsResult:
        return types.ListPromptsResult.model_validate({"prompts": world.lists[modern(ctx)].prompts})

    async def get_prompt(
        ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        if params.name == rounds.PROMPT["name"] and modern(ctx):
            result = rounds.play_prompt(this_round(ctx, params))
            if "inputRequests" in result:
                return types.InputRequiredResult.model_validate(result)
            return types.GetPromptResult.model_validate(result)
        try:
            found = content.prompt(params.name, params.arguments or {})
        except KeyError as missing:
            raise MCPError(types.INVALID_PARAMS, f"{params.name} needs {missing}") from None
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"no prompt {params.name!r}")
        return types.GetPromptResult.model_validate(found)

    async def list_resources(ctx: Context, params: Params) -> types.ListResourcesResult:
        return types.ListResourcesResult.model_validate({"resources": content.RESOURCES})

    async def list_templates(ctx: Context, params: Params) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": content.TEMPLATES})

    async def read_resource(
        ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        found = content.resource(params.uri, f"Watched resource content, changed {world.changes} times")
        if found is None:
            code = types.INVALID_PARAMS if modern(ctx) else RESOURCE_NOT_FOUND
            raise MCPError(code, "Resource not found", {"uri": params.uri})
        return types.ReadResourceResult.model_validate(found)

    async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        world.watch(ctx, params.uri)
        return types.EmptyResult()

    async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        world.leave(ctx, params.uri)
        return types.EmptyResult()

    async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()

    async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        name = params.ref.name if isinstance(params.ref, types.PromptReference) else params.ref.uri
        found = content.completion(name, params.argument.name, params.argument.value)
        return types.CompleteResult.model_validate(found)

    server = Reference(
        "reference-sdk2",
        version="1.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(world.bus),
        on_completion=complete,
    )
    # As an argument of the constructor this one earns a warning: it goes away with the older revisions.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    # What a client sends back as the state is ours, unchanged, or is refused before a tool sees it.
    server.middleware.append(
        RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=server.name)
    )
    return server


def called(result: Json) -> types.CallToolResult | types.InputRequiredResult:
    if result.get("resultType") == "input_required":
        return types.InputRequiredResult.model_validate(result)
    return types.CallToolResult.model_validate(result)


async def over_stdio() -> None:
    server = reference()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def over_http() -> Any:
    return reference().streamable_http_app(event_store=Store(), retry_interval=RETRY_MS)


if __name__ == "__main__":
    serve("reference-sdk2", over_stdio, over_http)
