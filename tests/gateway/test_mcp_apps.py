"""MCP Apps of several servers as one: pages, tools that name them, and tools that pages call."""

from __future__ import annotations

from typing import Any

import pytest

from mcpd.gateway.aggregate import AggregateServer
from mcpd.gateway.views import SingleServer
from mcpd.model.errors import UnknownTool
from mcpd.model.policy import Profile
from mcpd.protocol.extensions import TASKS, UI
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, make_catalog, make_core, make_server, make_upstream
from tests.gateway.test_aggregate_server import aggregate, entries, route

PAGE = "ui://app/page.html"
HIDDEN = "ui://app/hidden.html"


def tool(name: str, uri: str = PAGE, **ui: object) -> Json:
    return {"name": name, "_meta": {"ui": {**ui, "resourceUri": uri}, "ui/resourceUri": uri, "other": 1}}


def app(name: str, *more: Any) -> Any:
    tools = [tool("show"), tool("refresh", visibility=["app"]), tool("peek", HIDDEN), *more]
    return make_server(name, make_catalog(tools=tools, resources=[PAGE]))


def pages(view: AggregateServer) -> list[Json]:
    return [entry["_meta"] for entry in entries(view, "tools") if "_meta" in entry]


def test_entries_of_one_app_are_unchanged() -> None:
    view = aggregate(app("one"), make_server("two", make_catalog(tools=["show"])))
    assert pages(view) == [
        tool("x")["_meta"],
        tool("x", visibility=["app"])["_meta"],
        tool("x", HIDDEN)["_meta"],
    ]
    assert [entry["uri"] for entry in entries(view, "resources")] == [PAGE]


@pytest.mark.parametrize("uri", [PAGE, HIDDEN])
def test_same_page_of_two_servers_gets_an_alias(uri: str) -> None:
    """The scheme stays, because hosts accept no other. Hosts also read pages that are not listed."""
    view = aggregate(app("one"), app("two"))
    alias = uri.replace("ui://", "ui://mcpd/two/")
    named = [each["ui"]["resourceUri"] for each in pages(view)]
    assert [each["ui/resourceUri"] for each in pages(view)] == named
    assert (uri in named[:3], alias in named[3:]) == (True, True)
    assert [entry["uri"] for entry in entries(view, "resources")] == [PAGE, "ui://mcpd/two/app/page.html"]
    assert route(view, "resources/read", uri=uri) == ("one", {"uri": uri}, "", None)
    assert route(view, "resources/read", uri=alias) == ("two", {"uri": uri}, "", (uri, alias))
    assert pages(view)[4]["ui"]["visibility"] == ["app"]
    assert pages(view)[4]["other"] == 1


def test_page_calls_tools_of_its_server_by_their_own_names() -> None:
    """The page does not know the public names."""
    view = aggregate(app("one"), make_server("two", make_catalog(tools=["refresh", "plain"])))
    assert route(view, "tools/call", name="refresh") == ("one", {"name": "refresh"}, "refresh", None)
    assert route(view, "tools/call", name="two__refresh")[0] == "two"
    with pytest.raises(UnknownTool):
        route(view, "tools/call", name="plain")  # no app


def test_own_name_of_several_apps_is_refused() -> None:
    """Rather than call the tool of the wrong server."""
    view = aggregate(app("one"), app("two", "only"))
    with pytest.raises(UnknownTool, match="one, two"):
        route(view, "tools/call", name="refresh")
    assert route(view, "tools/call", name="only")[0] == "two"


def test_excluded_tool_cannot_be_called_by_its_own_name() -> None:
    view = aggregate(app("one"), exclude_tools=("refresh",))
    with pytest.raises(UnknownTool):
        route(view, "tools/call", name="refresh")


def test_all_servers_together_declare_the_extensions_of_each() -> None:
    one, two = make_server("one"), make_server("two")
    view = AggregateServer(make_core(one, two), Profile())
    assert view.capabilities(LEGACY)["extensions"] == {UI: {}}
    one.upstream = make_upstream(extensions={"com.example/x": {"a": [1]}, TASKS: {}})
    two.upstream = make_upstream(
        version=MODERN, extensions={"com.example/x": {"a": [2], "c": 3}, UI: {"b": 1}}
    )
    assert view.capabilities(LEGACY)["extensions"] == {
        "com.example/x": {"a": [1, 2], "c": 3},
        UI: {"b": 1},
    }


@pytest.mark.parametrize(
    ("version", "offered"), [(LEGACY, {UI: {}, TASKS: {}}), (MODERN, {UI: {}})], ids=["same", "other"]
)
def test_one_server_declares_its_extensions_in_every_revision(version: str, offered: Json) -> None:
    """Tasks work only if both sides use the same revision."""
    server = make_server("one")
    server.upstream = make_upstream(version=LEGACY, extensions={UI: {}, TASKS: {}})
    assert SingleServer(make_core(server), server).capabilities(version)["extensions"] == offered
