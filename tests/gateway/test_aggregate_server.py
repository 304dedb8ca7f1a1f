"""Several servers as one: names, lists, routes and URI aliases, in memory."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcpd.gateway import aggregate as aggregate_server
from mcpd.gateway import index
from mcpd.gateway.aggregate import AggregateServer, MergedLists
from mcpd.io import turns
from mcpd.model.errors import (
    InvalidArguments,
    McpdError,
    NotReady,
    UnknownResource,
    UnknownServer,
    UnknownTool,
)
from mcpd.model.policy import Profile
from mcpd.model.status import ServerState
from mcpd.model.tool_names import ClientStyle
from tests.gateway.model import Json, make_catalog, make_core, make_server, make_upstream

ONE = make_catalog(
    tools=[{"name": "echo", "description": "Echoes.", "execution": {"taskSupport": "required"}}, "only"],
    resources=["a:1", "b:1"],
    templates=["a:{x}", "files:///{x}"],
    prompts=["hello"],
)
TWO = make_catalog(
    tools=["echo"], resources=["a:1", "c:2"], templates=["files:///{x}", "t:{y}"], prompts=["hello", "bye"]
)


def aggregate(*servers: Any, **profile: Any) -> AggregateServer:
    return AggregateServer(make_core(*servers), Profile(**profile))


def pair() -> tuple[Any, Any]:
    return make_server("one", ONE), make_server("two", TWO)


def entries(view: AggregateServer, member: str) -> list[Json]:
    return [json.loads(entry) for entry in view.entries(member)]


def names(view: AggregateServer) -> list[str]:
    return [entry["name"] for entry in entries(view, "tools")]


def route(view: AggregateServer, method: str, **params: object) -> tuple[str, Json, str, object]:
    found = view.route(method, json.dumps(params).encode())
    return found.server.spec.name, json.loads(found.params), found.tool, found.alias


@pytest.mark.parametrize(
    ("profile", "tools"),
    [
        ({}, ["one__echo", "one__only", "two__echo"]),
        ({"servers": ("t*",)}, ["two__echo"]),
        ({"servers": ()}, []),
        ({"include_tools": ("only",)}, ["one__only"]),
        ({"include_tools": ()}, []),
        ({"exclude_tools": ("ech?",)}, ["one__only"]),
        ({"include_tools": ("echo",), "exclude_tools": ("*@one",)}, ["two__echo"]),
        ({"style": ClientStyle.PLAIN}, ["one__echo", "only", "two__echo"]),
    ],
)
def test_profile_selects_servers_and_tools(profile: Json, tools: list[str]) -> None:
    assert names(aggregate(*pair(), **profile)) == tools


def test_disabled_and_dedicated_servers_are_left_out() -> None:
    one, two = pair()
    view = aggregate(one, two)
    one.state = ServerState.DISABLED
    assert names(view) == ["two__echo"]
    assert view.covers(one)
    two.original = one
    assert not view.covers(two)
    assert names(view) == []


def test_call_of_a_disabled_server_says_so_unless_the_profile_hides_it() -> None:
    one, two = pair()
    one.state = ServerState.DISABLED
    one.not_ready = lambda: NotReady("one is disabled", server="one", state="disabled")
    with pytest.raises(NotReady):
        route(aggregate(one, two), "tools/call", name="one__echo")
    for view, name in (aggregate(one, two), "two__no"), (aggregate(one, two, servers=("two",)), "one__echo"):
        with pytest.raises(UnknownTool):
            route(view, "tools/call", name=name)


def test_call_of_a_server_that_is_starting_is_sent_to_it() -> None:
    """A client knows the tool from before its definition changed. The call then waits for the server."""
    one, two = pair()
    one.state, one.catalog, one.upstream = ServerState.PENDING, None, None
    assert route(aggregate(one, two), "tools/call", name="one__echo")[0] == "one"
    with pytest.raises(UnknownTool):
        route(aggregate(one, two, servers=("two",)), "tools/call", name="one__echo")


def test_entries_are_marked_with_their_server() -> None:
    """Clients can call a tool that requires a task as any other."""
    view = aggregate(*pair())
    assert [tool.keys() & {"name", "execution"} for tool in entries(view, "tools")] == [{"name"}] * 3
    assert [tool["description"] for tool in entries(view, "tools")] == ["[one] Echoes.", "[one]", "[two]"]
    assert [prompt["name"] for prompt in entries(view, "prompts")] == ["one__hello", "two__hello", "two__bye"]
    assert [each["uri"] for each in entries(view, "resources")] == ["a:1", "b:1", "mcpd://two/a:1", "c:2"]
    assert [each["uriTemplate"] for each in entries(view, "resourceTemplates")] == [
        *("a:{x}", "files:///{x}", "mcpd://two/files:///{x}", "t:{y}")
    ]
    assert view.entries("nothing") == ()


def test_index_follows_catalogs_servers_and_naming_style() -> None:
    one, two = pair()
    core = make_core(one, two)
    view = AggregateServer(core, Profile())
    first = view.entries("tools")
    assert view.entries("tools") is first, "rebuilt without a change"
    two.catalog = make_catalog(tools=["other"])
    assert names(view) == ["one__echo", "one__only", "two__other"]
    two.spec = attrs.evolve(two.spec, name="2")
    assert names(view) == ["one__echo", "one__only", "2__other"]
    core.config.loaded.settings.client_tool_names = ClientStyle.PLAIN
    assert names(view) == ["echo", "only", "other"]
    one.catalog = None
    assert names(view) == ["other"]
    two.state = ServerState.DISABLED
    assert names(view) == []


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        (
            "tools/call",
            {"name": "two__echo", "arguments": {"a": 1}},
            ("two", {"name": "echo", "arguments": {"a": 1}}, "echo", None),
        ),
        ("prompts/get", {"name": "two__hello"}, ("two", {"name": "hello"}, "", None)),
        ("resources/read", {"uri": "a:1"}, ("one", {"uri": "a:1"}, "", None)),
        ("resources/read", {"uri": "mcpd://two/a:1"}, ("two", {"uri": "a:1"}, "", ("a:1", "mcpd://two/a:1"))),
        ("resources/read", {"uri": "mcpd://two/new"}, ("two", {"uri": "new"}, "", ("new", "mcpd://two/new"))),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "two__bye"}},
            ("two", {"ref": {"type": "ref/prompt", "name": "bye"}}, "", None),
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "mcpd://two/files:///{x}"}},
            ("two", {"ref": {"type": "ref/resource", "uri": "files:///{x}"}}, "", None),
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "c:2"}},
            ("two", {"ref": {"type": "ref/resource", "uri": "c:2"}}, "", None),
        ),
    ],
)
def test_public_names_and_uris_lead_to_their_server(method: str, params: Json, expected: object) -> None:
    """The params that are sent hold the server's own name or URI."""
    assert route(aggregate(*pair()), method, **params) == expected


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("tools/call", {"name": "echo"}, UnknownTool),
        ("prompts/get", {"name": "one__echo"}, UnknownTool),
        ("tools/call", {"name": 5}, InvalidArguments),
        ("resources/read", {"name": "a:1"}, InvalidArguments),
        ("resources/read", {"uri": "mcpd://two/"}, UnknownResource),
        ("completion/complete", {}, InvalidArguments),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "echo"}}, UnknownTool),
    ],
)
def test_unknown_names_are_refused(method: str, params: Json, error: type[McpdError]) -> None:
    with pytest.raises(error):
        route(aggregate(*pair()), method, **params)


@pytest.mark.parametrize(
    ("uri", "server", "own"),
    [
        ("mcpd://two/files:///z", "two", "files:///z"),
        ("t:9", "two", "t:9"),
        ("b:77", "one", "b:77"),
        ("c:77", "two", "c:77"),
        ("x:77", None, ""),
        ("a:1/2", None, ""),
    ],
)
def test_unlisted_resource_is_found_by_template_or_similar_uris(
    uri: str, server: str | None, own: str
) -> None:
    """A URI that several servers could have belongs to none of them."""
    one, two = pair()
    for each in (one, two):
        each.upstream = make_upstream(resources={})
    view = aggregate(one, two)
    if server is None:
        with pytest.raises(UnknownResource):
            view.resource(uri)
    else:
        found, name = view.resource(uri)
        assert (found.spec.name, name) == (server, own)


def test_names_and_uris_that_were_given_never_mean_something_else() -> None:
    """Whatever leaves, comes, or gets another naming style: a running chat knows the names of before."""
    one, two = pair()
    two.catalog = make_catalog(
        tools=["echo", "b__c"], resources=["a:1"], templates=["a:{x}"], prompts=["hello"]
    )
    core = make_core(one)
    view = AggregateServer(core, Profile(style=ClientStyle.PLAIN))

    def are_there(*servers: Any) -> None:
        by_name = {server.spec.name: server for server in servers}
        supervisor = core.supervisor
        supervisor.servers, supervisor.find = lambda: servers, by_name.get
        supervisor.get = by_name.__getitem__

    for each in (one, two):
        each.upstream = make_upstream(resources={})
    assert names(view) == ["echo", "only"]
    are_there(two, one)
    assert names(view) == ["two__echo", "b__c", "echo", "only"]
    given = [("tools/call", {"name": "echo"}), ("prompts/get", {"name": "hello"})]
    given += [("resources/read", {"uri": uri}) for uri in ("a:1", "a:99", "b:77")]
    assert {route(view, method, **params)[0] for method, params in given} == {"one"}
    one.state = ServerState.DISABLED
    assert names(view) == ["two__echo", "b__c"]
    for method, params in given:
        with pytest.raises(NotReady):
            route(view, method, **params)
    are_there(two)
    for method, params in given:
        with pytest.raises(UnknownServer, match="belongs to the server 'one', which was removed"):
            route(view, method, **params)
    two.catalog = make_catalog(tools=["echo"])
    with pytest.raises(UnknownTool, match="two: it does not offer the tool 'b__c' any more"):
        route(view, "tools/call", name="b__c")
    view.use_profile(Profile())
    assert names(view) == ["two__echo"]
    b = make_server("two__b", make_catalog(tools=["c"]))
    are_there(b, two)
    two.catalog = make_catalog(tools=["b__c"])
    assert {route(view, "tools/call", name=name)[0] for name in names(view)} == {"two", "two__b"}
    both = names(view)
    are_there(two)
    assert names(view) == both[1:]
    are_there(two, b)
    assert names(view) == [both[1], both[0]], "a colliding group keeps its names"


def test_forgotten_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MAX_GIVEN", 50)
    server = make_server("one", make_catalog())
    view = aggregate(server)
    for n in range(200):
        server.catalog = make_catalog(tools=[f"t{n}"], resources=[f"a:{n}"], templates=[f"b{n}:{{x}}"])
        assert names(view) == [f"one__t{n}"]
    given = view.lists.given
    kept = len(given.tools.meanings) + len(given.resources) + len(given.templates) + len(given.patterns)
    assert 0 < kept < 100


def test_unknown_tool_error_names_servers_that_are_still_starting() -> None:
    """Some of them, and not those that are restarted after a failure: a model would try again and again."""
    starting = [make_server(f"s{number}") for number in range(6)]
    known, failed = make_server("known", ONE), make_server("failed")
    for server in (*starting, known, failed):
        server.state, server.is_first_start = ServerState.PENDING, server in starting
    with pytest.raises(UnknownTool, match="still starting are not known: s0, s1, s2, s3, s4 and others; try"):
        route(aggregate(*starting, known, failed), "tools/call", name="x")


def test_instructions_are_merged_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [make_server(name) for name in ("one", "two", "three", "four")]
    for server, text in zip(servers, ("abc", "", "xyz"), strict=False):
        server.upstream = make_upstream()
        server.upstream.info = attrs.evolve(server.upstream.info, instructions=text)
    view = aggregate(*servers)
    assert view.instructions() == "## one\n\nabc\n\n## three\n\nxyz"
    monkeypatch.setattr(aggregate_server, "_MAX_SERVER_INSTRUCTIONS", 2)
    assert view.instructions() == "## one\n\nab\n\n## three\n\nxy"
    monkeypatch.setattr(aggregate_server, "_MAX_INSTRUCTIONS", 9)
    assert view.instructions() == "## one\n\na"


@pytest.mark.parametrize(
    ("params", "server", "arguments"),
    [
        (b'{"name":"one__echo","arguments":{"a":1.0}}', "one", {"a": 1}),
        (b'{"name":"two__echo"}', "two", None),
        (b'{"name": "one__echo"}', "one", None),
        (b'{"arguments":{},"name":"two__echo"}', "two", {}),
        (b'{"name":"one__echo","arguments":{"name":"two__echo"}}', "one", {"name": "two__echo"}),
        (b'{"name":"one__echo","name":"two__echo"}', "two", None),
        (b'{"name":"one__echo","n\\u0061me":"two__echo"}', "two", None),
    ],
)
def test_repeated_call_goes_to_the_same_server(
    params: bytes, server: str, arguments: dict[str, object] | None
) -> None:
    """However the params are written, and with two names the one that the server would read."""
    view = aggregate(*pair())
    for _ in range(2):
        route(view, "tools/call", name="one__echo")
        found = view.route("tools/call", params)
        sent = json.loads(found.params)
        assert (found.server.spec.name, found.tool, sent["name"]) == (server, "echo", "echo")
        assert sent.get("arguments") == arguments


def test_call_does_not_go_to_the_owner_of_a_prompt_of_that_name() -> None:
    view = aggregate(*pair())
    assert route(view, "prompts/get", name="two__bye")[0] == "two"
    with pytest.raises(UnknownTool):
        view.route("tools/call", b'{"name":"two__bye"}')


async def test_index_of_long_lists_is_built_in_several_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of 10,000 tools took 0.1 s. If a list changes meanwhile, the index is that of the new one."""
    monkeypatch.setattr(turns, "MAX_TURN", 0.0)
    long = make_catalog(tools=["echo", *(f"t{number}" for number in range(1100))], resources=["a:1"])
    server, other = make_server("one", long), make_server("two", TWO)
    view = aggregate(server, other)

    async def change() -> None:
        await trio.sleep(10 * turns.REST)
        server.catalog = make_catalog(tools=[f"new{number}" for number in range(1200)])

    async with trio.open_nursery() as nursery:
        for lists_of in (view.for_legacy_clients(), view):
            assert lists_of.must_prepare
            nursery.start_soon(lists_of.prepare)
        nursery.start_soon(change)
        began = trio.current_time()
    assert trio.current_time() - began > 30 * turns.REST
    monkeypatch.setattr(MergedLists, "_rebuild", None)
    for lists_of in (view.for_legacy_clients(), view):
        assert not lists_of.must_prepare
        assert names(lists_of)[1199:1201] == ["one__new1199", "two__echo"]
    assert route(view, "tools/call", name="one__new1199")[0] == "one"
