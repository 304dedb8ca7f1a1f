"""Nothing is sent to a server before a person has approved it, if a rule says `ask`."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from mcpd.calls.questions.suspended import ORPHAN_TIMEOUT, RESUME_TIMEOUT
from mcpd.calls.stages.approval import APPROVAL_TIMEOUT, MAX_PENDING
from mcpd.gateway.client_facts import SessionFacts
from mcpd.model.errors import BadSpec, InvalidArguments
from mcpd.model.policy import ClientFacts, RateLimit
from tests.calls.test_policies import Client, apply, rule
from tests.gateway.mcp_client import CAPABLE, MODERN, meta
from tests.gateway.model import Asked, Script, User, World, make_catalog, make_upstream, world

Clock = trio.testing.MockClock
ASK = rule("ask", tools=("converse",), reason="it talks")
FORM: Any = {"type": "object", "properties": {}}


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        made.server.catalog = make_catalog(tools=["converse"])
        made.server.upstream = make_upstream(made.wire, tools={}, prompts={})
        apply(made, ASK)
        yield made


def heard(w: World) -> list[str]:
    w.hear()
    return [work.tag for work in w.work.values()]


def accept(decision: object = "once") -> Any:
    return {"elicitation/create": {"action": "accept", "content": {"decision": decision}}}


async def asked(w: World, user: User) -> Asked:
    """Make a call and return it when its client has been asked."""
    user.check = lambda params: None  # type: ignore[method-assign]  # the question is mcpd's, not the server's
    call = user.call()
    await trio.sleep(1)
    assert heard(w) == []
    return call


def reply(user: User, call: Asked) -> None:
    if user.kind == "legacy":
        user.answer()
    else:
        user.come_back(call)


def error(call: Asked) -> Any:
    assert call.done is not None
    return call.done["error"]


KINDS = ["legacy", "modern", "stateless"]


@pytest.mark.parametrize("kind", KINDS)
async def test_call_is_sent_once_its_client_has_approved_it(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    """The person sees who wants what, why, and with which arguments."""
    user = w.user(kind)
    user.says = accept()
    call = await asked(w, user)
    params = user.questions[0]["params"] if kind == "legacy" else None
    if params is None:
        assert call.needs is not None
        (question,) = call.needs["inputRequests"].values()
        params = question["params"]
    assert params["message"] == (
        f"""May the tool 'converse' of srv be used with {{"tag":"{user.tag}"}}? """
        "A rule requires your approval (it talks)."
    )
    reply(user, call)
    await trio.sleep(1)
    assert heard(w) == [user.tag]
    w.end(next(iter(w.work.values())))
    assert call.done is not None
    assert "result" in call.done
    assert w.gateway.approvals.list(str) == ()
    assert w.empty() == []
    await asked(w, user)  # only that call was approved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "answer",
    [
        {"action": "decline"},
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"decision": "no"}},
        {"action": "accept", "content": {"decision": "Once"}},
        {"action": "accept", "content": ["once"]},
        {"Action": "accept", "content": {"decision": "once"}},
    ],
    ids=json.dumps,
)
async def test_anything_but_a_clear_answer_means_no(
    autojump_clock: Clock, w: World, kind: str, answer: Any
) -> None:
    user = w.user(kind)
    user.says = {"elicitation/create": answer}
    call = await asked(w, user)
    reply(user, call)
    await trio.sleep(1)
    assert error(call)["data"]["code"] == "denied"
    assert "requires approval by the rule at $.settings.policies[0] (it talks)" in error(call)["message"]
    assert heard(w) == []
    assert w.empty() == []


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_approval_for_the_session_is_for_one_tool_of_one_client(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    apply(w, rule("ask"))
    user, other = w.user(kind), w.user(kind)
    user.says = accept("session")
    call = await asked(w, user)
    reply(user, call)
    await trio.sleep(1)
    user.call()
    await trio.sleep(1)
    assert heard(w) == [user.tag] * 2
    call = await asked_again(w, other)
    assert call.done is None
    apply(w, rule("deny"), rule("ask"))
    assert error(user.call())["data"]["code"] == "denied", "a rule that denies still does"


async def asked_again(w: World, user: User) -> Asked:
    user.check = lambda params: None  # type: ignore[method-assign]
    call = user.call()
    await trio.sleep(1)
    assert user.tag not in heard(w)
    return call


@pytest.mark.parametrize("kind", KINDS)
async def test_no_answer_within_the_limit_means_no(autojump_clock: Clock, w: World, kind: str) -> None:
    user = w.user(kind)
    call = await asked(w, user)
    await trio.sleep(APPROVAL_TIMEOUT + 1)
    if kind == "legacy":
        assert user.questions == [], "it was withdrawn"
    else:
        user.says = accept()
        user.come_back(call)
    await trio.sleep(1)
    assert "was not approved within 300 s" in error(call)["message"]
    assert heard(w) == []
    assert w.empty() == []


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_client_that_leaves_takes_its_question_along(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    user = w.user(kind)
    await asked(w, user)
    user.leave()
    await trio.sleep(ORPHAN_TIMEOUT + 1)
    assert w.gateway.approvals.list(str) == ()
    assert heard(w) == []
    assert w.empty() == []


@pytest.mark.parametrize("kind", ["modern", "stateless"])
async def test_approval_cannot_be_replayed(autojump_clock: Clock, w: World, kind: str) -> None:
    """Its state is valid once, and for the same call only."""
    user = w.user(kind)
    user.says = accept()
    call = await asked(w, user)
    needs = dict(call.needs or {})
    other = attrs.evolve(call, params={**call.params, "arguments": {"tag": "other"}}, needs=dict(needs))
    user.come_back(other)
    assert error(other)["data"]["code"] == "invalid_arguments"
    assert heard(w) == []
    user.come_back(call)
    await trio.sleep(1)
    assert heard(w) == [user.tag]
    again = attrs.evolve(call, needs=needs)
    user.come_back(again)
    assert error(again)["data"]["code"] == "invalid_arguments"
    assert heard(w) == [user.tag]


@pytest.mark.parametrize("kind", ["script", "legacy"])
@pytest.mark.parametrize("decision", ["once", "session", "no"])
async def test_others_are_approved_with_mcpctl(
    autojump_clock: Clock, w: World, kind: str, decision: str
) -> None:
    """A client that cannot be asked, and the control API."""
    approvals = w.gateway.approvals
    script, user = Script(w), w.user("legacy", capabilities={})
    if kind == "script":
        key = script.call("converse", arguments={"tag": script.tag})
        tag = script.tag
    else:
        key, tag = 0, user.tag
        user.call()
    await trio.sleep(1)
    assert heard(w) == []
    (waiting,) = approvals.list(str.upper)
    assert (waiting.kind, waiting.name, waiting.server) == ("tool", "CONVERSE", "srv"), "masked"
    assert waiting.arguments.replace(" ", "") == f'{{"TAG":"{tag.upper()}"}}'
    for bad in (("9", "once"), (waiting.id, "maybe")):
        with pytest.raises(InvalidArguments):
            await approvals.answer(*bad)
    await approvals.answer(waiting.id, decision)
    with pytest.raises(InvalidArguments, match="no call"):
        await approvals.answer(waiting.id, "once")
    await trio.sleep(1)
    assert heard(w) == ([] if decision == "no" else [tag])
    if decision == "no" and kind == "script":
        assert script.error(key)["data"]["code"] == "denied"


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_what_a_person_approves_is_what_is_sent(autojump_clock: Clock, w: World, kind: str) -> None:
    """Whole, in one reading, with nothing invisible."""
    client, approvals = Client(w, modern=kind == "modern"), w.gateway.approvals
    given = (
        '{"path": "/etc/passwd", "path": "notes.txt", "in": [{"a": 1, "a": 2}], "note": "\u202eEVIL\u200b '
        + "x" * 2000
        + 'the end"}'
    )
    arguments = f'{{"old": 1}}, "arguments": {given}'
    about = '"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", ' + (
        '"io.modelcontextprotocol/clientInfo": {"name": "zed", "version": "1"}, '
        '"io.modelcontextprotocol/clientCapabilities": {}}'
    )
    more = f", {about}" if kind == "modern" else ""
    assert client.raw("tools/call", f'{{"name": "converse", "arguments": {arguments}{more}}}') is None
    await trio.sleep(1)
    assert w.wire.frames == []
    (waiting,) = approvals.list(str)
    assert waiting.arguments.isprintable()
    assert waiting.arguments.startswith('{"path":"notes.txt","in":[{"a":2}],"note":"\\u202eEVIL\\u200b xxx')
    assert waiting.arguments.endswith('xthe end"}')
    await approvals.answer(waiting.id, "once")
    await trio.sleep(1)
    (frame,) = w.wire.frames
    assert frame.count(b'"path"') == frame.count(b'"arguments"') == 1
    assert json.loads(frame)["params"]["arguments"] == json.loads(waiting.arguments)
    about = about[:-1] + ', "progressToken": 1, "own/amount": 5}'
    assert (
        client.raw(
            "tools/call", f'{{"name": "converse", "arguments": {{"x": 1}}, "to": "converse", {about}}}'
        )
        is None
    )
    await trio.sleep(1)
    (waiting,) = approvals.list(str)
    more_than_the_name = {"arguments": {"x": 1}, "to": "converse", "_meta": {"own/amount": 5}}
    assert json.loads(waiting.arguments) == more_than_the_name
    await approvals.answer(waiting.id, "once")
    await trio.sleep(1)
    assert b'"own/amount"' in w.wire.frames[1]
    client.raw("tools/call", f'{{"name": "converse", "arguments": {{"x": "{"x" * 70_000}"}}{more}}}')
    await trio.sleep(1)
    assert client.frames[-1]["error"]["data"]["code"] == "invalid_arguments"
    assert len(w.wire.frames) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_rule_can_demand_an_answer_outside_of_the_client(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    apply(w, attrs.evolve(ASK, answer="outside"))
    w.server.spec = attrs.evolve(w.server.spec, trust=True)  # does not answer either
    user = w.user(kind)
    user.says = accept("always")
    call = await asked(w, user)
    assert (user.questions, call.needs) == ([], None)
    (waiting,) = w.gateway.approvals.list(str)
    await w.gateway.approvals.answer(waiting.id, "once")
    await trio.sleep(1)
    assert heard(w) == [user.tag]


async def test_trusted_server_is_used_without_asking(w: World) -> None:
    w.server.spec = attrs.evolve(w.server.spec, trust=True)
    user = w.user("legacy")
    user.call()
    assert heard(w) == [user.tag]
    apply(w, rule("deny"))
    assert error(user.call())["data"]["code"] == "denied"


async def test_calls_that_wait_for_approval_are_limited(autojump_clock: Clock, w: World) -> None:
    script = Script(w)
    for _ in range(MAX_PENDING):
        script.call("converse")
    await trio.sleep(1)
    last = script.call("converse")
    await trio.sleep(1)
    assert script.error(last)["data"]["code"] == "overloaded"
    assert "`mcpctl approvals`" in script.error(last)["message"]
    assert heard(w) == []


# ── for good ────────────────────────────────────────────────────────────────────────────────────


class Written:
    """What would be written to the configuration."""

    def __init__(self, w: World, *, fails: bool = False) -> None:
        self.rules: list[tuple[int, Any]] = []
        self.fails = fails
        w.gateway.approvals.insert_rule = self

    async def __call__(self, before: int, rule: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise BadSpec.single("the file is read-only", "chmod u+w", "config.json")
        self.rules.append((before, rule))


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_client_may_answer_for_good(autojump_clock: Clock, w: World, kind: str) -> None:
    """The rule is inserted before the one that asks, with who allowed what to whom, and when."""
    apply(w, rule("ask", "$.settings.policies[3]"))
    written = Written(w)
    user = w.user(kind)
    user.session.client = msgspec.structs.replace(user.session.client, name="zed")
    user.session._facts = SessionFacts(user.session.client, None)
    user.session.peer = "mcp 0.1.0"  # sorted before `zed`
    user.says = accept("always")
    call = await asked(w, user)
    assert w.gateway.approvals.list(str)[0].client == "zed"
    reply(user, call)
    await trio.sleep(1)
    assert heard(w) == [user.tag]
    ((before, added),) = written.rules
    assert before == 3
    wanted = {"decision": "allow", "clients": ["zed"], "servers": ["srv"], "tools": ["converse"]}
    assert {**wanted, "transports": added["transports"], "reason": added["reason"]} == added
    assert re.fullmatch(r"allowed by \w+ on \d{4}-\d\d-\d\d \d\d:\d\d UTC for zed, in .*", added["reason"])


async def test_first_answer_counts_while_its_rule_is_written(autojump_clock: Clock, w: World) -> None:
    """Writing the file takes a moment, in which others may answer."""
    written, may_write = Written(w), trio.Event()

    async def slow(*rule: Any) -> None:
        await may_write.wait()
        await written(*rule)

    w.gateway.approvals.insert_rule = slow
    user = w.user("legacy")
    user.session._facts = SessionFacts(msgspec.structs.replace(user.session.client, name="zed"), None)
    user.says = accept("no")
    call = await asked(w, user)
    (waiting,) = w.gateway.approvals.list(str)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(w.gateway.approvals.answer, waiting.id, "always")
        await trio.testing.wait_all_tasks_blocked()
        reply(user, call)
        await trio.testing.wait_all_tasks_blocked()
        assert heard(w) == []
        may_write.set()
    await trio.sleep(1)
    assert heard(w) == [user.tag]
    assert len(written.rules) == 1


async def test_call_still_waits_if_the_rule_cannot_be_written(autojump_clock: Clock, w: World) -> None:
    Written(w, fails=True)
    nameless, script = Script(w), Script(w)
    nameless.call("converse", arguments={"tag": nameless.tag})
    await trio.sleep(1)
    (waiting,) = w.gateway.approvals.list(str)
    with pytest.raises(
        InvalidArguments, match="it cannot be allowed permanently: the client's name is not known"
    ):
        await w.gateway.approvals.answer(waiting.id, "always")
    script.caller.client._facts = ClientFacts(names=("mcpctl",), shown=("mcpctl",), transport="control")
    script.call("converse", arguments={"tag": script.tag})
    await trio.sleep(1)
    with pytest.raises(BadSpec, match="read-only"):
        await w.gateway.approvals.answer(w.gateway.approvals.list(str)[1].id, "always")
    assert heard(w) == []
    assert len(w.gateway.approvals.list(str)) == 2


async def test_answer_of_a_client_counts_once_if_the_rule_cannot_be_written(
    autojump_clock: Clock, w: World
) -> None:
    Written(w, fails=True)
    user = w.user("legacy")
    user.says = accept("always")
    call = await asked(w, user)
    reply(user, call)
    await trio.sleep(1)
    assert heard(w) == [user.tag]
    user.call()
    await trio.sleep(1)
    assert heard(w) == [user.tag], "the next call is asked about"


# ── calls of several rounds (2026-07-28, `input_required`) ──────────────────────────────────────


@pytest.fixture
async def rounds() -> AsyncIterator[World]:
    async with world(version=MODERN) as made:
        made.server.catalog = make_catalog(tools=["converse"])
        apply(made, rule("limit", rate=RateLimit(1, 60.0, "1/min")), ASK)
        yield made


async def approve(w: World, user: User) -> Asked:
    """Make a call that a person approves, and return it when its server needs input."""
    call = await asked(w, user)
    await w.gateway.approvals.answer(w.gateway.approvals.list(str)[0].id, "once")
    user.come_back(call)
    await trio.sleep(1)
    w.hear()
    w.need_input(next(iter(w.work.values())), asks=True)
    assert call.needs is not None
    return call


@pytest.mark.parametrize("kind", ["modern", "stateless"])
async def test_person_is_asked_once_for_all_rounds_of_a_call(
    autojump_clock: Clock, rounds: World, kind: str
) -> None:
    """And the rounds are one use for the rules that limit. The next call is another one."""
    user = rounds.user(kind)
    call = await approve(rounds, user)
    for _ in range(3):
        user.come_back(call)
        await trio.sleep(0.1)
        assert call.done is None
        assert rounds.gateway.approvals.list(str) == ()
        rounds.hear()
        rounds.need_input(next(iter(rounds.work.values())), asks=True)
    user.come_back(call)
    rounds.hear()
    rounds.end(next(iter(rounds.work.values())))
    assert call.done is not None
    assert "result" in call.done
    limited = user.call()
    assert error(limited)["data"]["code"] == "limit_reached"
    await trio.sleep(60)
    await asked(rounds, user)
    assert len(rounds.gateway.approvals.list(str)) == 1


async def test_further_round_sends_what_was_approved(autojump_clock: Clock, rounds: World) -> None:
    """A reader for whom the first of equal members counts would see other arguments than the person."""
    apply(rounds, attrs.evolve(ASK, answer="outside"))
    client, frames = Client(rounds, modern=True), rounds.wire.frames
    about = json.dumps(
        meta(CAPABLE, **{"io.modelcontextprotocol/clientInfo": {"name": "zed", "version": "1"}})
    )
    given = f'"name": "converse", "arguments": {{"a": {{"x": "evil", "x": "ok"}}}}, "_meta": {about}'
    client.raw("tools/call", f"{{{given}}}")
    await trio.sleep(1)
    await rounds.gateway.approvals.answer(rounds.gateway.approvals.list(str)[0].id, "once")
    await trio.sleep(1)
    (frame,) = map(json.loads, frames)
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}}
    needed = {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"}
    rounds._say({"id": frame["id"], "result": needed})
    state = client.frames[-1]["result"]["requestState"]
    more = f'"requestState": {json.dumps(state)}, "inputResponses": {{"q": {{"action": "accept"}}}}'
    client.raw("tools/call", f"{{{given}, {more}}}")
    await trio.sleep(1)
    assert rounds.gateway.approvals.list(str) == ()
    assert [b"evil" in each for each in frames] == [False, False]


@pytest.mark.parametrize("change", ["arguments", "state", "no state", "twice", "another client", "too late"])
async def test_round_that_continues_no_approved_call_is_asked_about(
    autojump_clock: Clock, rounds: World, change: str
) -> None:
    apply(rounds, ASK)
    user = rounds.user("modern")
    call = await approve(rounds, user)
    needs = dict(call.needs or {})
    replay = attrs.evolve(call, needs=dict(needs), key=call.key)
    if change == "arguments":
        replay.params = {**call.params, "arguments": {"tag": "other"}}
    elif change == "state":
        replay.needs = {**needs, "requestState": "u.forged.x"}
    elif change == "no state":
        replay.needs = {key: value for key, value in needs.items() if key != "requestState"}
    elif change == "twice":
        user.come_back(call)
        rounds.hear()
        rounds.work.clear()
    elif change == "too late":
        await trio.sleep(RESUME_TIMEOUT + 1)
    other = user
    if change == "another client":
        other = rounds.user("modern")
    other.come_back(replay)
    await trio.sleep(1)
    assert heard(rounds) == []
    if change == "state":
        assert error(replay)["data"]["code"] == "invalid_arguments"
    else:
        assert len(rounds.gateway.approvals.list(str)) == 1


async def test_client_returns_long_after_its_call_was_approved_elsewhere(
    autojump_clock: Clock, w: World
) -> None:
    """The call waits for it as long as any suspended call."""
    user = w.user("modern")
    call = await asked(w, user)
    (pending,) = w.gateway.approvals.list(str)
    await w.gateway.approvals.answer(pending.id, "once")
    await trio.sleep(APPROVAL_TIMEOUT + 1)
    assert w.gateway.approvals.list(str) == ()
    user.come_back(call)
    await trio.sleep(1)
    assert heard(w) == [user.tag]
    w.end(next(iter(w.work.values())))
    assert call.done is not None
    assert "result" in call.done
    assert w.empty() == []
