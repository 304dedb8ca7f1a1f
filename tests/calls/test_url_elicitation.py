"""Errors of legacy servers about URLs and missing capabilities, translated for modern clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mcpd.calls.questions import rounds
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import Asked, Json, User, Working, World, world
from tests.gateway.valid import complaints

Clock = trio.testing.MockClock
PAGE = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "e1"}
REQUIRED = {"code": -32042, "message": "sign in first", "data": {"elicitations": [PAGE]}}


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def called(w: World) -> Working:
    """The one call that the server has."""
    w.hear()
    (call,) = w.work.values()
    return call


def answer(asked: Asked) -> Json:
    assert asked.done is not None
    assert complaints(MODERN, asked.done, "tools/call") == []
    return asked.done


def send_away(w: World, user: User) -> Asked:
    asked = user.call()
    w.end(called(w), REQUIRED)
    assert asked.needs is not None
    return asked


async def test_url_elicitation_error_becomes_a_question_for_a_modern_client(
    autojump_clock: Clock, w: World
) -> None:
    """When the user agrees, the call is repeated, without the id that only legacy revisions have."""
    user = w.user("modern")
    asked = send_away(w, user)
    assert asked.needs is not None
    (question,) = asked.needs["inputRequests"].values()
    assert question["method"] == "elicitation/create"
    assert question["params"] == {key: PAGE[key] for key in ("mode", "message", "url")}
    user.come_back(asked)
    w.end(called(w))
    assert "result" in answer(asked)
    assert w.empty() == []


async def test_call_is_repeated_when_the_url_visit_completes(autojump_clock: Clock, w: World) -> None:
    """Other calls have their turn meanwhile."""
    user, other = w.user("stateless"), w.user("legacy")
    asked = send_away(w, user)
    user.come_back(asked)
    w.end(called(w), REQUIRED)
    assert asked.needs is None
    between = other.call()
    w.end(called(w))
    assert between.done is not None
    w.complete("e1")
    await trio.testing.wait_all_tasks_blocked()
    w.end(called(w))
    assert "result" in answer(asked)


async def test_call_is_repeated_periodically_without_a_completion_message(
    autojump_clock: Clock, w: World
) -> None:
    """And the user is asked again if that does not help."""
    user = w.user("modern")
    asked = send_away(w, user)
    user.come_back(asked)
    for _ in range(rounds.MAX_RETRIES):
        w.end(called(w), REQUIRED)
        assert asked.needs is None
        await trio.sleep(rounds.RETRY_INTERVAL + 0.1)
    w.end(called(w), REQUIRED)
    assert asked.needs is not None


async def test_declined_url_visit_is_not_requested_again(autojump_clock: Clock, w: World) -> None:
    user = w.user("modern")
    asked = send_away(w, user)
    user.says["elicitation/create"] = {"action": "decline"}
    user.come_back(asked)
    w.hear()
    assert w.work == {}
    assert "declined" in answer(asked)["error"]["message"]


async def test_client_without_url_elicitation_gets_a_missing_capability_error(
    autojump_clock: Clock, w: World
) -> None:
    asked = w.user("modern", {"elicitation": {}}).call()
    w.end(called(w), REQUIRED)
    error = answer(asked)["error"]
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@pytest.mark.parametrize("fails", [True, False])
async def test_failed_call_names_the_missing_capability(
    autojump_clock: Clock, w: World, *, fails: bool
) -> None:
    """Only if the call failed: a server may do without."""
    asked = w.user("modern", {"elicitation": {}}).call()
    call = called(w)
    w.ask(call, "sampling/createMessage")
    w.hear()
    assert not call.waits_for
    w.end(call, {"code": -32000, "message": "no model"} if fails else None)
    if fails:
        error = answer(asked)["error"]
        assert error["code"] == -32021
        assert "no model" in error["message"]
        assert error["data"] == {"requiredCapabilities": {"sampling": {}}}
    else:
        assert "result" in answer(asked)


async def test_legacy_client_gets_the_url_error_and_the_completion(autojump_clock: Clock, w: World) -> None:
    """Both unchanged, and no other client gets them."""
    user, other = w.user("legacy"), w.user("legacy")
    asked = user.call()
    w.end(called(w), REQUIRED)
    assert asked.done is not None
    assert asked.done["error"] == REQUIRED
    w.complete("e1")
    w.complete("e1")
    assert user.completed == ["e1"]
    assert other.completed == []
