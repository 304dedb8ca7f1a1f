"""Which route a call takes: that of the tool that it names, however the name is spelled."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.calls.routes import DIRECT, RouteTable
from mcpd.model.server_spec import Timeouts
from tests.gateway.model import make_core, make_server

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)


def routes_of(**spec: Any) -> Any:
    """Return a function from params to the route, and the server."""
    server = make_server(**spec)
    return partial(RouteTable(make_core(server), ()).find, DIRECT, server, "tools/call", ""), server


@pytest.mark.parametrize("timeouts", [Timeouts(), Timeouts(tools={"slow": 77.0})])
@given(name=TEXT, ascii_only=st.booleans(), last=st.booleans())
def test_tool_name_is_found_in_any_json_spelling(
    timeouts: Timeouts, name: str, *, ascii_only: bool, last: bool
) -> None:
    """The name may be the first or last member, and escaped; whether or not the route depends on it."""
    find, server = routes_of(timeouts=timeouts)
    named = {"name": name}
    params = {"arguments": {"name": "not this"}, **named} if last else {**named, "arguments": {}}
    separators = (",", ":") if ascii_only else (", ", ": ")
    text = json.dumps(params, ensure_ascii=ascii_only, separators=separators).encode()
    for _ in range(3):
        assert find(text).tool == name
        find(text).stats.lost += 1
    assert [(tool, count.lost) for tool, count in server.call_stats.by_tool().items()] == [(name, 3)]


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"quick","name":"slow"}',
        b'{"name":"quick","n\\u0061me":"slow"}',
        b'{"name":"quick","arguments":{"name":"quick"},"name":"slow"}',
        b'{"name":"slow"}',
        b'{"name" : "slow"}',
        b'{"arguments":{},"name":"slow"}',
        b'{"name":"\\u0073low"}',
    ],
)
def test_nobody_evades_what_is_set_for_a_tool(params: bytes) -> None:
    """Servers take the last of several members with one name, as most JSON readers do."""
    find, _ = routes_of(timeouts=Timeouts(tools={"slow": 77.0}))
    for name in b"quick", b"slow":
        find(b'{"name":"%b"}' % name)
    assert find(params).idle_timeout == 77.0


@pytest.mark.parametrize("params", [b"", b"{}", b"[]", b'{"name":5}', b'{"name":""}', b'{"name":"a', b"\xff"])
def test_call_without_a_usable_name_has_a_route(params: bytes) -> None:
    """The server refuses it."""
    find, _ = routes_of()
    assert find(params).tool == ""
