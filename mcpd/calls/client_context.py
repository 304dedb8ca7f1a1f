"""What is known about a client and its request: identity, revision, capabilities, and where responses go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import Raw

from mcpd.model.policy import Surface
from mcpd.protocol import extensions
from mcpd.wire import message as wire


class Responder(Protocol):
    """Where the messages for one request go; each transport provides one. Frames are JSON text without a
    trailing newline. Methods must neither block nor raise.

    Exactly one of `finish` and `drop` is called, once, unless the session ends first.
    """

    def send(self, frame: bytes) -> None:
        """Send a notification or server request that belongs to this request, before its response."""

    def finish(self, frame: bytes, code: int = 0) -> None:
        """Send the response. `code` is the JSON-RPC code if the error is mcpd's own, otherwise 0."""

    def drop(self) -> None:
        """End without a response: the client has cancelled the request."""


class ClientIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who the client is. Self-reported, except for `via`, `peer_pid` and what is known of the person."""

    via: str
    """How it connected: `socket`, `bridge` or `http`."""
    name: str = ""
    pid: int = 0
    cwd: str = ""
    peer_pid: int = 0
    """The process at the other end of its connection, according to the kernel; 0 over TCP."""
    person: str = ""
    """The person whose access token its requests carry; empty for the person who runs mcpd."""
    person_id: str = ""
    """The same among the people of all authorization servers."""
    groups: tuple[str, ...] = ()
    """That person's groups, and the scopes of the token."""
    surface: Surface | None = None
    """What it was started with (`mcpctl install --surface`); None if nothing."""


MAX_CAPABILITY_VALUES = 2000
MAX_CAPABILITY_BYTES = 128 * 1024
"""Limits for the JSON of a client's capabilities: they are kept as long as the client is connected."""
_NOTHING: Mapping[str, object] = {}


class ClientContext(msgspec.Struct, frozen=True, eq=False):
    """What a client speaks and supports. Declared once (legacy) or per request (modern)."""

    version: str
    modern: bool = False
    capabilities: Mapping[str, object] = _NOTHING
    """Untrusted, as declared by the client."""
    log_level: str = ""
    """The least severe log level that it wants with its responses; empty if it did not say."""
    accepts_server_requests: bool = False
    """Whether a server may send it elicitation or sampling requests during a call."""
    client_name: str = ""
    """What a modern client calls itself in each request; empty for legacy clients, which do it once."""
    prefers_legacy: bool = False
    """Whether it answers requests of servers, as only the legacy era has them: see `LegacyCompanions`."""

    def supports(self, feature: str, part: str | None = None) -> bool:
        """Return whether it declared the capability `feature`, or that part of it."""
        declared = self.capabilities.get(feature)
        if not isinstance(declared, Mapping):
            return False
        return part is None or isinstance(declared.get(part), Mapping)


def read_capabilities(declared: Raw | bytes) -> Mapping[str, object] | None:
    """Return the capabilities that a client declares; None if they are not an object.

    Raises BadFrame, and TooLarge if they exceed a limit.
    """
    capabilities = wire.value(declared, MAX_CAPABILITY_VALUES, MAX_CAPABILITY_BYTES)
    return capabilities if isinstance(capabilities, dict) else None


def make_client_context(
    version: str,
    capabilities: Mapping[str, object],
    *,
    modern: bool = False,
    log_level: str = "",
    client_name: str = "",
) -> ClientContext:
    """Return a context, with what is derived from the capabilities."""
    context = ClientContext(version, modern, capabilities, log_level, client_name=client_name)
    accepts_requests = context.supports("elicitation") or context.supports("sampling")
    return msgspec.structs.replace(
        context,
        accepts_server_requests=accepts_requests,
        prefers_legacy=not modern and (accepts_requests or context.supports("roots")),
    )


def client_name(info: Raw | None) -> str:
    """Return what a client calls itself in `clientInfo`, as `name version`; empty if that is missing or
    malformed."""
    members = {} if info is None else wire.members_or_empty(info)
    return " ".join(text[:80] for each in ("name", "version") if (text := wire.string_or(members, each)))


def forwarded_capabilities(context: ClientContext, *, is_single_server: bool) -> Mapping[str, object]:
    """Return the client capabilities to declare to a modern server.

    Tasks are included only for a modern client that sees that server alone (`is_single_server`).
    """
    forwarded: dict[str, object] = {}
    for feature in ("elicitation", "sampling", "roots"):
        declared = context.capabilities.get(feature)
        if isinstance(declared, Mapping):
            forwarded[feature] = declared
    if forwarded.get("elicitation") == {}:
        forwarded["elicitation"] = {"form": {}}  # the meaning of `{}` before 2025-11-25
    if "roots" in forwarded:
        forwarded["roots"] = {}
    declared = context.capabilities.get("extensions")
    if isinstance(declared, Mapping):
        has_tasks = context.modern and is_single_server
        forwarded["extensions"] = declared if has_tasks else extensions.transparent(declared)
    return forwarded


class ClientRequest(msgspec.Struct, eq=False):
    """A client's request as received by its session."""

    key: bytes
    """The id, as the client wrote it."""
    method: str
    params: bytes
    """JSON, or empty; without the parts of `_meta` meant for mcpd (`apply_request_meta`)."""
    responder: Responder
    context: ClientContext
    progress_token: bytes = b""
    """The client's progress token as JSON; empty if none."""
    timeout: float = 0.0
    """Seconds without a response or progress after which the call fails, if the client set that."""
    has_no_meta: bool = False
    """Whether the params are known to contain no `_meta`."""
    keeps_whole: bool = False
    """Whether a long result must not be shortened, because no model sees it."""

    @property
    def raw_key(self) -> Raw:
        """The id, to be embedded in a message byte for byte."""
        return Raw(self.key)
