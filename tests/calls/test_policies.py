"""Denied calls are refused before the server hears of them, however they are spelled or sent."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.api.control.calls import ControlCaller, ControlClient, read_call
from mcpd.api.control.reports import explain_policy
from mcpd.calls.client_context import ClientIdentity
from mcpd.calls.routes import ROUTES
from mcpd.gateway.client_facts import SessionFacts
from mcpd.gateway.session import ClientSession
from mcpd.model.config_api import PolicyParams
from mcpd.model.errors import McpdError
from mcpd.model.policy import ClientFacts, Decision, PolicyRule, Profile
from mcpd.state.clients import ClientConnection
from mcpd.wire import message as wire
from tests.gateway.mcp_client import MODERN, meta
from tests.gateway.model import LEGACY, Json, World, make_catalog, make_upstream, world
from tests.model.test_policy import URIS

Clock = trio.testing.MockClock
READER: Json = {"name": "get_issue", "annotations": {"readOnlyHint": True}}
CATALOG = make_catalog(
    tools=["delete_repo", READER],
    resources=["file:///secret/key", "file:///public/a"],
    templates=["file:///secret/{name}"],
    prompts=["review"],
)


def rule(decision: str, place: str = "$.settings.policies[0]", **conditions: Any) -> PolicyRule:
    return PolicyRule(decision=Decision(decision), place=place, **conditions)


NO_DELETE = rule("deny", tools=("delete_*",))
NO_SECRETS = rule("deny", resources=("file:///secret/*",))
NOTHING = rule("deny", servers=("srv",))


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        made.server.catalog = CATALOG
        made.server.upstream = make_upstream(made.wire, tools={}, resources={"subscribe": True}, prompts={})
        yield made


def apply(w: World, *rules: PolicyRule) -> None:
    """Put rules into effect, as a changed configuration does."""
    settings: Any = w.gateway.core.config.loaded.settings
    kept = {name: value for name, value in vars(settings).items() if name != "policies"}
    w.gateway.core.config.loaded.settings = type(settings)(**kept, policies=rules)  # type: ignore[misc]


class Client:
    """A client of one revision, in front of one server or of all."""

    def __init__(self, w: World, *, modern: bool = False, single: bool = True, name: str = "zed") -> None:
        self.modern = modern
        self.name = name
        self.frames: list[Json] = []
        view = w.gateway.view("srv" if single else None)
        identity = ClientIdentity(via="http" if modern else "bridge", name="" if modern else name)
        self.session: ClientSession = w.gateway.open_session(view, identity, self.send, w.spawn)
        self.number = 0
        if not modern:
            self.ask("initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={"name": name})
            self.session.receive(wire.parse(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'), self)

    def ask(self, method: str, **params: Any) -> Json | None:
        if self.modern:
            info = {"io.modelcontextprotocol/clientInfo": {"name": self.name}}
            params["_meta"] = meta({}, **info)
        return self.raw(method, json.dumps(params))

    def raw(self, method: str, params: str) -> Json | None:
        """Send a request with these params; returns the response if there is one already."""
        self.number += 1
        text = f'{{"jsonrpc":"2.0","id":{self.number},"method":{json.dumps(method)},"params":{params}}}'
        self.session.receive(wire.parse(text.encode("utf-8", "surrogatepass")), self)
        return next((frame for frame in self.frames if frame.get("id") == self.number), None)

    def send(self, frame: bytes) -> None:
        self.frames.append(json.loads(frame))

    def finish(self, frame: bytes, code: int = 0) -> None:
        self.send(frame)

    def drop(self) -> None: ...


def assert_refused(w: World, answer: Json | None, code: str = "") -> None:
    """The client has an error, and the server has heard nothing."""
    assert answer is not None
    assert "error" in answer, answer
    if code:
        assert answer["error"]["data"]["code"] == code, answer
    assert w.wire.frames == []


KINDS = [
    {"modern": False},
    {"modern": True},
    {"modern": False, "single": False},
    {"modern": True, "single": False},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_denied_tool_is_refused_with_the_rule_and_is_in_no_list(w: World, kind: Any) -> None:
    prefix = "" if kind.get("single", True) else "srv__"
    client = Client(w, **kind)
    apply(w, attrs.evolve(NO_DELETE, reason="too dangerous"))
    answer = client.ask("tools/call", name=f"{prefix}delete_repo", arguments={})
    assert_refused(w, answer, "denied")
    assert answer is not None
    assert answer["error"]["message"].startswith(
        "srv: tool 'delete_repo' was not used: the rule at $.settings.policies[0] denies it (too dangerous); "
        "`mcpctl why delete_repo@srv --client "
    )
    assert answer["error"]["message"].endswith("` explains the decision")
    assert answer["error"]["data"]["rule"] == "$.settings.policies[0]"
    assert answer["error"]["data"]["may_have_run"] is False
    listed = client.ask("tools/list")
    assert listed is not None
    assert [tool["name"] for tool in listed["result"]["tools"]] == [f"{prefix}get_issue"]
    assert client.ask("tools/call", name=f"{prefix}get_issue", arguments={}) is None
    assert len(w.wire.frames) == 1, "sent"


@pytest.mark.parametrize(
    ("conditions", "named"),
    [
        ({"clients": ("zed",)}, "why delete_repo@srv --client zed"),
        ({"clients": ("z*", "mcp")}, "why delete_repo@srv --client zed"),
        ({"clients": ("mcp*",)}, "why delete_repo@srv --client 'mcp 0.1.0'"),
        ({"profiles": ("*",)}, "policy test zed delete_repo@srv --profile work"),
        ({"executables": ("python*",)}, "why delete_repo@srv --client zed"),
    ],
    ids=str,
)
async def test_hint_has_the_same_answer_after_the_client_has_left(
    w: World, conditions: Any, named: str
) -> None:
    """The command in the error names the client such that the rule matches it without a connection."""
    client = Client(w)
    client.session.peer = "mcp 0.1.0"  # sorted before `zed`
    has_profile = "profiles" in conditions
    client.session._facts = SessionFacts(client.session.client, Profile(name="work") if has_profile else None)
    denied = rule("deny", tools=("delete_*",), **conditions)
    apply(w, denied)
    answer = client.ask("tools/call", name="delete_repo", arguments={})
    assert_refused(w, answer, "denied")
    assert answer is not None
    (command,) = re.findall(r"`(.*)` explains", answer["error"]["message"])
    assert command == f"mcpctl {named}"
    asked = PolicyParams(
        client=shlex.split(command)[3 if has_profile else -1], server="srv", tool="delete_repo"
    )
    client.session.close("it left")
    assert not w.gateway.sessions
    loaded: Any = w.gateway.core.config.loaded
    loaded.source = "config.json"
    found = explain_policy(w.gateway, asked)
    assert has_profile or (found.decision, found.rule) == ("deny", denied.place)


async def test_read_only_server_refuses_all_other_tools(w: World) -> None:
    client = Client(w)
    w.server.spec = attrs.evolve(w.server.spec, read_only=True)
    answer = client.ask("tools/call", name="delete_repo", arguments={})
    assert_refused(w, answer, "denied")
    assert answer is not None
    assert "the rule at $.mcpServers.srv.readOnly denies it" in answer["error"]["message"]
    assert_refused(w, client.ask("tools/call", name="hidden", arguments={}), "denied")
    assert client.ask("tools/call", name="get_issue", arguments={}) is None
    assert client.ask("prompts/get", name="review") is None
    assert client.ask("resources/read", uri="file:///public/a") is None


async def test_dedicated_instance_has_the_rules_of_its_definition(w: World) -> None:
    apply(w, NOTHING)
    original, spec = w.server, attrs.evolve(w.server.spec, name="srv~1")
    client = Client(w)
    w.server.spec = spec
    w.server.original = type(w.server)(spec=attrs.evolve(spec, name="srv"))
    assert_refused(w, client.ask("tools/call", name="get_issue", arguments={}), "denied")
    assert original is w.server


async def test_without_rules_there_is_no_stage(w: World) -> None:
    client = Client(w)
    client.ask("tools/call", name="delete_repo", arguments={})
    assert all(route.stages.before == () for route in w.server.list_attachments[ROUTES].values())
    assert not client.session._facts.are_read, "nothing was read about the client"


async def test_verdict_follows_the_client_and_the_lists(w: World) -> None:
    client, codex = Client(w), Client(w, name="codex")
    apply(w, rule("deny", clients=("codex",), hints={"readOnlyHint": False}))
    for _ in range(2):
        assert client.ask("tools/call", name="delete_repo", arguments={}) is None
        w.wire.frames.clear()
        assert_refused(w, codex.ask("tools/call", name="delete_repo", arguments={}), "denied")
    w.server.catalog = make_catalog(tools=[{**READER, "name": "delete_repo"}])
    assert codex.ask("tools/call", name="delete_repo", arguments={}) is None


async def test_names_in_no_list_take_bounded_memory_and_push_out_no_tool(w: World) -> None:
    w.server.catalog = make_catalog(tools=["get_issue"])
    apply(w, rule("deny", "$[0]", tools=("delete_*",)))
    client = Client(w)
    facts, policies = client.session.facts(client.session.context), w.gateway.policies
    for name in ("get_issue", "x" * 100_000, *(f"tool_{n}" for n in range(1500)), "delete_all"):
        decision = policies.verdict(facts, w.server, "tool", name).decision
        assert (decision is Decision.DENY) is (name == "delete_all")
    kept = policies.of(w.server)._about
    assert ("tool", "get_issue") in kept
    assert max(len(name) for _, name in kept) <= 1000
    assert 0 < len(kept) <= 1001


# ── evasions ────────────────────────────────────────────────────────────────────────────────────


PARAMS = [
    '{"name":"get_issue","name":"delete_repo","arguments":{}}',
    '{"name":"delete_repo","Name":"get_issue","arguments":{}}',
    '{"name":"get_issue","Name":"delete_repo","arguments":{}}',
    '{"name":"get_issue","NAME":"delete_repo","arguments":{}}',
    '{"name":"get_issue","n\\u0041me":"delete_repo","arguments":{}}',
    '{"n\\u0061me":"delete_repo","arguments":{}}',
    '{"name":"get_issue","n\\u0061me":"delete_repo","arguments":{}}',
    '{"name":"del\\u0065te_repo","arguments":{}}',
    '{ "arguments":{}, "name" : "delete_repo" }',
    '{"arguments":{"name":"get_issue"},"name":"delete_repo"}',
    '{"arguments":{}}',
    '{"NAME":"delete_repo","arguments":{}}',
    '{"name":["delete_repo"],"arguments":{}}',
    '{"name":null,"arguments":{}}',
    '{"name":"","Name":"delete_repo"}',
    "{}",
    "[]",
]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("single", [True, False])
async def test_other_spellings_of_the_params_are_refused(w: World, params: str, single: bool) -> None:
    """JSON parsers differ in which of two members counts, and in whether case matters."""
    client = Client(w, single=single)
    apply(w, NO_DELETE)
    if not single:
        params = params.replace("delete_repo", "srv__delete_repo").replace("get_issue", "srv__get_issue")
    assert_refused(w, client.raw("tools/call", params))


async def test_server_gets_exactly_the_name_that_was_compared(w: World) -> None:
    client = Client(w)
    apply(w, NO_DELETE)
    client.raw("tools/call", '{"name":"delete_repo","name":"get_issue","arguments":{"a":1E+400}}')
    (frame,) = w.wire.frames
    assert b"delete_repo" not in frame
    assert b'"arguments":{"a":1E+400}' in frame, "the rest is as it was written"


@pytest.mark.parametrize("uri", ["file:///secret/key", *URIS])
async def test_other_spellings_of_a_uri_are_refused(w: World, uri: str) -> None:
    client = Client(w)
    apply(w, NO_SECRETS)
    assert_refused(w, client.ask("resources/read", uri=uri), "denied")
    assert_refused(w, client.ask("resources/subscribe", uri=uri), "denied")
    reference = {"type": "ref/resource", "uri": uri}
    assert_refused(w, client.ask("completion/complete", ref=reference, argument={}), "denied")


async def test_updates_of_denied_resources_are_not_heard_through_their_parents(w: World) -> None:
    client = Client(w)
    apply(w, NO_SECRETS)
    w.gateway.subscriptions.add(client.session, b"", "file:///", w.server, "file:///")
    for uri in ("file:///secret/key", "file:///public/a", "FILE:///secret/key"):
        w.gateway.subscriptions.on_resource_updated(w.server, uri)
    heard = [frame["params"] for frame in client.frames if frame.get("method", "").endswith("updated")]
    assert heard == [{"uri": "file:///public/a"}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_denied_server_cannot_be_used_in_another_way(w: World, kind: Any) -> None:
    """Resources, prompts, completion and unknown methods instead of tools."""
    prefix = "" if kind.get("single", True) else "srv__"
    client = Client(w, **kind)
    apply(w, NOTHING)
    for method, params in (
        ("tools/call", {"name": f"{prefix}get_issue", "arguments": {}}),
        ("prompts/get", {"name": f"{prefix}review"}),
        ("resources/read", {"uri": "file:///public/a"}),
        ("resources/read", {"uri": "mcpd://srv/file:///public/a"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": f"{prefix}review"}, "argument": {}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "file:///public/a"}, "argument": {}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "x", "Name": "review"}, "argument": {}},
        ),
        ("x/delete", {}),
        ("TOOLS/CALL", {"name": f"{prefix}get_issue"}),
    ):
        assert_refused(w, client.ask(method, **params))
    for method, member in (
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
    ):
        listed = client.ask(method)
        assert listed is not None
        assert listed["result"][member] == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_rules_about_prompts_are_not_those_about_tools(w: World, kind: Any) -> None:
    name = "review" if kind.get("single", True) else "srv__review"
    client = Client(w, **kind)
    apply(w, rule("deny", prompts=("review",)))
    assert_refused(w, client.ask("prompts/get", name=name), "denied")
    apply(w, rule("deny", tools=("review",)))
    assert client.ask("prompts/get", name=name) is None
    assert len(w.wire.frames) == 1


@pytest.mark.parametrize("single", [True, False])
async def test_excluded_tool_has_no_other_spelling(w: World, single: bool) -> None:
    """Without any rule. Readers such as Go's ignore the case of members."""
    prefix = "" if single else "srv__"
    w.server.spec = attrs.evolve(w.server.spec, exclude_tools=("delete_*",))
    client = Client(w, single=single)
    assert client.raw("tools/call", f'{{"name":"{prefix}get_issue"}}') is None
    w.wire.frames.clear()
    given = f'{{"name":"{prefix}get_issue","Name":"delete_repo"}}'
    assert_refused(w, client.raw("tools/call", given), "invalid_arguments")
    for name in ("Delete_Repo", "delete_repo ", "delete_repo\u200b") if single else ():
        assert_refused(w, client.ask("tools/call", name=name), "unknown_tool")
    assert client.raw("tools/call", f'{{"name":"delete_repo","name":"{prefix}get_issue"}}') is None
    (frame,) = w.wire.frames
    assert b"delete_repo" not in frame


@pytest.mark.parametrize("method", ["Tools/Call", "tools/call ", "tools/call\u200b"])
async def test_other_spellings_of_a_method_are_refused(w: World, method: str) -> None:
    apply(w, NO_DELETE)
    assert_refused(w, Client(w).ask(method, name="delete_repo", arguments={}), "invalid_arguments")


async def test_reference_of_an_unknown_type_is_refused(w: World) -> None:
    apply(w, rule("deny", prompts=("review",)))
    reference = {"type": "ref/Prompt", "name": "review", "uri": "x:y"}
    assert_refused(w, Client(w).ask("completion/complete", ref=reference, argument={}), "invalid_arguments")


async def test_control_api_is_refused_the_same(autojump_clock: Clock, w: World) -> None:
    answers: list[Json] = []

    class Here:
        def send(self, frame: bytes) -> None: ...
        def drop(self) -> None: ...
        def finish(self, frame: bytes, code: int = 0) -> None:
            answers.append(json.loads(frame))

    apply(w, NO_DELETE, rule("deny", prompts=("*",)), NO_SECRETS)
    facts = ClientFacts(names=("mcpctl",), transport="control")
    client = ControlClient(ClientConnection(None), lambda: facts)
    caller = ControlCaller(w.gateway.calls, w.gateway.core, Here(), w.spawn, client)
    ref = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {}}
    attempts: tuple[Callable[[], None], ...] = (
        lambda: caller.call(b"1", read_call(Raw(b'{"server":"srv","tool":"delete_repo"}'))),
        lambda: caller.call(b"2", read_call(Raw(b'{"server":"srv","tool":"Delete_Repo"}'))),
        lambda: caller.start(b"3", "srv", "prompts/get", {"name": "review"}),
        lambda: caller.start(b"4", "srv", "resources/read", {"uri": "file:///%73ecret/key"}),
        lambda: caller.start(b"5", "srv", "completion/complete", ref),
    )
    for attempt in attempts:
        with pytest.raises(McpdError, match="denies it"):
            attempt()
    assert (answers, w.wire.frames) == ([], [])


async def test_client_that_renames_itself_keeps_its_former_names(w: World) -> None:
    """In the revision in which each request has a name; and no name at all is no way out."""
    client = Client(w, modern=True, name="codex")
    apply(w, rule("deny", clients=("codex",), tools=("delete_*",)))
    for name in ("codex", "zed", "Codex CLI 0.1", "codex\u200b", ""):
        client.name = name
        assert_refused(w, client.ask("tools/call", name="delete_repo", arguments={}), "denied")
    nameless = Client(w, modern=True, name="")
    assert_refused(w, nameless.ask("tools/call", name="delete_repo", arguments={}), "denied")
    for number in range(40):
        client.name = f"name {number}"
        assert_refused(w, client.ask("tools/call", name="delete_repo", arguments={}))


@pytest.mark.parametrize("modern", [False, True])
async def test_tasks_belong_to_the_client_that_made_them(w: World, modern: bool) -> None:
    """And its rules apply to them."""
    version = MODERN if modern else LEGACY
    legacy: Json = {"tasks": {"list": {}}}
    extension = {"extensions": {"io.modelcontextprotocol/tasks": {}}} if modern else legacy
    w.server.upstream = make_upstream(w.wire, version, tools={}, **extension)
    one, other = Client(w, modern=modern), Client(w, modern=modern, name="codex")

    def result_of(client: Client, method: str, result: Json, **params: Any) -> Any:
        w.wire.frames.clear()
        assert client.ask(method, **params) is None
        (frame,) = map(json.loads, w.wire.frames)
        assert frame["method"] == method
        w._say({"id": frame["id"], "result": result})
        w.wire.frames.clear()
        return client.frames[-1].get("result")

    task = {"taskId": "t-1", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": 1}
    created = {"resultType": "task", **task} if modern else {"task": task}
    result_of(one, "tools/call", created, name="delete_repo", arguments={}, task={})
    done = {"resultType": "complete", **task}
    assert result_of(one, "tasks/get", done, taskId="t-1")["taskId"] == "t-1"
    methods = ("get", "cancel", "update") if modern else ("get", "cancel", "result")
    for method in methods:
        assert_refused(w, other.ask(f"tasks/{method}", taskId="t-1"), "invalid_arguments")
        assert_refused(w, one.ask(f"tasks/{method}", taskId="t-2"), "invalid_arguments")
        assert_refused(w, other.ask(f"tasks/{method}", taskId="t-1", taskID="t-2"), "invalid_arguments")
    w.lose()  # its next process counts from the beginning
    w.connect()
    w.server.upstream = make_upstream(w.wire, version, tools={}, **extension)
    assert_refused(w, one.ask("tasks/get", taskId="t-1"), "invalid_arguments")
    result_of(other, "tools/call", created, name="delete_repo", arguments={}, task={})
    assert_refused(w, one.ask("tasks/get", taskId="t-1"), "invalid_arguments")
    assert result_of(other, "tasks/get", done, taskId="t-1")["taskId"] == "t-1"
    one, other = other, one
    if not modern:
        listed = {"tasks": [task, {**task, "taskId": "t-2"}], "nextCursor": "x"}
        assert result_of(one, "tasks/list", listed) == {"tasks": [task], "nextCursor": "x"}
        assert result_of(other, "tasks/list", listed)["tasks"] == []
    apply(w, NO_DELETE)
    for method in methods:
        assert_refused(w, one.ask(f"tasks/{method}", taskId="t-1"), "denied")
    apply(w, rule("deny", servers=("srv",)))
    if not modern:
        assert_refused(w, one.ask("tasks/list"), "denied")


async def test_completion_does_not_tell_what_is_denied(w: World) -> None:
    client = Client(w)
    apply(w, NO_SECRETS)
    w.server.upstream = make_upstream(w.wire, completions={}, resources={})
    for template, value in (
        ("file:///{path}", "secret/k"),
        ("file:///{+dir}/{name}", "k"),
        ("{+uri}", "/secret/"),
    ):
        ref = {"type": "ref/resource", "uri": template}
        argument = {"name": "uri" if "uri" in template else template[-5:-1], "value": value}
        context = {"arguments": {"dir": "%73ecret"}}
        answer = client.ask("completion/complete", ref=ref, argument=argument, context=context)
        assert_refused(w, answer, "denied")
    ref = {"type": "ref/resource", "uri": "{+uri}"}
    client.ask("completion/complete", ref=ref, argument={"name": "uri", "value": "file:///pub"})
    assert len(w.wire.frames) == 1


async def test_notifications_are_no_way_around(w: World) -> None:
    """A request without an id is not passed on, and a notification only to a server that may be used."""
    client = Client(w)
    apply(w, NO_DELETE)
    for method in ("tools/call", "resources/read", "tasks/cancel", "resources/subscribe"):
        text = f'{{"jsonrpc":"2.0","method":"{method}","params":{{"name":"delete_repo"}}}}'
        client.session.receive(wire.parse(text.encode()), client)
    assert w.wire.frames == []
    own = wire.parse(b'{"jsonrpc":"2.0","method":"notifications/x.example/a"}')
    client.session.receive(own, client)
    assert len(w.wire.frames) == 1
    apply(w, rule("deny", servers=("srv",)))
    client.session.receive(own, client)
    assert len(w.wire.frames) == 1


async def test_suspended_state_is_no_way_around(w: World) -> None:
    """A forged or foreign `requestState` does not skip the rules."""
    client = Client(w, modern=True)
    apply(w, NO_DELETE)
    for state in ("p.x", "u.x", "x"):
        answer = client.ask(
            "tools/call", name="delete_repo", arguments={}, requestState=state, inputResponses={}
        )
        assert_refused(w, answer)
