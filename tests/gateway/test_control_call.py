"""Calls of the control API: what is checked, sent and returned, and which errors say what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.gateway import control_call, turn_queue
from mcpd.gateway.control_call import (
    ControlCall,
    get_prompt,
    read_call,
    read_resource,
    required_arguments,
)
from mcpd.gateway.schema_validation import MAX_CHECKED, ToolSchemas, compile_schemas
from mcpd.model.errors import (
    InvalidArguments,
    LinkLost,
    McpdError,
    NotReady,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UpstreamRefused,
)
from mcpd.model.server_spec import Timeouts
from mcpd.protocol import mcp_tasks
from mcpd.supervision.catalog_cache import Item
from mcpd.support.pipe_reader import traffic
from mcpd.wire import message as wire
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, Stub, make_catalog, make_core, make_server

DEEP = b"[" * 2000 + b"]" * 2000


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (b'[{"name":"a","required":true},{"name":"b"},{"name":"c","required":false}]', ["a"]),
        (b'[{"required":true},{"name":"a","required":true}]', ["a"]),
        (b'[{"name":["a"],"required":true}]', []),
        (b'[{"name":null,"required":true},7,null]', []),
        (b'[{"name":"a","required":"yes"}]', []),
        (b'{"a":true}', []),
        (b"null", []),
        (DEEP, []),
    ],
)
def test_malformed_prompt_arguments_are_ignored(arguments: bytes, names: list[str]) -> None:
    """An exception here used to end the client's connection."""
    assert required_arguments(Item("greet", b'{"name":"greet","arguments":%b}' % arguments)) == names


ANY_TOOL: Json = {"name": "t"}
STRICT: Json = {
    "name": "strict",
    "inputSchema": {"properties": {"a": {"type": "integer"}}},
    "outputSchema": {"properties": {"n": {"type": "integer"}}},
}
TASK: Json = {"name": "task", "execution": {"taskSupport": "required"}}


class Server:
    """A connected server, its daemon, and what `mcpd/call` sent and returned."""

    def __init__(self, version: str = LEGACY, **spec: Any) -> None:
        self.server = make_server(catalog=make_catalog(tools=[ANY_TOOL, STRICT, TASK]), **spec)
        self.core = make_core(self.server)
        self.core.wait_ready = self.wait_ready
        self.sent: list[Json] = []
        self.cancelled: list[str] = []
        self.refuses: McpdError | None = None
        self.upstream: Any = Stub(
            era="modern" if version == MODERN else "legacy",
            version=version,
            default_meta=b"",
            accepts_task_param=False,
            submit=self.submit,
            has=lambda feature: True,
            link=Stub(name="srv", cancel=lambda call, reason: self.cancelled.append(reason)),
        )
        self.server.upstream = self.upstream
        self.refreshed = make_catalog(tools=["new"])
        self.server.refresh_expired_lists = self.refresh
        self.results: list[Any] = []
        self.errors: list[McpdError] = []
        self.progress: list[Json] = []
        self.tasks: list[Any] = []

    def submit(self, call: Any, method: str, params: bytes) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert method == "tools/call"
        call.key = b"7"
        self.sent.append(json.loads(params))

    async def wait_ready(self, server: Any) -> Any:
        await trio.lowlevel.checkpoint()
        server.upstream = self.upstream
        return self.upstream

    async def refresh(self) -> None:
        await trio.lowlevel.checkpoint()
        self.server.catalog = self.refreshed

    def call(self, tool: str = "t", **members: object) -> ControlCall:
        params = {"server": "srv", "tool": tool, **members}
        return ControlCall(
            request=read_call(Raw(json.dumps(params).encode())),
            on_result=lambda body: self.results.append(json.loads(bytes(body))),
            on_error=self.errors.append,
            on_progress=lambda params: self.progress.append(json.loads(params)),
            spawn=self.tasks.append,
            spawn_detached=self.tasks.append,
        )

    async def compile(self) -> None:
        for item in self.server.catalog.tools:
            self.server.validators[item.name] = await compile_schemas(item.raw)


def answer(call: ControlCall, **members: object) -> None:
    traffic.more_expected = False
    call.answered(wire.parse(json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()))
    assert traffic.more_expected, "the next message will come soon"


@pytest.mark.parametrize(
    ("meta", "token", "forwarded"),
    [
        (None, b"", {}),
        ({}, b"", {}),
        ({"progressToken": 5, "a": 1}, b"5", {"a": Raw(b"1")}),
        ({"io.modelcontextprotocol/x": 1}, b"", {}),
    ],
)
def test_meta_of_a_call(meta: Json | None, token: bytes, forwarded: Mapping[str, Raw]) -> None:
    """The progress token and reserved members are for mcpd."""
    params: Json = {"server": "s", "tool": "t", **({} if meta is None else {"_meta": meta})}
    request = read_call(Raw(json.dumps(params).encode()))
    assert request.progress_token == token
    assert {k: bytes(v) for k, v in request.forwarded_meta().items()} == {
        k: bytes(v) for k, v in forwarded.items()
    }
    assert not request.raw


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"{}",
        b'{"server":"s","tool":"t","timeout":0}',
        b'{"server":"s","tool":"t","arguments":[]}',
        b'{"server":"s","tool":"t","arguments":null}',
        b'{"server":"s","tool":"t","other":1}',
    ],
)
def test_malformed_call_is_refused(params: bytes) -> None:
    with pytest.raises(InvalidArguments, match="mcpd/call"):
        read_call(Raw(params))


async def test_call_is_sent_immediately_once_its_schemas_are_compiled() -> None:
    srv = Server()
    assert not srv.call().try_send(srv.core), "not compiled yet"
    await srv.compile()
    call = srv.call(arguments={"a": 1}, _meta={"v": 1})
    assert call.try_send(srv.core)
    assert srv.sent == [{"name": "t", "arguments": {"a": 1}, "_meta": {"v": 1}}]
    assert call.label == "tool 't'"
    assert [call.holds_turn, call.as_task] == [False, False]
    srv.server.upstream = None
    assert not srv.call().try_send(srv.core)
    assert not srv.call("unknown").try_send(srv.core), "first it must be connected"
    assert len(srv.sent) == 1


@pytest.mark.parametrize("catalog", [None, make_catalog(warnings=("it failed",))])
async def test_server_without_lists_decides_which_tools_exist(catalog: object) -> None:
    srv = Server()
    srv.server.catalog = catalog
    assert srv.call("unknown").try_send(srv.core)
    await srv.call("unknown").prepare_and_send(srv.core)
    assert [sent["name"] for sent in srv.sent] == ["unknown"] * 2


@pytest.mark.parametrize(
    ("spec", "catalog", "message"),
    [
        ({"exclude_tools": ("x*",)}, make_catalog(tools=["xy"]), "the definition excludes 'xy'"),
        ({}, make_catalog(tools=["xyz"]), "no tool 'xy'; did you mean xyz"),
        ({}, make_catalog(), "no tool 'xy'; `mcpctl list-tools srv` lists them"),
        ({}, make_catalog(tools=["a"], warnings=("w",)), "no tool 'xy'; `mcpctl list-tools srv`"),
    ],
)
async def test_unknown_tool_is_refused(spec: Json, catalog: Any, message: str) -> None:
    srv = Server(**spec)
    srv.server.catalog = catalog
    with pytest.raises(UnknownTool, match=message):
        srv.call("xy").try_send(srv.core)
    with pytest.raises(UnknownTool, match=message):
        await srv.call("xy").prepare_and_send(srv.core)
    assert srv.sent == []


async def test_tool_may_exist_by_now_if_the_lists_have_expired() -> None:
    srv = Server()
    srv.server.lists_expired = True
    assert not srv.call("new").try_send(srv.core)
    assert not srv.call("never").try_send(srv.core)
    await srv.call("new").prepare_and_send(srv.core)
    assert [sent["name"] for sent in srv.sent] == ["new"]
    with pytest.raises(UnknownTool):
        await srv.call("never").prepare_and_send(srv.core)


async def test_call_waits_for_its_server() -> None:
    srv = Server()
    srv.server.upstream = None
    await srv.call().prepare_and_send(srv.core)
    assert len(srv.sent) == 1

    async def gone(server: object) -> None:
        await trio.lowlevel.checkpoint()

    srv.core.wait_ready = gone
    srv.server.upstream = None
    with pytest.raises(NotReady):
        await srv.call().prepare_and_send(srv.core)


async def test_concurrent_callers_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the list is fetched again meanwhile, the result is used once and not kept."""
    srv = Server()
    compiled: list[bytes] = []
    gate = trio.Event()

    async def slow(tool: bytes) -> ToolSchemas:
        compiled.append(tool)
        await gate.wait()
        return ToolSchemas(notes=("n",))

    monkeypatch.setattr(control_call, "compile_schemas", slow)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(srv.call().prepare_and_send, srv.core)
        await trio.testing.wait_all_tasks_blocked()
        assert not srv.call().try_send(srv.core), "an event is no schema"
        gate.set()
    assert len(compiled) == 1
    assert len(srv.sent) == 3
    assert srv.server.validators["t"].notes == ("n",)

    srv.server.validators.clear()
    gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(srv.call().prepare_and_send, srv.core)
        await trio.testing.wait_all_tasks_blocked()
        srv.server.validators.clear()
        gate.set()
    assert srv.server.validators == {}
    assert len(srv.sent) == 4


async def test_arguments_are_checked_up_to_a_size() -> None:
    """Larger ones, and those that Python cannot hold, are left to the server."""
    srv = Server()
    await srv.compile()
    message = "strict@srv was not called: its arguments violate the tool's schema"
    with pytest.raises(InvalidArguments, match=message):
        srv.call("strict", arguments={"a": "x"}).try_send(srv.core)

    def sized(size: int) -> ControlCall:
        frame = b'{"server":"srv","tool":"strict","arguments":{"a":"%b"}}'
        call = srv.call("strict")
        call.request = read_call(Raw(frame % (b"x" * (size - len(b'{"a":""}')))))
        assert len(call.request.arguments) == size
        return call

    with pytest.raises(InvalidArguments):
        sized(MAX_CHECKED).try_send(srv.core)
    assert srv.sent == []
    assert sized(MAX_CHECKED + 1).try_send(srv.core)
    huge = srv.call("strict")
    huge.request = read_call(Raw(b'{"server":"srv","tool":"strict","arguments":{"a":1E+400}}'))
    huge.request.arguments = Raw(b'{"a":[}')
    srv.upstream.submit = lambda call, method, params: srv.sent.append({})
    assert huge.try_send(srv.core)


@pytest.mark.parametrize(("accepts", "as_task"), [(True, True), (False, False)])
async def test_required_task_is_made_if_the_server_knows_the_param(accepts: bool, as_task: bool) -> None:
    srv = Server(timeouts=Timeouts(call=20, call_max=50))
    srv.upstream.accepts_task_param = accepts
    await srv.compile()
    call = srv.call("task")
    assert call.try_send(srv.core)
    assert call.as_task is as_task
    task = {"task": {"ttl": 50_000}} if as_task else {}
    assert srv.sent == [{"name": "task", "arguments": {}, **task}]
    assert srv.call("t").try_send(srv.core)
    assert "task" not in srv.sent[1]
    answer(call, result={})
    assert (len(srv.tasks), len(srv.results)) == (as_task, not as_task)


@pytest.mark.parametrize(
    ("version", "result", "continues"),
    [
        (LEGACY, {"resultType": "task"}, False),
        (MODERN, {"resultType": "task"}, True),
        (MODERN, {"resultType": "input_required"}, True),
        (MODERN, {"resultType": "complete"}, False),
        (MODERN, {}, False),
    ],
)
async def test_modern_result_may_be_a_task_or_a_question(
    monkeypatch: pytest.MonkeyPatch, version: str, result: Json, continues: bool
) -> None:
    srv = Server(version, timeouts=Timeouts(call=20, call_max=50))
    await srv.compile()
    call = srv.call(_meta={"v": 1}, raw=True)
    assert call.try_send(srv.core)
    call.hard_deadline = trio.current_time() + 7
    answer(call, result=result)
    assert (len(srv.tasks), len(srv.results)) == (continues, not continues)
    if not continues:
        return
    made: list[tuple[str, float]] = []

    async def poll(upstream: object, first: object, handler: object, **how: Any) -> Raw:
        await trio.lowlevel.checkpoint()
        made.append(("task", how["limit"]))
        assert how["timeout"] == 20
        how["on_status"]("working")
        how["on_status"]("still working")
        return Raw(b'{"done":1}')

    async def repeat(
        upstream: object, method: str, params: Json, handler: object, *, first: object, **how: Any
    ) -> Raw:
        await trio.lowlevel.checkpoint()
        made.append(("input", how["timeout"]))
        assert {name: json.dumps(params["_meta"][name].__class__.__name__) for name in params["_meta"]} == {
            "v": '"Raw"'
        }
        assert params["name"] == "t"
        return Raw(b'{"done":1}')

    monkeypatch.setattr(mcp_tasks, "await_task", poll)
    monkeypatch.setattr(control_call, "request_with_input", repeat)
    await srv.tasks[0]()
    assert srv.results == [{"done": 1}]
    ((kind, limit),) = made
    assert kind == ("task" if result["resultType"] == "task" else "input")
    assert limit == pytest.approx(7, abs=1)
    reports = [(each["progress"], each["message"]) for each in srv.progress]
    assert reports == ([(1, "working"), (2, "still working")] if kind == "task" else [])


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
async def test_result_is_checked_unless_it_reports_an_error(result: Json, warning: str) -> None:
    srv = Server()
    await srv.compile()
    call = srv.call("strict")
    assert call.try_send(srv.core)
    answer(call, result=result)
    warnings = srv.results[0]["warnings"]
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)


def result_of(size: int) -> Raw:
    body = b'{"structuredContent":{"n":"%b"}}'
    return Raw(body % (b"x" * (size - len(body) + 2)))


async def test_size_of_checked_results_is_limited() -> None:
    srv = Server()
    await srv.compile()
    call = srv.call("strict")
    assert call._check_output(result_of(9999)) == [], "no schema yet"
    assert call.try_send(srv.core)
    assert "violates" in call._check_output(result_of(MAX_CHECKED))[0]
    assert f"over {MAX_CHECKED} bytes" in call._check_output(result_of(MAX_CHECKED + 1))[0]
    assert "was not checked" in call._check_output(Raw(b"1E+400"))[0]
    assert call._check_output(Raw(b"[1]")) == []


async def test_raw_result_is_returned_unchanged() -> None:
    srv = Server()
    await srv.compile()
    for raw in (True, False):
        call = srv.call("strict", raw=raw)
        assert call.try_send(srv.core)
        answer(call, result={"structuredContent": {"n": "x"}})
    assert srv.results[0] == {"structuredContent": {"n": "x"}}
    assert srv.results[1].keys() > {"success", "warnings"}


async def test_error_of_the_server_keeps_its_code() -> None:
    srv = Server()
    await srv.compile()
    call = srv.call()
    assert call.try_send(srv.core)
    answer(call, error={"code": 7, "message": "no"})
    (error,) = srv.errors
    assert isinstance(error, UpstreamRefused)
    assert (error.upstream_code, error.message) == (7, "srv: no")
    assert srv.results == []
    call.progressed(Raw(b'{"progress":1}'))
    assert srv.progress == [{"progress": 1}]


async def test_exclusive_calls_take_turns() -> None:
    """A turn ends with the response, a failure or a cancellation, and is not kept if nothing was sent."""
    srv = Server(concurrency="serial")
    await srv.compile()
    queue = turn_queue.turn_queue(srv.server)
    calls = [srv.call() for _ in range(5)]
    for call in calls:
        assert call.try_send(srv.core)
        assert call.holds_turn
    assert len(srv.sent) == 1
    answer(calls[0], result={})
    assert not calls[0].holds_turn
    assert len(srv.sent) == 2
    calls[1].failed(LinkLost("gone", may_have_run=True))
    assert len(srv.sent) == 3
    calls[2].cancel("why")
    assert srv.cancelled == ["why"]
    assert len(srv.sent) == 4
    newer: Any = Stub(**vars(srv.upstream))
    srv.server.upstream = newer
    answer(calls[3], result={})
    assert calls[4].upstream is newer
    calls[4].cancel("")
    assert len(queue) == 0
    srv.refuses = LinkLost("gone", may_have_run=False)
    with pytest.raises(LinkLost):
        srv.call().try_send(srv.core)
    assert len(queue) == 0


def test_call_that_was_not_sent_is_cancelled_without_effect() -> None:
    srv = Server()
    srv.call().cancel("why")
    assert srv.cancelled == []
    stray = srv.call()
    stray.holds_turn = True
    stray.cancel("why")
    assert stray.holds_turn, "it belongs to no server yet"


HELLO: Json = {"name": "hello", "arguments": [{"name": "who", "required": True}, {"name": "how"}]}


@pytest.mark.parametrize(
    ("prompt", "arguments", "catalog", "has_prompts", "error"),
    [
        ("hello", {"who": "x"}, make_catalog(prompts=[HELLO]), True, None),
        ("hello", {"how": "x"}, make_catalog(prompts=[HELLO]), True, InvalidArguments),
        ("helo", {}, make_catalog(prompts=[HELLO]), True, UnknownPrompt),
        ("helo", {}, make_catalog(prompts=[HELLO], warnings=("w",)), True, UnknownPrompt),
        ("helo", {}, make_catalog(), True, UnknownPrompt),
        ("helo", {}, make_catalog(warnings=("w",)), True, None),
        ("helo", {}, make_catalog(prompts=[HELLO]), False, None),
        ("helo", {}, None, True, None),
    ],
)
@pytest.mark.parametrize("expired", [False, True])
async def test_prompt_is_checked_against_the_list(
    prompt: str,
    arguments: Json,
    catalog: Any,
    has_prompts: bool,
    error: type[McpdError] | None,
    expired: bool,
) -> None:
    """An expired list is fetched again first; a server without lists decides itself."""
    srv = Server()
    srv.server.catalog = make_catalog() if expired else catalog
    srv.refreshed, srv.server.lists_expired = catalog, expired
    srv.upstream.has = lambda feature: has_prompts
    sent: list[object] = []

    async def send(*what: object) -> Raw:
        await trio.lowlevel.checkpoint()
        sent.append(what)
        return Raw(b"{}")

    srv.core.send_request = send
    if error is None:
        assert bytes(await get_prompt(srv.core, "srv", prompt, arguments)) == b"{}"
        assert sent == [("srv", "prompts", "prompts/get", {"name": prompt, "arguments": arguments})]
        return
    with pytest.raises(error) as raised:
        await get_prompt(srv.core, "srv", prompt, arguments)
    assert sent == []
    if error is UnknownPrompt:
        hint = "did you mean hello?" if catalog.prompts else "`mcpctl prompts srv` lists them"
        assert raised.value.message == f"srv has no prompt 'helo'; {hint}"


async def test_known_prompt_does_not_refresh_expired_lists() -> None:
    srv = Server()
    srv.server.catalog = make_catalog(prompts=["a"])
    srv.refreshed, srv.server.lists_expired = make_catalog(), True

    async def send(*what: object) -> Raw:
        await trio.lowlevel.checkpoint()
        return Raw(b"{}")

    srv.core.send_request = send
    await get_prompt(srv.core, "srv", "a", {})
    assert srv.server.catalog.prompts


@pytest.mark.parametrize(
    ("code", "uri", "resources", "error", "hint"),
    [
        (-32002, "file:///a", (), UnknownResource, "`mcpctl resources srv` lists"),
        (-32602, "file:///a", ("file:///b",), UnknownResource, "did you mean file:///b?"),
        (-32002, "file:///a", ("file:///b", "file:///a"), UpstreamRefused, ""),
        (-32603, "file:///a", (), UpstreamRefused, ""),
        (-32002, "file:///a", None, UnknownResource, "`mcpctl resources srv` lists"),
    ],
)
async def test_unlisted_resource_that_the_server_refuses_is_unknown(
    code: int, uri: str, resources: Sequence[str] | None, error: type[McpdError], hint: str
) -> None:
    srv = Server()
    srv.server.catalog = None if resources is None else make_catalog(resources=resources)

    async def send(*what: object) -> Raw:
        await trio.lowlevel.checkpoint()
        assert what == ("srv", "resources", "resources/read", {"uri": uri})
        raise UpstreamRefused("srv: no", server="srv", upstream_code=code)

    srv.core.send_request = send
    with pytest.raises(error, match=f"srv: no.*{hint}") as raised:
        await read_resource(srv.core, "srv", uri)
    assert type(raised.value) is error
