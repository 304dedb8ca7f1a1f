"""Logging in from an editor: the links that clients are shown, and the tool that leads to the first one.

Links (URL elicitation, MCP 2025-11-25 and later) are shown to the client whose call needs a login. The call
waits until somebody has logged in, and is then sent. This is safe, because the server did not execute it
without a login. A client is shown one link for each server, however many calls wait. The link opens a page of
mcpd on this machine, which names the server and the scopes. mcpd never opens a browser.

A server that has never been connected lists nothing, so no client calls anything. mcpd lists one tool for it,
and answers its calls once somebody has logged in.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, Answer, Call, Caller, Scope, Spawn, Stage, Work
from mcpd.config.settings import Settings
from mcpd.model.errors import LoginLinkOpen, McpdError, NeedsAuth, NotReady
from mcpd.model.server_spec import RemoteSpec, ServerSpec
from mcpd.model.status import ServerState
from mcpd.model.text import shorten
from mcpd.operations import Operations
from mcpd.protocol.revision_translation import R4, translate_request
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.catalog import Catalog, Item, is_tool_allowed
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import Message

if TYPE_CHECKING:
    from mcpd.auth.login import LoginAttempt

# ── the tool ──────────────────────────────────────────────────────────────────────────────────────────

LOGIN_TOOL = "mcpd_log_in"


def may_offer_login(spec: ServerSpec) -> bool:
    """Return whether a person can log in to the server, and its definition does not exclude the tool."""
    return (
        isinstance(spec, RemoteSpec)
        and spec.may_log_in
        and spec.oauth.grant == "code"
        and is_tool_allowed(spec, LOGIN_TOOL)
    )


def login_catalog(server: ManagedServer) -> Catalog | None:
    """Return the lists to show while a login is needed and nothing of the server is known; None otherwise.

    It is the same object each time, because callers compare lists by identity.
    """
    if server.catalog is not None or server.state is not ServerState.NEEDS_AUTH:
        return None
    return _catalog(server.configured_name) if may_offer_login(server.spec) else None


@lru_cache(maxsize=1000)
def _catalog(server: str) -> Catalog:
    entry = {
        "name": LOGIN_TOOL,
        "title": f"Log in to {server}",
        "description": f"The tools of {server} are available only after a login. If the user wants to use "
        f"{server}, call this tool: it shows the user a link to log in, or says how to log in otherwise.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    }
    return Catalog(tools=(Item(LOGIN_TOOL, msgspec.json.encode(entry)),))


class LoginToolStageFactory:
    is_per_tool = True

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return method == "tools/call" and not scope.is_control and may_offer_login(server.spec)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> LoginToolStage | None:
        return LoginToolStage(server) if name == LOGIN_TOOL else None


@attrs.define(eq=False)
class LoginToolStage(Stage):
    """Answers the calls of the tool, which get here when the server is connected."""

    server: ManagedServer

    def before(self, call: Call) -> Answer | None:
        catalog, upstream = self.server.catalog, self.server.upstream
        if upstream is None or (catalog is not None and catalog.tool(LOGIN_TOOL) is not None):
            return None
        name = self.server.configured_name
        text = f"{name} is connected. Its tools are listed now."
        result: dict[str, object] = {"content": [{"type": "text", "text": text}]}
        if upstream.era == "modern":
            result["resultType"] = "complete"
        return Answer(msgspec.json.encode(result), is_cached=False)


# ── the links ─────────────────────────────────────────────────────────────────────────────────────────

DECLINED_FOR = 600.0
"""Seconds for which a client that declined a link is not shown another one for the same server."""
PROGRESS_INTERVAL = 15.0
"""Seconds between progress notifications during a login: some clients cancel calls without progress."""
_MAX_LINKS = 2
"""Links that one call may lead to: one for a login, and one for a login with more scopes."""
_MAX_REMEMBERED = 1000
_METHOD = "elicitation/create"
_FORBIDDEN = 403
_DECLINED = McpdError("the client declined the link")
_Key = tuple[str, str]
"""(client, definition name)."""
NotifyComplete = Callable[[Caller, Raw], None]
"""Reports the end of a login to a client whose call ended earlier."""


@attrs.define(eq=False)
class _LinkQuestion:
    """The link as a question to a modern client, which returns with the answer (see `SuspendedCalls`)."""

    message: Message = attrs.field(factory=lambda: Message(method=_METHOD))
    is_accepted: bool = False
    returned: trio.Event = attrs.field(factory=trio.Event)

    def respond(self, result: Raw | bytes) -> None:
        self.is_accepted = _is_accepted(result)
        self.returned.set()

    def decline(self, reason: str) -> None:
        self.returned.set()


@attrs.define(eq=False)
class _ShownLink:
    """A link that one call of a client shows, and others of the same client wait for."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    is_logged_in: bool = False
    failure: McpdError | None = None
    """None also if the call was cancelled."""


_SHOWN = Attachment[int]("how many links were shown during the call")


class LoginLinkStageFactory:
    """Calls have the stage if a person can log in to their server."""

    is_per_tool = False

    def __init__(self, links: LoginLinks) -> None:
        self._links = links

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        spec = server.spec
        return (
            method in INTERACTIVE_METHODS
            and isinstance(spec, RemoteSpec)
            and spec.may_log_in
            and spec.oauth.grant == "code"
        )

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> LoginLinkStage:
        return LoginLinkStage(self._links)


@attrs.define(eq=False)
class LoginLinkStage(Stage):
    """Shows a link when a call has failed because of a missing login. The call is sent after the login."""

    links: LoginLinks

    def failed(self, call: Call, error: McpdError) -> Work | None:
        if self.links.may_help(call, error):
            return partial(self.links.wait_logged_in, call, error)
        if call.server.spec.person and needs_login(error):
            return partial(self.links.refuse_with_link, call, error)
        return None


class LoginLinks:
    """The links that clients are shown now. `spawn` must run tasks that outlive clients."""

    def __init__(self, operations: Operations, spawn: Spawn, notify_complete: NotifyComplete) -> None:
        self._operations = operations
        self._spawn = spawn
        self._notify_complete = notify_complete
        self._shown: dict[_Key, _ShownLink] = {}
        self._declined: dict[_Key, float] = {}
        """When the client declined a link (`trio.current_time()`)."""

    def may_help(self, call: Call, error: McpdError) -> bool:
        """Return whether the call failed because of a login, and its client can show a link."""
        return (
            needs_login(error)
            and call.context.version >= R4
            and call.context.supports("elicitation", "url")
            and (call.slots.get(_SHOWN) or 0) < _MAX_LINKS
        )

    async def refuse_with_link(self, call: Call, error: McpdError) -> None:
        """Raise an error with the link for a person whose client cannot show one otherwise."""
        name = call.server.configured_name
        link = await self._open(call, name, error)
        if link is None:
            return
        text = f"{name}: you are not logged in. Open {link.page} in a browser, log in"
        status = error.status if isinstance(error, NeedsAuth) else 401
        raise NeedsAuth(f"{text}, and send the call again", server=name, status=status)

    async def wait_logged_in(self, call: Call, error: McpdError) -> None:
        """Show the client a link unless one is shown already, and return when somebody has logged in.

        Raises the call's own `error` if no login is possible or wanted, LoginFailed if it did not succeed,
        and LoginLinkOpen if it takes longer than a legacy client may wait for the call.
        """
        server = call.server.configured_name
        key = (call.caller.describe(call.context), f"{server} {call.server.spec.person}")
        call.slots[_SHOWN] = (call.slots.get(_SHOWN) or 0) + 1
        while (other := self._shown.get(key)) is not None:
            await other.ended.wait()
            if other.is_logged_in:
                return
            if other.failure is not None:
                raise other.failure
        if self._declined.get(key, -math.inf) > trio.current_time() - DECLINED_FOR:
            raise error
        shown = self._shown[key] = _ShownLink()
        try:
            link = await self._open(call, server, error)
            if link is not None:
                await self._show(call, link, key, error)
            shown.is_logged_in = True
        except McpdError as failure:
            shown.failure = failure
            raise
        finally:
            del self._shown[key]
            shown.ended.set()

    async def _open(self, call: Call, server: str, error: McpdError) -> LoginAttempt | None:
        challenge = error.challenge if isinstance(error, NeedsAuth) else ()
        person, pages = call.server.spec.person, self._operations.login_pages
        try:
            service = await self._operations.logins.service()
            if person:
                return await service.link(call.server.spec.name, challenge, pages)
            return await service.link(server, challenge)
        except McpdError as failure:
            raise (failure if person else error) from None

    async def _show(self, call: Call, link: LoginAttempt, key: _Key, error: McpdError) -> None:
        elicitation: dict[str, object] = {
            "mode": "url",
            "elicitationId": secrets.token_urlsafe(12),
            "url": link.page,
            "message": _message(link, error),
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_progress, call)
            show = self._show_modern if call.context.modern else self._show_legacy
            failure = await show(call, link, elicitation)
            nursery.cancel_scope.cancel(reason="the login has ended")
        if failure is _DECLINED:
            if len(self._declined) >= _MAX_REMEMBERED:
                del self._declined[next(iter(self._declined))]
            self._declined[key] = trio.current_time()
            raise error
        if isinstance(failure, LoginLinkOpen):
            self._spawn(lambda: self._notify_when_done(call.caller, link, elicitation))
        if failure is not None:
            raise failure

    async def _show_modern(
        self, call: Call, link: LoginAttempt, elicitation: Mapping[str, object]
    ) -> McpdError | None:
        question = _LinkQuestion()
        params = msgspec.json.encode(elicitation)
        translated = translate_request(_METHOD, Raw(params), call.context.version, "")
        assert translated is not None
        with call.handler.asking(call, _METHOD, params):
            call.handler.ask_with_result(call, question, translated)
            await question.returned.wait()
        if not question.is_accepted and not link.is_done:
            return _DECLINED
        return await _outcome(link)

    async def _show_legacy(
        self, call: Call, link: LoginAttempt, elicitation: dict[str, object]
    ) -> McpdError | None:
        params = msgspec.json.encode(elicitation)
        server, request = link.request.server, call.request
        assert request is not None
        failure: McpdError | None = LoginLinkOpen(
            f"{server}: nobody has finished the login within {call.idle_timeout:g} s. Finish it in the "
            f"browser, or run `mcpctl login {server}`, and send the call again",
            server=server,
            elicitation=elicitation,
        )
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                nonlocal failure
                with call.handler.asking(call, _METHOD, params):
                    answer = await call.caller.ask(call, _METHOD, Raw(params))
                if _is_accepted(answer):
                    nursery.cancel_scope.deadline = trio.current_time() + call.idle_timeout
                else:
                    failure = _DECLINED
                    nursery.cancel_scope.cancel(reason="the client declined the link")

            nursery.start_soon(ask)
            outcome = await _outcome(link)
            failure = outcome
            nursery.cancel_scope.cancel(reason="the login has ended")
        if failure is None:
            body = msgspec.json.encode({"elicitationId": elicitation["elicitationId"]})
            request.responder.send(wire.notification("notifications/elicitation/complete", body))
        return failure

    async def _report_progress(self, call: Call) -> None:
        """Report progress to a client that asked for it, so that it does not give up on the call."""
        server = call.server.spec.name
        for number in itertools.count(1):
            progress = Raw(b"%d" % number)
            call.report_progress({"progress": progress, "message": _json(f"waiting for a login to {server}")})
            await trio.sleep(PROGRESS_INTERVAL)

    async def _notify_when_done(
        self, caller: Caller, link: LoginAttempt, elicitation: Mapping[str, object]
    ) -> None:
        if await _outcome(link) is None:
            self._notify_complete(caller, _json({"elicitationId": elicitation["elicitationId"]}))


def needs_login(error: McpdError) -> bool:
    if isinstance(error, NotReady):
        return error.state == ServerState.NEEDS_AUTH.value
    return isinstance(error, NeedsAuth)


async def _outcome(link: LoginAttempt) -> McpdError | None:
    """Wait for the end of a login; return why it failed."""
    try:
        await link.wait()
    except McpdError as error:
        return error
    return None


def _message(link: LoginAttempt, error: McpdError) -> str:
    offer, what = link.offer, "a login"
    assert offer is not None
    if isinstance(error, NeedsAuth) and error.status == _FORBIDDEN:
        what = f"a login with more access ({shorten(' '.join(offer.scopes), 200)})"
    return f"{offer.server} requires {what} at {offer.issuer}. The call continues when you have logged in."


def _is_accepted(answer: Raw | bytes) -> bool:
    return wire.string_or(wire.members_or_empty(answer), "action") == "accept"


def _json(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
