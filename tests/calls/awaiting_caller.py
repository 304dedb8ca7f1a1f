"""A caller that waits for one response at a time: the call engine on a connection, without a gateway."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Binding, Call, CallerIdentity, ResponseCallback, Work
from mcpd.calls.client_context import ClientContext, ClientRequest, Responder
from mcpd.calls.engine import CallEngine
from mcpd.calls.routes import CONTROL, Target
from mcpd.model.errors import McpdError
from mcpd.model.policy import ClientFacts
from mcpd.model.server_spec import ServerSpec, Timeouts
from mcpd.protocol.upstream_session import Upstream, to_upstream_error
from mcpd.wire.message import Message
from tests.gateway.model import make_core, make_server

Answer = Callable[[str, Raw], Awaitable[Mapping[str, object]]]


class AwaitingCaller:
    """Implements `Caller` and `Responder`; `answer` answers the questions of the server."""

    scope = CONTROL

    def __init__(self, nursery: trio.Nursery, answer: Answer, meta: bytes = b"") -> None:
        self._nursery = nursery
        self._answer = answer
        self._meta = meta
        self.calls: dict[bytes, Call] = {}
        self.binding: Binding | None = None
        self.done = trio.Event()
        self.result: Raw | bytes = b""
        self.error: McpdError | None = None

    def identify(self, context: ClientContext) -> CallerIdentity:
        return CallerIdentity("test", 4711, "test")

    @property
    def knows_roots(self) -> bool:
        return True

    def effective_roots(self) -> Sequence[Raw]:
        return ()

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def may_return(self) -> bool:
        return False

    def facts(self, context: ClientContext) -> ClientFacts:
        return ClientFacts()

    def describe(self, context: ClientContext) -> str:
        return "a test"

    def spawn(self, work: Work) -> None:
        self._nursery.start_soon(work)

    def request_meta(self, upstream: Upstream, context: ClientContext) -> bytes:
        return self._meta

    def send_result(self, call: Call, request: ClientRequest, result: Raw | bytes) -> None:
        del self.calls[request.key]
        self.result = result
        self.done.set()

    def send_error(self, call: Call, request: ClientRequest, error: McpdError) -> None:
        del self.calls[request.key]
        self.error = error
        self.done.set()

    def send_error_object(self, call: Call, request: ClientRequest, error: Raw | bytes, code: int) -> None:
        self.send_error(call, request, to_upstream_error(call.server.spec.name, Message(error=Raw(error))))

    def send_request(
        self, method: str, params: bytes, reply: Responder | None, on_response: ResponseCallback
    ) -> bytes:
        on_response(None)
        return b""

    def cancel_request(self, key: bytes, reason: str) -> None: ...

    async def ask(self, call: Call, method: str, params: Raw) -> Raw:
        return Raw(msgspec.json.encode(await self._answer(method, params)))

    def message_prefix(self, server: str) -> str:
        return ""

    def send(self, frame: bytes) -> None: ...
    def finish(self, frame: bytes, code: int = 0) -> None: ...
    def drop(self) -> None: ...


async def request_with_input(
    upstream: Upstream,
    method: str,
    params: Mapping[str, object],
    answer: Answer,
    *,
    timeout: float = math.inf,
    meta: bytes = b"",
) -> Raw:
    """Send a request and see it through all rounds; return the bytes of its result.

    Raises the McpdError that ended it. Cancelling the wait cancels the call.
    """
    server: Any = make_server()
    server.spec = ServerSpec(name=upstream.link.name, timeouts=Timeouts(call=timeout, call_max=math.inf))
    server.upstream = upstream
    async with trio.open_nursery() as nursery:
        caller = AwaitingCaller(nursery, answer, meta)
        core = make_core(server)
        engine = CallEngine(core, caller.spawn, lambda server: ())
        body = msgspec.json.encode(params)
        request = ClientRequest(b"1", method, body, caller, ClientContext(version=""))
        engine.start(caller, request, Target(server, body))
        try:
            await caller.done.wait()
        finally:
            for call in list(caller.calls.values()):
                engine.cancel(call, "no longer needed")
    if caller.error is not None:
        raise caller.error
    return Raw(caller.result)
