"""List requests (`tools/list` and others), answered from the catalogs in pages of mcpd's own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.login_tool import login_catalog
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import LIST_MEMBERS
from mcpd.io.turns import take_turn
from mcpd.model.errors import NotReady
from mcpd.protocol.revision_translation import entry_translation
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

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
    single = session.view.single
    core, expired = session.gateway.core, [s for s in session.view.servers() if s.lists_expired]
    unheard = [s for s in session.view.servers() if s.is_first_start] if single is None else []
    if not expired and not unheard and (single is None or single.catalog is not None):
        _respond_with_page(session, request, member)
        return

    async def when_known() -> None:
        if single is not None:
            try:
                await core.load_catalog(single.spec.name)
            except NotReady:
                if login_catalog(single) is None:
                    raise
        else:
            with trio.move_on_after(FIRST_START_TIMEOUT):
                for server in unheard:
                    await server.wait_settled()
            await core.refresh_catalogs(expired)
            if session.view.must_prepare:
                await session.view.prepare()
        await take_turn()  # many requests may have waited for the same list
        _respond_with_page(session, request, member)

    session.spawn_request(request, when_known)


def _respond_with_page(session: ClientSession, request: ClientRequest, member: str) -> None:
    entries = session.visible.entries(session.view, member, lambda: session.facts(request.context))
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
    raw = wire.members(request.params).get("cursor") if request.params else None
    if raw is None:
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
