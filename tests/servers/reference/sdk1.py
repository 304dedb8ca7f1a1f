# mypy: ignore-errors
# Written for the SDK in .venv-mcp1; the one that mypy sees has other types of the same names.
"""The reference server on the official SDK 1.x: the world before 2026-07-28; servers ask by requests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import McpError
from mcp.shared.message import ServerMessageMetadata
from starlette.applications import Starlette
from starlette.routing import Route

from tests.servers.reference import asking, content
from tests.servers.reference.content import Json
from tests.servers.reference.serving import RETRY_MS, Events, serve

RESULTS = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}
RESOURCE_NOT_FOUND = -32002


def plain(value: Any) -> Json:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


class Store(EventStore):
    """What was sent, for clients that come back."""

    def __init__(self) -> None:
        self._events = Events()

    async def store_event(self, stream_id: str, message: Any) -> str:
        return self._events.add(stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        stream, missed = self._events.after(last_event_id)
        for event, message in missed:
            await send_callback(EventMessage(message, event))
        return stream


class Caller:
    """`asking.Caller`, over a request of a session."""

    def __init__(self, server: Reference) -> None:
        self._server, self._ctx = server, server.request_context
        self._session = self._ctx.session

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(plain(self._session.client_params.capabilities))

    async def log(self, line: str) -> None:
        await self._session.send_log_message("info", line, "reference", self._ctx.request_id)

    async def progress(self, done: float, total: float, message: str) -> None:
        token = self._ctx.meta.progressToken if self._ctx.meta else None
        if token is not None:
            tie = str(self._ctx.request_id)
            await self._session.send_progress_notification(token, done, total, message, tie)

    async def ask(self, method: str, params: Json) -> Json:
        asked = types.ServerRequest.model_validate({"method": method, "params": params})
        tie = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        return plain(await self._session.send_request(asked, RESULTS[method], metadata=tie))

    async def hang_up(self) -> None:
        if self._ctx.close_sse_stream is not None:
            await self._ctx.close_sse_stream()

    async def changed(self, what: str) -> None:
        if what in ("tools", "prompts"):
            self._server.lists.change(what)
        if what == "tools":
            await self._session.send_tool_list_changed()
        elif what == "prompts":
            await self._session.send_prompt_list_changed()
        else:
            self._server.changes += 1
            for uri, session in list(self._server.watching):
                if uri == what:
                    await session.send_resource_updated(uri)


class Reference(Server):
    """Declares that lists can change and resources can be watched; the SDK leaves it out unless received."""

    def __init__(self) -> None:
        super().__init__("reference-sdk1", "1.0")
        self.watching: set[tuple[str, Any]] = set()
        self.changes = 0
        self.lists = content.Lists(list(asking.TOOLS), content.PROMPTS)

    def create_initialization_options(self, *more: Any, **named: Any) -> Any:
        options = super().create_initialization_options(NotificationOptions(True, True, True))
        options.capabilities.resources.subscribe = True
        return options


def reference() -> Reference:
    server = Reference()

    def answers(request: type) -> Any:
        """Have a handler's dict sent as the result of this kind of request."""

        def register(handler: Any) -> Any:
            async def handle(req: Any) -> types.ServerResult:
                model, result = await handler(req)
                return types.ServerResult(model.model_validate(result))

            server.request_handlers[request] = handle
            return handler

        return register

    @answers(types.ListToolsRequest)
    async def list_tools(req: Any) -> Any:
        return types.ListToolsResult, {"tools": content.tools(server.lists.tools)}

    @answers(types.CallToolRequest)
    async def call_tool(req: Any) -> Any:
        tool = asking.TOOLS.get(req.params.name)
        if tool is None:
            raise refused(types.INVALID_PARAMS, f"no tool {req.params.name!r}")
        try:
            result = await tool(Caller(server), req.params.arguments or {})
        except KeyError as missing:
            raise refused(types.INVALID_PARAMS, f"{req.params.name} needs {missing}") from None
        return types.CallToolResult, result

    @answers(types.ListPromptsRequest)
    async def list_prompts(req: Any) -> Any:
        return types.ListPromptsResult, {"prompts": server.lists.prompts}

    @answers(types.GetPromptRequest)
    async def get_prompt(req: Any) -> Any:
        try:
            found = content.prompt(req.params.name, req.params.arguments or {})
        except KeyError as missing:
            raise refused(types.INVALID_PARAMS, f"{req.params.name} needs {missing}") from None
        if found is None:
            raise refused(types.INVALID_PARAMS, f"no prompt {req.params.name!r}")
        return types.GetPromptResult, found

    @answers(types.ListResourcesRequest)
    async def list_resources(req: Any) -> Any:
        return types.ListResourcesResult, {"resources": content.RESOURCES}

    @answers(types.ListResourceTemplatesRequest)
    async def list_templates(req: Any) -> Any:
        return types.ListResourceTemplatesResult, {"resourceTemplates": content.TEMPLATES}

    @answers(types.ReadResourceRequest)
    async def read_resource(req: Any) -> Any:
        uri = str(req.params.uri)
        found = content.resource(uri, f"Watched resource content, changed {server.changes} times")
        if found is None:
            raise refused(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})
        return types.ReadResourceResult, found

    @answers(types.SubscribeRequest)
    async def subscribe(req: Any) -> Any:
        server.watching.add((str(req.params.uri), server.request_context.session))
        return types.EmptyResult, {}

    @answers(types.UnsubscribeRequest)
    async def unsubscribe(req: Any) -> Any:
        server.watching.discard((str(req.params.uri), server.request_context.session))
        return types.EmptyResult, {}

    @answers(types.SetLevelRequest)
    async def set_level(req: Any) -> Any:
        return types.EmptyResult, {}

    @answers(types.CompleteRequest)
    async def complete(req: Any) -> Any:
        ref = req.params.ref
        name = getattr(ref, "name", None) or str(ref.uri)
        found = content.completion(name, req.params.argument.name, req.params.argument.value)
        return types.CompleteResult, found

    return server


def refused(code: int, message: str, data: Any = None) -> McpError:
    return McpError(types.ErrorData(code=code, message=message, data=data))


async def over_stdio() -> None:
    server = reference()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


LOCAL = ("127.0.0.1:*", "localhost:*", "[::1]:*")


def over_http() -> Starlette:
    manager = StreamableHTTPSessionManager(
        reference(),
        event_store=Store(),
        retry_interval=RETRY_MS,
        security_settings=TransportSecuritySettings(
            allowed_hosts=list(LOCAL), allowed_origins=[f"http://{host}" for host in LOCAL]
        ),
    )

    class HttpEndpoint:
        """An ASGI application: a function would be taken for a handler of requests."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    return Starlette(routes=[Route("/mcp", endpoint=HttpEndpoint())], lifespan=lifespan)


if __name__ == "__main__":
    serve("reference-sdk1", over_stdio, over_http)
