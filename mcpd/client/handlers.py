"""What a program answers servers that ask for something, and how it hears of log messages and changes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

log = logging.getLogger("mcpd.client")
Json = Mapping[str, Any]
ONE_SERVER = "mcpd://"
"""The beginning of a URI that names a resource of one server: `mcpd://SERVER/URI`."""
UPDATED = "notifications/resources/updated"
_Roots = Iterable[str | Path]


@attrs.frozen(kw_only=True)
class Handlers:
    """Functions of the program for `connect(handlers=…)`, plain or async. They run in the connection's event
    loop, so that a plain one should not block.

    A server is only told that it may ask for what has a handler here. If one raises an exception, the server
    gets an error that says so, and the exception is logged (logger `mcpd.client`).
    """

    elicitation: Callable[[Json], Json | Awaitable[Json | None] | None] | None = None
    """Called with the params of `elicitation/create`. Returns the content of the form, `{}` for a URL that
    was visited, or None to decline; `{"action": "cancel"}` cancels. Also asked for approvals."""
    sampling: Callable[[Json], Json | str | Awaitable[Json | str]] | None = None
    """Called with the params of `sampling/createMessage`. Returns the text of the answer, or the result as
    MCP defines it."""
    roots: _Roots | Callable[[], _Roots | Awaitable[_Roots]] | None = None
    """The directories of the program, as paths or URIs, or a function that returns them."""
    log: Callable[[Json], object] | None = None
    """Called with the params of each log message: `level`, `data` and perhaps `logger`."""
    log_level: str = "info"
    """The least severe level of these messages."""
    tools_changed: Callable[[], object] | None = None
    """Called when `list_tools` may return something else than before."""

    resource_updated: Callable[[str, str], object] | None = None
    """Called with the server and the URI of a resource that has changed. See `Mcp.subscribe`."""

    def capabilities(self) -> Json:
        """Return what the client declares."""
        declared: dict[str, Json] = {}
        if self.elicitation is not None:
            declared["elicitation"] = {"form": {}, "url": {}}
        if self.sampling is not None:
            declared["sampling"] = {}
        if self.roots is not None:
            declared["roots"] = {}
        return declared


async def resolve(outcome: object) -> Any:  # noqa: ANN401 # of a function of the program
    """Return what a function has returned, whether it is an async one or not."""
    return await outcome if inspect.isawaitable(outcome) else outcome


async def answer(handlers: Handlers, method: str, params: Json) -> Json | None:
    """Return the result of a server's request; None if there is no handler. Raises what the handler does."""
    if method == "elicitation/create" and handlers.elicitation is not None:
        return _elicited(params, await resolve(handlers.elicitation(params)))
    if method == "sampling/createMessage" and handlers.sampling is not None:
        given = await resolve(handlers.sampling(params))
        if not isinstance(given, str):
            return _mapping(given, "the text of the answer")
        return {"role": "assistant", "content": {"type": "text", "text": given}, "model": "unknown"}
    if method == "roots/list" and handlers.roots is not None:
        roots = handlers.roots
        found = await resolve(roots()) if callable(roots) else roots
        several = [found] if isinstance(found, str | Path) else found
        return {"roots": [{"uri": _uri(each)} for each in several]}
    return {} if method == "ping" else None


def _elicited(params: Json, given: Json | None) -> Json:
    if given is None:
        return {"action": "decline"}
    given = _mapping(given, "the content of the form")
    fields = params.get("requestedSchema", {}).get("properties", {})
    if "action" in given and "action" not in fields:  # a result as MCP defines it
        return given
    content = {} if params.get("mode") == "url" else {"content": given}
    return {"action": "accept", **content}


def _mapping(given: Json, otherwise: str) -> Json:
    if not isinstance(given, Mapping):
        raise TypeError(f"it returned {type(given).__name__}, and not {otherwise} or a result as a mapping")
    return dict(given)


def _uri(root: str | Path) -> str:
    return root if isinstance(root, str) and "://" in root else Path(root).absolute().as_uri()


async def notify(handlers: Handlers, method: str, params: Json) -> None:
    """Tell the program what a notification says. An exception of its function is logged."""
    try:
        if method == "notifications/message" and handlers.log is not None:
            await resolve(handlers.log(params))
        elif method == "notifications/tools/list_changed" and handlers.tools_changed is not None:
            await resolve(handlers.tools_changed())
        elif method == UPDATED and handlers.resource_updated is not None:
            server, _, uri = str(params["uri"]).removeprefix(ONE_SERVER).partition("/")
            await resolve(handlers.resource_updated(server, uri))
    except Exception:
        log.exception("the handler of %s failed", method)
