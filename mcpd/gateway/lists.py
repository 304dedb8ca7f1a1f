"""Lists: requests for them, answered from the catalogs in mcpd's own pages, and notifications of changes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.stages.login import login_catalog
from mcpd.gateway.session import ClientSession
from mcpd.gateway.surfaces import listed_tools
from mcpd.gateway.views import LIST_MEMBERS, View
from mcpd.io.turns import take_turn
from mcpd.model.errors import NotReady
from mcpd.model.status import ServerState
from mcpd.protocol.revision_translation import entry_translation
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

FEATURES = ("tools", "resources", "prompts")
PAGE_SIZE = 1000
"""Entries per page; most lists fit on one."""
FIRST_START_TIMEOUT = 5.0
"""Seconds that a merged list waits for servers that start for the first time: many clients ask once, at
their own start, and give up after ten seconds."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
_CAPABILITY_OF = {
    "tools": "tools",
    "resources": "resources",
    "resourceTemplates": "resources",
    "prompts": "prompts",
}


def answer_list(session: ClientSession, request: ClientRequest) -> None:
    """Answer a list request. Raises BadFrame if the cursor is invalid or its list has changed."""
    member = LIST_MEMBERS[request.method]
    if _CAPABILITY_OF[member] not in session.view.capabilities(request.context.version):
        session.respond_error(
            request, -32601, f"{session.view.title} does not support {_CAPABILITY_OF[member]}"
        )
        return
    core, single = session.gateway.core, session.view.single
    servers = session.gateway.dedicated_servers.sources(session, session.view.servers())
    expired = [s for s in servers if s.lists_expired]
    unheard = [s for s in servers if s.is_first_start] if single is None else []
    if not expired and not unheard and (single is None or not servers or servers[0].catalog is not None):
        _respond_with_page(session, request, member)
        return

    async def when_known() -> None:
        if single is not None:
            try:
                await core.load_catalog(servers[0])
            except NotReady:
                if login_catalog(servers[0]) is None:
                    raise
        else:
            with trio.move_on_after(FIRST_START_TIMEOUT):
                for server in unheard:
                    await server.wait_settled()
            await core.refresh_catalogs(expired)
            if session.view.must_prepare:
                await session.view.prepare()
        await take_turn(session)  # many requests may have waited for the same list
        _respond_with_page(session, request, member)

    session.spawn_request(request, when_known)


def _respond_with_page(session: ClientSession, request: ClientRequest, member: str) -> None:
    entries = session.visible.entries(session.view, member, lambda: session.facts(request.context))
    if member == "tools":
        entries = listed_tools(session, request.context, entries)
    translate = entry_translation(member, request.context.version)
    start = _cursor_position(request, entries)
    page: list[Raw] = []
    size = 0
    for entry in entries[start : start + PAGE_SIZE]:
        size += len(entry)
        if page and size > MAX_PAGE_BYTES:
            break
        page.append(Raw(entry if translate is None else translate(entry)))
    body: dict[str, object] = {member: page}
    if start + len(page) < len(entries):
        body["nextCursor"] = _cursor(entries, start + len(page))
    if request.context.modern:
        ttl, scope = session.view.freshness(member)
        body |= {"resultType": "complete", "ttlMs": ttl, "cacheScope": scope}
    session.respond(request, msgspec.json.encode(body))


def _cursor_position(request: ClientRequest, entries: Sequence[bytes]) -> int:
    params = bytes(request.params)
    raw = wire.members(params).get("cursor") if params not in (b"", b"null") else None
    if raw is None or bytes(raw) == b"null":
        return 0
    try:
        cursor = msgspec.json.decode(raw, type=str)
        start = int(base64.urlsafe_b64decode(cursor).split(b".")[0])
    except (msgspec.MsgspecError, ValueError):
        raise BadFrame("`cursor` is not from mcpd") from None
    if not 0 < start < len(entries) or cursor != _cursor(entries, start):
        raise BadFrame("`cursor` is from a list that has changed; list again from the beginning")
    return start


def _cursor(entries: Sequence[bytes], start: int) -> str:
    """Return the cursor for `start`, valid for exactly this list."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(b"%d:" % len(entry))
        digest.update(entry)
    return base64.urlsafe_b64encode(b"%d.%b" % (start, digest.digest()[:12])).decode()


class ListChanges:
    """Tells clients which lists have changed. `companions_of` returns the second connections that a client
    uses, and `users_of` the clients of a dedicated server.
    """

    def __init__(
        self,
        sessions: Collection[ClientSession],
        companions_of: Callable[[ClientSession], Collection[ManagedServer]],
        users_of: Callable[[ManagedServer], Collection[object]],
    ) -> None:
        self._sessions = sessions
        self._companions_of = companions_of
        self._users_of = users_of
        self._disabled: dict[str, bool] = {}
        self._offered_logins: set[str] = set()
        """The servers whose only tool is the one to log in, as clients were notified."""

    def notify(self, server: ManagedServer, feature: str) -> None:
        """A list of a server has changed. Nobody sees those of a dedicated server but a person."""
        of_person = self._users_of(server) if server.spec.person else ()
        for session in list(self._sessions):
            if session.view.covers(server) or session in of_person or server in self._companions_of(session):
                session.notify_list_changed(feature)

    def notify_view(self, view: View, features: Iterable[str]) -> None:
        """Lists of a view of several servers have changed."""
        for session in list(self._sessions):
            if session.scope is view.scope:
                for feature in features:
                    session.notify_list_changed(feature)

    def on_removed(self, name: str) -> None:
        self._offered_logins.discard(name)
        if self._disabled.pop(name, True) is False:
            self._notify_all(None)

    def on_status(self, server: ManagedServer, state: ServerState) -> None:
        """A server that is enabled or disabled appears or disappears; so does the tool to log in to it."""
        name, is_disabled = server.spec.name, state is ServerState.DISABLED
        was_disabled = self._disabled.get(name)
        self._disabled[name] = is_disabled
        if was_disabled is not None and was_disabled is not is_disabled:
            self._notify_all(name)
        if login_catalog(server) is not None:
            if name not in self._offered_logins:
                self._offered_logins.add(name)
                self.notify(server, "tools")
        elif state is ServerState.CONNECTED and name in self._offered_logins:
            self._offered_logins.discard(name)
            self.notify(server, "tools")

    def _notify_all(self, name: str | None) -> None:
        """Notify the clients of several servers, and those of the server `name` alone."""
        for session in list(self._sessions):
            single = session.view.single
            if single is None or single.spec.name == name:
                for feature in FEATURES:
                    session.notify_list_changed(feature)
