"""Requests in progress with one client: those of the client that wait, those to it, and errors."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import ResponseCallback, Spawn, Work
from mcpd.calls.client_context import ClientContext, ClientRequest, Responder
from mcpd.model.errors import McpdError, Overloaded, SchemaViolation
from mcpd.protocol.revision_translation import R4, R5
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message

MAX_PER_CLIENT = 1024
"""Each request takes a task. A client may subscribe to a thousand resources at once."""
MAX_IN_TOTAL = 8192
"""Each takes some kilobytes."""


class WaitingRequests:
    """Those of one client. `of_all` contains those of all clients, and is shared by them."""

    def __init__(
        self,
        of_all: set[trio.CancelScope],
        spawn: Spawn,
        respond_exception: Callable[[ClientRequest, Exception], None],
    ) -> None:
        self._of_all = of_all
        self._spawn = spawn
        self._respond_exception = respond_exception
        self.scopes: dict[bytes, trio.CancelScope] = {}
        """By the ids of the requests."""
        self.requests: dict[bytes, ClientRequest] = {}
        """The same."""
        self._is_closed = False

    def start(self, request: ClientRequest, work: Work) -> None:
        """Answer a request in a task of its own; an exception raised by `work` becomes the response.

        A result that `work` waited for may arrive together with the cancellation, so `work` must check for
        cancellation before it acts. It must undo whatever it did before being cancelled. Raises Overloaded.
        """
        if len(self.scopes) >= MAX_PER_CLIENT:
            raise Overloaded(f"{MAX_PER_CLIENT} requests of this client are already waiting; try again later")
        if len(self._of_all) >= MAX_IN_TOTAL:
            raise Overloaded(f"{MAX_IN_TOTAL} requests of all clients are already waiting; try again later")
        scope = self.scopes[request.key] = trio.CancelScope()
        self._of_all.add(scope)
        self.requests[request.key] = request

        async def run() -> None:
            with scope:
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await work()
                except Exception as error:
                    if not scope.cancel_called:
                        self._respond_exception(request, error)
                finally:
                    self._of_all.discard(scope)
            if self.scopes.get(request.key) is scope:
                del self.scopes[request.key], self.requests[request.key]
            if scope.cancel_called and not self._is_closed:
                request.responder.drop()

        self._spawn(run)

    def cancel(self, key: bytes, reason: str) -> None:
        """Cancel the request with this id, if it waits. It gets no response."""
        scope = self.scopes.pop(key, None)
        if scope is not None:
            del self.requests[key]
            scope.cancel(reason=reason)

    def close(self, reason: str) -> None:
        """Cancel all requests: the client has disconnected."""
        self._is_closed = True
        for scope in self.scopes.values():
            scope.cancel(reason=reason)


class ClientRequests:
    """Unanswered requests to one client. `send` sends it a frame outside of any request. Their ids count up
    from `first`."""

    def __init__(self, send: Callable[[bytes], None], first: int = 1) -> None:
        self._send = send
        self._pending: dict[bytes, ResponseCallback] = {}
        self.next_id = first
        self.assumed = b""
        """The id of the next request if the version before this one has sent it."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._pending)

    def send_request(
        self, method: str, params: bytes, reply: Responder | None, on_response: ResponseCallback
    ) -> bytes:
        """Send a request to the client and return its id. `reply` is the client's request that it belongs
        to.

        `on_response` is called exactly once, unless `cancel` comes first.
        """
        if self.assumed:
            key, self.assumed = self.assumed, b""
            self._pending[key] = on_response
            return key
        key = b"%d" % self.next_id
        self.next_id += 1
        if self._is_closed:
            on_response(None)
            return key
        self._pending[key] = on_response
        (self._send if reply is None else reply.send)(wire.request(key, method, params))
        return key

    async def request(self, method: str, params: bytes, reply: Responder, timeout: float) -> Message | None:
        """Send a request and return the response; None if there is none within `timeout` seconds."""
        responses: list[Message | None] = []
        done = trio.Event()

        def on_response(response: Message | None) -> None:
            responses.append(response)
            done.set()

        key = self.send_request(method, params, reply, on_response)
        reason = "its call has ended"
        try:
            with trio.move_on_after(timeout) as patience:
                await done.wait()
            if patience.cancelled_caught:
                reason = f"no answer within {timeout:g} s"
        finally:
            if not done.is_set():
                self.cancel(key, reason)
        return responses[0] if responses else None

    def cancel(self, key: bytes, reason: str) -> None:
        """Cancel a request; its response will be ignored."""
        if self._pending.pop(key, None) is not None:
            body = msgspec.json.encode({"requestId": Raw(key), "reason": reason})
            self._send(wire.notification("notifications/cancelled", body))

    def handle_response(self, response: Message) -> None:
        """Handle a response. Responses to unknown or cancelled requests are ignored."""
        answered = self._pending.pop(bytes(response.id), None)
        if answered is not None:
            answered(response)

    def close(self) -> None:
        """The client has disconnected: end all requests with None."""
        self._is_closed = True
        questions, self._pending = list(self._pending.values()), {}
        for answered in questions:
            answered(None)


log = logging.getLogger("mcpd.gateway")

_INVALID_PARAMS, _INTERNAL = -32602, -32603
_RESOURCE_NOT_FOUND = -32002
"""The legacy revisions' error code for an unknown resource."""


def exception_response(request: ClientRequest, error: Exception, *, is_stopping: bool) -> tuple[bytes, int]:
    """Return the response to a request that failed with `error`, and its error code; 0 if it is a result.

    `is_stopping`: whether the daemon stops, so that the request can be sent again to the next one.
    """
    if isinstance(error, McpdError):
        return _own_error(request, error, is_stopping)
    if isinstance(error, BadFrame):
        code, text = _INVALID_PARAMS, f"params: {error}"
    else:
        method = request.method[:100]
        log.error("an error in mcpd itself, in a client's %s", method, exc_info=error)
        code, text = _INTERNAL, f"{method}: an error in mcpd itself; see its log"
    return wire.error(request.key, wire.error_body(code, text)), code


def _own_error(request: ClientRequest, error: McpdError, is_stopping: bool) -> tuple[bytes, int]:
    context, code, data = request.context, error.rpc, error.data()
    if isinstance(error, SchemaViolation) and context.version >= R4:
        return wire.result(request.key, text_result(context, error.message, is_error=True)), 0
    if context.modern and -32019 <= code <= -32000:
        code = _INTERNAL  # the modern revision reserves these codes
    elif code == _INVALID_PARAMS and request.method == "resources/read" and not context.modern:
        code = _RESOURCE_NOT_FOUND
    if is_stopping and error.may_have_run is False:
        data["stopping"] = True
    return wire.error(request.key, wire.error_body(code, error.message, data)), code


def text_result(context: ClientContext, text: str, *, is_error: bool = False) -> bytes:
    """Return the result of a `tools/call` in the client's revision.

    An error in it is how a client learns of invalid arguments since 2025-11-25.
    """
    result: dict[str, object] = {"content": [{"type": "text", "text": text}]}
    if is_error:
        result["isError"] = True
    if context.version >= R5:
        result = {"resultType": "complete", **result}
    return msgspec.json.encode(result)
