"""Every frame sent to a server is valid by the schema of the negotiated revision."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
import trio
from msgspec import Raw

from mcpd.model.server_spec import RemoteSpec
from mcpd.protocol import legacy, modern
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks, NotificationInterests, Upstream
from mcpd.supervision.catalog_fetch import fetch_catalog
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import AwaitedExchange, Exchange
from mcpd.wire.message import Message
from tests.calls.awaiting_caller import request_with_input
from tests.transports.peer import Json, Peer, connected

SCHEMAS = Path(__file__).parent.parent / "schema"
REVISIONS = (*modern.VERSIONS, *legacy.VERSIONS)
FEATURES: Json = {
    **{name: {"listChanged": True} for name in ("tools", "prompts")},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
}
ASKING = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}


@functools.cache
def schema(revision: str) -> Json:
    loaded: Json = json.loads((SCHEMAS / f"schema-{revision}.json").read_text())
    return loaded


def complaints(revision: str, message: Json) -> list[str]:
    """What is wrong with a message of ours. The request of an unknown method is wrong in any case."""
    kinds = ["JSONRPCMessage"]
    if "method" in message:
        kinds.append("ClientRequest" if "id" in message else "ClientNotification")
    elif "error" not in message:
        kinds.append("ClientResult")
    whole = schema(revision)
    where = "$defs" if "$defs" in whole else "definitions"
    found = []
    for kind in kinds:
        validator = jsonschema.validators.validator_for(whole)({**whole, "$ref": f"#/{where}/{kind}"})
        checked = message.get("result") if kind == "ClientResult" else message
        found += [f"{kind}: {error.message[:300]}" for error in validator.iter_errors(checked)]
    return found


def script(revision: str) -> dict[str, Any]:
    """A server of one revision that has everything."""
    one = {"name": "x", "uri": "file:///x", "uriTemplate": "file:///{x}", "inputSchema": {"type": "object"}}
    members = ("tools", "resources", "resourceTemplates", "prompts")
    answers: dict[str, Any] = {
        method: {"result": {**{member: [one] for member in members}, "ttlMs": 0, "cacheScope": "private"}}
        for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
    }
    if revision in modern.VERSIONS:
        answers["subscriptions/listen"] = acknowledged
        answers["server/discover"] = {"result": {"supportedVersions": [revision], "capabilities": FEATURES}}
        return answers
    refusal = {"error": {"code": -32601, "message": "no such method"}}
    agreed = {
        "protocolVersion": revision,
        "capabilities": FEATURES,
        "serverInfo": {"name": "p", "version": "1"},
    }
    done = ("ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel")
    answers |= {method: {"result": {}} for method in done}
    return {**answers, "server/discover": refusal, "initialize": {"result": agreed}}


def acknowledged(request: Json) -> bytes:
    meta = {"io.modelcontextprotocol/subscriptionId": request["id"]}
    params = {"notifications": request["params"]["notifications"], "_meta": meta}
    method = "notifications/subscriptions/acknowledged"
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"


def asked(channel: Channel, message: Message, exchange: Exchange | None) -> bool:
    if message.method == "roots/list":
        channel.respond(message, b'{"roots":[{"uri":"file:///w"}]}')
    return message.method == "roots/list"


async def answer(method: str, params: Raw) -> Mapping[str, object]:
    return {"action": "accept", "content": {"x": 1}}


async def wish(peer: Peer, interests: NotificationInterests, *, era: str) -> None:
    """What clients want to hear, and do not any more."""
    if era == "modern":
        await peer.hear("subscriptions/listen")  # for the lists alone
    interests.set_log_level("x", "debug")
    interests.follow_resources("x", ["file:///x"])
    if era == "modern":
        await peer.hear("subscriptions/listen", 2)
        interests.forget("x")
        return
    with trio.fail_after(30):
        await interests.wait_subscribed("file:///x")
    await peer.hear("logging/setLevel")
    interests.forget("x")
    await peer.hear("resources/unsubscribe")


async def live(peer: Peer, upstream: Upstream) -> None:
    """All that mcpd says to a server of its own accord, and what it says for a client."""
    await fetch_catalog(upstream, RemoteSpec(name="peer", kind="http", url="http://x"))
    results: list[Json] = [{"result": {"content": []}}]
    if upstream.era == "modern":
        more = {"resultType": "input_required", "inputRequests": {"q": ASKING}, "requestState": "s"}
        results.insert(0, {"result": more})
    peer.script["tools/call"] = lambda _: results.pop(0)
    await request_with_input(upstream, "tools/call", {"name": "x", "arguments": {"a": [1]}}, answer)
    peer.script["tools/call"] = lambda _: None
    given_up = AwaitedExchange()
    upstream.submit(given_up, "tools/call", b'{"name":"x"}')
    await peer.hear("tools/call", 2 if upstream.era == "legacy" else 3)
    upstream.link.cancel(given_up, "nobody waits for it any more")
    await peer.hear("notifications/cancelled")
    await upstream.request(upstream.ping_method, {})
    if upstream.era == "legacy":
        for number, method in enumerate(("ping", "roots/list", "sampling/createMessage")):
            await peer.say({"jsonrpc": "2.0", "id": f"s{number}", "method": method})
        await peer.hear("", 3)  # the answers


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_frame_is_valid_in_the_negotiated_revision(revision: str) -> None:
    """The probe in the newest revision, all others in the negotiated one; every kind of frame is sent."""
    hooks = Hooks(lambda _: None, lambda _: None, capabilities={"roots": {}}, on_request=asked)
    async with connected(script(revision)) as peer, trio.open_nursery() as nursery:
        with trio.fail_after(30):
            upstream = await negotiate(peer.link, hooks, "auto", 5, lambda *_: None)
            assert upstream.version == revision
            if upstream.run_subscriptions is not None:
                nursery.start_soon(upstream.run_subscriptions)
            await wish(peer, hooks.interests, era=upstream.era)
            await live(peer, upstream)
        nursery.cancel_scope.cancel()
    said = [message.get("method", "an answer") for message in peer.heard]
    assert len(set(said)) == (8 if revision in modern.VERSIONS else 14), said
    for message in peer.heard:
        by = "2026-07-28" if message.get("method") == "server/discover" else revision
        assert complaints(by, message) == [], message
