"""On whose behalf a request is made: what its client speaks, and what it can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import msgspec
from msgspec import Raw


class Responder(Protocol):
    """Frames are JSON text; a newline at the end is no part of them. Must not block or raise.

    Exactly one of `finish` and `drop` is called, once, unless the session ends before.
    """

    def send(self, frame: bytes) -> None:
        """A notification, or a request of ours, that belongs to this request: it comes before the end."""

    def finish(self, frame: bytes, code: int = 0) -> None:
        """The response. `code`: the JSON-RPC code of an error of our own, 0 for all else."""

    def drop(self) -> None:
        """There will be no response: the client has cancelled the request."""


@attrs.frozen(kw_only=True)
class ClientIdentity:
    """Who is at the other end, as far as is known; all of it is the client's own word but for `door`."""

    via: str
    """How it came in: `socket`, `bridge`, `http`."""
    name: str = ""
    pid: int = 0
    cwd: str = ""


_NOTHING: Mapping[str, object] = {}


class ClientContext(msgspec.Struct, frozen=True, eq=False):
    """A legacy client says it once, a modern one with every request."""

    version: str
    modern: bool = False
    capabilities: Mapping[str, object] = _NOTHING
    """What it declared that it can be asked; untrusted."""
    log_level: str = ""
    """The least severe log messages it wants with its answer; empty: it did not say."""
    accepts_server_requests: bool = False
    """Whether there is anything that a server may want of it in the middle of a call; see `who_asks`."""

    def supports(self, feature: str, part: str | None = None) -> bool:
        """Whether it declared that it can be asked for `feature`, or for that part of it."""
        declared = self.capabilities.get(feature)
        if not isinstance(declared, Mapping):
            return False
        return part is None or isinstance(declared.get(part), Mapping)


def make_client_context(
    version: str, capabilities: Mapping[str, object], *, modern: bool = False, log_level: str = ""
) -> ClientContext:
    """An Asker with what follows from its capabilities."""
    context = ClientContext(version, modern, capabilities, log_level)
    asked = context.supports("elicitation") or context.supports("sampling")
    return msgspec.structs.replace(context, accepts_server_requests=True) if asked else context


def forwarded_capabilities(context: ClientContext, *, is_single_server: bool) -> Mapping[str, object]:
    """What a modern server is told that this client can be asked (digest 4.3).

    `whole`: the client sees that one server alone, so extensions that both know work between them.
    """
    told: dict[str, object] = {}
    for feature in ("elicitation", "sampling", "roots"):
        declared = context.capabilities.get(feature)
        if isinstance(declared, Mapping):
            told[feature] = declared
    if told.get("elicitation") == {}:
        told["elicitation"] = {"form": {}}  # what it meant before there was another way
    if "roots" in told:
        told["roots"] = {}
    if context.modern and is_single_server and isinstance(context.capabilities.get("extensions"), Mapping):
        told["extensions"] = context.capabilities["extensions"]
    return told


class ClientRequest(msgspec.Struct, eq=False):
    """A client's request, as its session took it in."""

    key: bytes
    """Its id, as the client wrote it."""
    method: str
    params: bytes
    """JSON, or empty; without what `_meta` said to us, see `modern.open_meta`."""
    responder: Responder
    context: ClientContext
    progress_token: bytes = b""
    """The client's progress token as JSON; empty for none."""
    has_no_meta: bool = False
    """Whether there is surely no `_meta` in its params."""

    @property
    def raw_key(self) -> Raw:
        """The id, for putting it into a message by its own bytes."""
        return Raw(self.key)
