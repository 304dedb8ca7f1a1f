"""What a client of one server sees: lists, filtered calls, capabilities and freshness."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from mcpd.gateway.views import (
    CAPABILITIES,
    CAPABILITIES_WHILE_UNKNOWN,
    MAX_TTL,
    NOT_CACHEABLE,
    SingleServer,
    combined_freshness,
)
from mcpd.model.errors import UnknownTool
from mcpd.model.server_spec import Timeouts
from mcpd.supervision.catalog import CacheHint
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, make_catalog, make_core, make_server, make_upstream


def call(tool: str) -> bytes:
    return json.dumps({"name": tool}).encode()


@pytest.mark.parametrize(
    ("spec", "method", "tool", "routed"),
    [
        ({}, "tools/call", "a", ""),
        ({"exclude_tools": ("b",)}, "tools/call", "a", "a"),
        ({"exclude_tools": ("b",)}, "tools/call", "b", None),
        ({"exclude_tools": ("b",)}, "prompts/get", "b", ""),
        ({"include_tools": ("b",)}, "tools/call", "b", "b"),
        ({"include_tools": ("b",)}, "tools/call", "a", None),
        ({"timeouts": Timeouts(tools={"x": 1})}, "tools/call", "a", ""),
    ],
)
def test_definition_filters_tools(spec: Json, method: str, tool: str, routed: str | None) -> None:
    """The tool's name is read only if the definition filters tools."""
    server = make_server(**spec)
    view = SingleServer(make_core(server), server)
    if routed is None:
        with pytest.raises(UnknownTool, match="srv: the definition excludes this tool"):
            view.route(method, call(tool))
        return
    route = view.route(method, call(tool))
    assert (route.server, route.params, route.tool, route.alias) == (server, call(tool), routed, None)


def test_view_follows_a_replaced_definition() -> None:
    """A removed server stays visible until its name belongs to a new one."""
    old, new = make_server(), make_server()
    assert SingleServer(make_core(new), old).single is old
    old.is_closed = True
    assert SingleServer(make_core(new), old).single is new
    assert SingleServer(make_core(), old).single is old


@pytest.mark.parametrize(
    ("declared", "version", "client", "offered"),
    [
        ({"tools": {}}, LEGACY, MODERN, {"tools": {"listChanged": True}}),
        ({"resources": {}}, LEGACY, MODERN, {"resources": {"listChanged": True}}),
        ({"resources": {"subscribe": True}}, LEGACY, MODERN, {"resources": dict(CAPABILITIES["resources"])}),
        ({"logging": {}, "tools": 5}, LEGACY, MODERN, {"logging": {}}),
        ({"completions": {}, "tasks": {}}, MODERN, LEGACY, {"completions": {}, "logging": {}}),
        (
            {"prompts": {}, "tasks": {"a": 1}},
            LEGACY,
            LEGACY,
            {"prompts": {"listChanged": True}, "tasks": {"a": 1}},
        ),
        ({"experimental": {"b": 2}}, MODERN, MODERN, {"logging": {}, "experimental": {"b": 2}}),
    ],
)
def test_server_offers_what_it_declared_and_mcpd_can_forward(
    declared: Json, version: str, client: str, offered: Json
) -> None:
    """A modern server always has log messages; tasks and experiments need the same revision on both sides."""
    server = make_server()
    view = SingleServer(make_core(server), server)
    assert view.capabilities(client) == CAPABILITIES_WHILE_UNKNOWN
    server.upstream = make_upstream(version=version, **declared)
    assert view.capabilities(client) == offered


def hint(ttl: float, private: bool) -> CacheHint:
    return CacheHint(ttl=ttl, received_at=100.0, private=private)


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ([], NOT_CACHEABLE),
        ([None], NOT_CACHEABLE),
        ([hint(9, False), None], NOT_CACHEABLE),
        ([hint(9, False)], (7000, "public")),
        ([hint(9, False), hint(5, False)], (3000, "public")),
        ([hint(9, False), hint(50, True)], (7000, "private")),
        ([hint(1e9, False)], (int(MAX_TTL * 1000), "public")),
    ],
)
async def test_freshness_of_merged_lists(
    mock_clock: trio.testing.MockClock, hints: Sequence[CacheHint | None], expected: tuple[int, str]
) -> None:
    """The shortest time, and private if any part is; not cacheable if any server did not say."""
    catalogs = [
        None,
        *(make_catalog(hints={} if each is None else {"resources": each}) for each in hints),
    ]
    mock_clock.jump(102.0 - trio.current_time())
    for member in ("resources", "resourceTemplates"):
        assert combined_freshness(catalogs, member) == expected
    assert combined_freshness(catalogs, "tools") == NOT_CACHEABLE
