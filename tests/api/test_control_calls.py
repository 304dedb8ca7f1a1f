"""Calls through the control API: what is checked, sent and returned, and which errors say what."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.api.control.calls import read_call
from mcpd.calls.schema_checker import CheckResult, SchemaChecker
from mcpd.calls.schema_checker_process import compile_validator, find_problems
from mcpd.calls.stages.known_items import required_arguments
from mcpd.calls.stages.validation import MAX_CHECKED
from mcpd.model.errors import InvalidArguments
from mcpd.supervision.catalog import Item
from tests.gateway.model import NAME, Json, Script, World, make_catalog, world

Clock = trio.testing.MockClock
DEEP = b"[" * 2000 + b"]" * 2000
STRICT: Json = {
    "name": "strict",
    "inputSchema": {"properties": {"a": {"type": "integer"}}},
    "outputSchema": {"properties": {"n": {"type": "integer"}}},
}
TASK: Json = {"name": "task", "execution": {"taskSupport": "required"}}


@pytest.fixture(autouse=True)
def checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check schemas in this process: the tests set the clock."""

    async def check(
        _: SchemaChecker, server: object, digest: bytes, schema: bytes, value: bytes
    ) -> CheckResult:
        await trio.lowlevel.checkpoint()
        try:
            return CheckResult(
                tuple(find_problems(compile_validator(json.loads(schema)), msgspec.json.decode(value)))
            )
        except msgspec.MsgspecError as error:
            return CheckResult(failure=str(error))

    monkeypatch.setattr(SchemaChecker, "check", check)


async def prepare(w: World) -> None:
    w.server.catalog = make_catalog(tools=["t", STRICT, TASK])
    w.server.upstream.capabilities.update(prompts={}, resources={}, completions={})


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        await prepare(made)
        yield made


async def sent(w: World) -> list[Json]:
    """Return the requests that have reached the server since the last call of this."""
    await trio.testing.wait_all_tasks_blocked()
    frames, w.wire.frames = w.wire.frames, []
    return [message for frame in frames if "id" in (message := json.loads(frame))]


async def answer(w: World, **members: object) -> None:
    """Answer the newest request at the server."""
    (request,) = await sent(w)
    w._say({"id": request["id"], **members})
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (b'[{"name":"a","required":true},{"name":"b"},{"name":"c","required":false}]', ["a"]),
        (b'[{"required":true},{"name":"a","required":true}]', ["a"]),
        (b'[{"name":null,"required":true},7,null]', []),
        (b'[{"name":"a","required":"yes"}]', []),
        (b'{"a":true}', []),
        (DEEP, []),
    ],
)
def test_malformed_prompt_arguments_are_ignored(arguments: bytes, names: list[str]) -> None:
    """An exception here used to end the client's connection."""
    assert required_arguments(Item("greet", b'{"name":"greet","arguments":%b}' % arguments)) == names


@pytest.mark.parametrize(
    ("meta", "token", "forwarded"),
    [
        (None, b"", {}),
        ({"progressToken": 5, "a": 1}, b"5", {"_meta": {"a": 1}}),
        ({"io.modelcontextprotocol/x": 1}, b"", {}),
    ],
)
def test_meta_of_a_call(meta: Json | None, token: bytes, forwarded: Mapping[str, object]) -> None:
    """The progress token and reserved members are for mcpd."""
    params: Json = {"server": "s", "tool": "t", **({} if meta is None else {"_meta": meta})}
    request = read_call(Raw(json.dumps(params).encode()))
    assert request.progress_token == token
    sent, has_no_meta = request.forwarded_params()
    assert json.loads(sent) == {"name": "t", "arguments": {}, **forwarded}
    assert has_no_meta is ("_meta" not in forwarded)
    assert not request.raw


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"{}",
        b'{"server":"s","tool":"t","timeout":0}',
        b'{"server":"s","tool":"t","arguments":null}',
        b'{"server":"s","tool":"t","other":1}',
    ],
)
def test_malformed_call_is_refused(params: bytes) -> None:
    with pytest.raises(InvalidArguments, match="mcpd/call"):
        read_call(Raw(params))


async def test_call_is_sent_with_the_arguments_as_written(w: World) -> None:
    script = Script(w)
    key = script.call(arguments={"a": 1}, _meta={"v": 1, "progressToken": "p"})
    (request,) = await sent(w)
    assert {**request["params"], "_meta": None} == {"name": "t", "arguments": {"a": 1}, "_meta": None}
    assert request["params"]["_meta"]["v"] == 1
    w._say({"method": "notifications/progress", "params": {"progressToken": request["id"], "progress": 1}})
    assert script.progress == [{"progressToken": "p", "progress": 1}]
    w._say({"id": request["id"], "result": {"content": [{"type": "text", "text": "x"}]}})
    assert script.answers[key]["result"]["output"] == "x"
    assert script.caller.calls == {}


@pytest.mark.parametrize(
    ("spec", "catalog", "message"),
    [
        ({"exclude_tools": ("x*",)}, make_catalog(tools=["xy"]), "the definition excludes 'xy'"),
        ({}, make_catalog(tools=["xyz"]), "no tool 'xy'; did you mean xyz"),
        ({}, make_catalog(), "no tool 'xy'; `mcpctl list-tools srv` lists them"),
    ],
)
async def test_unknown_tool_is_refused(w: World, spec: Json, catalog: Any, message: str) -> None:
    w.server.spec = attrs.evolve(w.server.spec, **spec)
    w.server.catalog = catalog
    script = Script(w)
    error = script.error(script.call("xy"))
    assert error["data"]["code"] == "unknown_tool"
    assert message in error["message"]
    assert await sent(w) == []


async def test_call_waits_for_its_server(autojump_clock: Clock, w: World) -> None:
    script = Script(w)
    w.lose()
    script.call()
    cancelled = script.call("strict")
    await trio.testing.wait_all_tasks_blocked()
    script.caller.cancel(b"%d" % cancelled, "why")
    w.connect()
    assert [request["params"]["name"] for request in await sent(w)] == ["t"]
    w.lose()
    late = script.call()
    await trio.sleep(60)
    data = script.error(late)["data"]
    assert (data["code"], data["may_have_run"]) == ("not_ready", False)
    assert script.answers.keys() == {1, late}


class Checker:
    """Answers as soon as `gate` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = trio.Event()
        self.values: list[bytes] = []

        async def check(
            _: SchemaChecker, server: object, digest: bytes, schema: bytes, value: bytes
        ) -> CheckResult:
            if b'"n"' not in schema:
                return CheckResult()
            self.values.append(value)
            await self.gate.wait()
            return CheckResult(((".n", "too long"),))

        monkeypatch.setattr(SchemaChecker, "check", check)


async def test_arguments_are_checked_up_to_a_size(w: World) -> None:
    """Larger ones, and those that Python cannot hold, are left to the server; the result says so."""
    script = Script(w)
    refused = script.call("strict", {"a": "x"})
    assert await sent(w) == []
    error = script.error(refused)
    assert error["data"]["code"] == "invalid_arguments"
    assert "strict@srv was not called: its arguments violate the tool's schema" in error["message"]
    assert error["data"]["problems"][0]["path"] == "$.arguments.a"

    def call(arguments: bytes) -> int:
        request = read_call(Raw(b'{"server":"srv","tool":"strict","arguments":%b}' % arguments))
        return script.put(lambda key: script.caller.call(key, request))

    for arguments, note in (
        (b'{"a":"%b"}' % (b"x" * MAX_CHECKED), f"the tool's inputSchema: over {MAX_CHECKED} bytes"),
        (b'{"a":1E+400}', "the arguments were not checked"),
    ):
        key = call(arguments)
        await answer(w, result={"content": [], "structuredContent": {}})
        (warning,) = script.answers[key]["result"]["warnings"]
        assert note in warning


async def test_result_that_takes_long_to_check_is_sent_later(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call has its turn meanwhile, and the client may cancel."""
    checker = Checker(monkeypatch)
    w.server.spec = attrs.evolve(w.server.spec, concurrency="serial")
    script = Script(w)
    first, second, third = (script.call("strict") for _ in range(3))
    for _ in range(3):
        await answer(w, result={"content": [], "structuredContent": {"n": "x" * 100_000}})
    assert script.answers == {}
    assert len(checker.values) == 3
    script.caller.cancel(b"%d" % second, "changed my mind")
    checker.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert script.answers.keys() == {first, third}
    (warning,) = script.answers[first]["result"]["warnings"]
    assert warning == "the result violates the tool's outputSchema: too long @ $.structuredContent.n"
    assert script.caller.calls == {}


@pytest.mark.parametrize(
    ("result", "warning"),
    [
        ({"content": [], "structuredContent": {"n": 1}}, ""),
        ({"content": [], "structuredContent": {"n": "x"}}, "violates the tool's outputSchema"),
        ({"content": [], "structuredContent": {"n": "x"}, "isError": False}, "violates the tool's"),
        ({"content": [], "structuredContent": {"n": "x"}, "isError": True}, ""),
        ({"content": [], "structuredContent": {"n": "x" * MAX_CHECKED}}, "was not checked"),
    ],
)
async def test_result_is_checked_unless_it_reports_an_error(w: World, result: Any, warning: str) -> None:
    script = Script(w)
    key = script.call("strict")
    await answer(w, result=result)
    with trio.fail_after(5):
        while key not in script.answers:  # noqa: ASYNC110 - a large result is converted in turns
            await trio.sleep(0.01)
    warnings = [each for each in script.answers[key]["result"]["warnings"] if "outputSchema" in each]
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)


async def test_raw_result_is_returned_unchanged(w: World) -> None:
    script = Script(w)
    result = {"structuredContent": {"n": "x"}}
    for raw in (True, False):
        key = script.call("strict", raw=raw)
        await answer(w, result=result)
        if raw:
            assert script.answers[key]["result"] == result
        else:
            assert script.answers[key]["result"].keys() > {"success", "warnings"}


async def test_error_of_the_server_keeps_its_code(w: World) -> None:
    script = Script(w)
    key = script.call()
    await answer(w, error={"code": 7, "message": "no"})
    error = script.error(key)
    assert error["message"] == "srv: no"
    assert error["data"]["upstream_code"] == 7
    assert error["data"]["may_have_run"] is True  # servers can act first, and fail then


async def test_cancelled_call_is_withdrawn_and_gets_no_answer(w: World) -> None:
    script = Script(w)
    key = script.call()
    (request,) = await sent(w)
    assert script.caller.cancel(b"%d" % key, "why")
    assert not script.caller.cancel(b"%d" % key, "why")
    (frame,) = w.wire.frames
    assert json.loads(frame)["params"] == {"requestId": request["id"], "reason": "why"}
    script.call()
    script.caller.cancel_all("all")
    assert script.caller.calls == {}
    assert script.answers == {}


HELLO: Json = {"name": "hello", "arguments": [{"name": "who", "required": True}, {"name": "how"}]}


@pytest.mark.parametrize(
    ("prompt", "arguments", "catalog", "has_prompts", "error"),
    [
        ("hello", {"who": "x"}, make_catalog(prompts=[HELLO]), True, ""),
        ("hello", {"how": "x"}, make_catalog(prompts=[HELLO]), True, "invalid_arguments"),
        ("helo", {}, make_catalog(prompts=[HELLO]), True, "unknown_prompt"),
        ("helo", {}, make_catalog(), True, "unknown_prompt"),
        ("helo", {}, make_catalog(warnings=("w",)), True, ""),
        ("helo", {}, make_catalog(prompts=[HELLO]), False, "unsupported"),
        ("helo", {}, None, True, ""),
    ],
)
@pytest.mark.parametrize("doubtful", [False, True])
async def test_prompt_is_checked_against_the_list(
    w: World, prompt: str, arguments: Json, catalog: Any, error: str, *, has_prompts: bool, doubtful: bool
) -> None:
    """A list that may have changed is fetched again first; a server without lists decides itself."""

    async def refresh(feature: str) -> None:
        assert feature == "prompts"
        await trio.lowlevel.checkpoint()
        w.server.catalog = catalog

    w.server.catalog = make_catalog() if doubtful else catalog
    w.server.is_list_doubtful, w.server.refresh_list = lambda feature: doubtful, refresh
    if not has_prompts:
        del w.server.upstream.capabilities["prompts"]
    script = Script(w)
    body = {"name": prompt, "arguments": arguments}
    key = script.put(lambda key: script.caller.start(key, NAME, "prompts/get", body))
    requests = await sent(w)
    if not error:
        assert [request["params"] for request in requests] == [{"name": prompt, "arguments": arguments}]
        return
    assert requests == []
    found = script.error(key)
    assert found["data"]["code"] == error
    if error == "unknown_prompt":
        hint = "did you mean hello?" if catalog.prompts else "`mcpctl prompts srv` lists them"
        assert found["message"] == f"srv has no prompt 'helo'; {hint}"


@pytest.mark.parametrize(
    ("code", "resources", "error", "hint"),
    [
        (0, (), "unknown_resource", "`mcpctl resources srv` lists"),
        (-32002, (), "unknown_resource", "`mcpctl resources srv` lists"),
        (-32602, ("file:///b",), "unknown_resource", "did you mean file:///b?"),
        (-32002, ("file:///b", "file:///a"), "upstream_error", ""),
        (-32603, (), "upstream_error", ""),
        (-32002, None, "unknown_resource", "`mcpctl resources srv` lists"),
    ],
)
async def test_unlisted_resource_that_the_server_refuses_is_unknown(
    w: World, code: int, resources: Sequence[str] | None, error: str, hint: str
) -> None:
    w.server.catalog = None if resources is None else make_catalog(resources=resources)
    script = Script(w)
    key = script.put(lambda key: script.caller.start(key, NAME, "resources/read", {"uri": "file:///a"}))
    await answer(w, error={"code": code, "message": "no: Unknown resource"})
    found = script.error(key)
    assert found["data"]["code"] == error
    assert found["message"].startswith("srv: no")
    assert hint in found["message"]


async def test_refusal_because_the_daemon_stops_is_marked(w: World) -> None:
    """A client may then send the call to the next daemon; not one that may have run."""
    script = Script(w)
    running = script.call()
    w.gateway.refuse_new_calls()
    refused = script.error(script.call())
    assert (refused["data"]["may_have_run"], refused["data"]["stopping"]) == (False, True)
    w.lose()
    lost = script.error(running)
    assert (lost["data"]["may_have_run"], lost["data"]["daemon_stopped"]) == (True, True)
    assert "stopping" not in lost["data"]
