"""A large result is looked at in several turns, between which other clients get their responses."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.io import turns
from mcpd.wire.message import Message
from tests.gateway.mcp_client import MODERN, meta
from tests.gateway.model import LEGACY, Recorder, world

LARGE = 3 << 20


@pytest.mark.parametrize("version", [LEGACY, MODERN])
@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_others_are_served_between_two_looks_at_a_result(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    version: str,
) -> None:
    """A result that is translated is read several times."""
    rests = 1 if (kind, version) == ("legacy", LEGACY) else 4
    monkeypatch.setattr(turns, "MAX_TURN", 0.0)
    async with world(version=version) as w:
        user = w.user(kind, {})
        received = Recorder(user)
        own = {"_meta": meta({})} if kind == "modern" else {}
        received.say({"id": 50, "method": "tools/call", "params": {"name": "t", **own}})
        (call,) = user.session.calls.values()
        result = {"content": [{"type": "text", "text": "\n" * LARGE}], "_meta": {"v": 1}}
        if version == MODERN:
            result["resultType"] = "complete"
        w.wire._pop_pending(call.key)
        served_between = 0
        call.answered(Message(result=Raw(json.dumps(result).encode())))
        assert not received.answers
        while not received.answers:
            await trio.sleep(turns.REST)
            served_between += 1
        assert served_between >= rests
        (answer,) = received.answers
        assert answer["result"]["content"] == result["content"]
        assert answer["result"]["_meta"] == {"v": 1}
        assert ("resultType" in answer["result"]) is (kind == "modern")


async def test_cancelled_call_gets_no_response_while_its_result_is_looked_at(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world() as w:
        user = w.user("legacy", {})
        received = Recorder(user)
        received.say({"id": 50, "method": "tools/call", "params": {"name": "t"}})
        (call,) = user.session.calls.values()
        w.wire._pop_pending(call.key)
        call.answered(Message(result=Raw(b'{"content":[],"x":"%b"}' % (b"x" * LARGE))))
        user.session.cancel(b"50", "the client cancelled it")
        await trio.sleep(1)
        assert not received.answers
